#include "model/content_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::model {
namespace {

// Hashes fields, each behind its length, so that neighbouring fields cannot run into each other.
// The bytes of a field are those that GGUF stores; a field that is absent has none.
class Hasher {
 public:
  Hasher() : state_(XXH64_createState(), XXH64_freeState) { XXH64_reset(state_.get(), 0); }

  void Add(std::string_view bytes) {
    const uint64_t size = bytes.size();
    XXH64_update(state_.get(), &size, sizeof size);
    XXH64_update(state_.get(), bytes.data(), bytes.size());
  }
  void AddId(TokenId id) {
    const auto value = static_cast<uint32_t>(id);
    Add(id < 0 ? std::string_view() : Bytes(value));
  }
  void AddFlag(const std::optional<bool>& flag) {
    const uint8_t value = flag.value_or(false);
    Add(flag.has_value() ? Bytes(value) : std::string_view());
  }
  void AddStrings(const std::vector<std::string>& strings) {
    std::string packed;
    for (const std::string& text : strings) {
      const uint64_t size = text.size();
      packed.append(Bytes(size)).append(text);
    }
    Add(packed);
  }

  void AddSteps(const TextSteps& steps) {
    for (const std::vector<TextStep>* part :
         {&steps.normalizer, &steps.pre_tokenizer, &steps.decoder}) {
      AddNumber(static_cast<uint32_t>(part->size()));
      for (const TextStep& step : *part) {
        AddNumber(static_cast<uint32_t>(step.kind));
        AddNumber(step.flags);
        AddNumber(static_cast<uint32_t>(step.behavior));
        Add(step.pattern);
        Add(step.text);
        AddNumber(step.start);
        AddNumber(step.stop);
      }
    }
  }
  void AddNumber(uint32_t number) { Add(Bytes(number)); }

  uint64_t Finish() const { return XXH64_digest(state_.get()); }

 private:
  template <class Value>
  static std::string_view Bytes(const Value& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }

  std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state_;
};

}  // namespace

uint64_t TokenizerHash(const TokenizerBundle& tokenizer) {
  std::vector<int32_t> kinds;
  for (const TokenKind kind : tokenizer.kinds) kinds.push_back(static_cast<int32_t>(kind));
  const auto bytes_of = [](const auto& numbers) {
    return std::string_view(reinterpret_cast<const char*>(numbers.data()),
                            numbers.size() * sizeof numbers[0]);
  };
  Hasher hasher;
  hasher.Add(tokenizer.kind);
  hasher.Add(tokenizer.pretokenizer);
  hasher.AddStrings(tokenizer.tokens);
  hasher.Add(bytes_of(kinds));
  hasher.AddStrings(tokenizer.merges);
  // Files have scores in single precision but for those of a few tokenizer.json.
  const std::vector<float> floats(tokenizer.scores.begin(), tokenizer.scores.end());
  const bool exact = std::ranges::equal(floats, tokenizer.scores);
  hasher.Add(exact ? bytes_of(floats) : bytes_of(tokenizer.scores));
  for (const TokenId id : {tokenizer.bos, tokenizer.eos, tokenizer.eot, tokenizer.eom}) {
    hasher.AddId(id);
  }
  hasher.AddFlag(tokenizer.add_bos);
  hasher.AddFlag(tokenizer.add_eos);
  hasher.AddId(tokenizer.unknown);
  hasher.AddId(static_cast<TokenId>(tokenizer.space_prefix));
  hasher.AddStrings(tokenizer.split_patterns);
  hasher.AddFlag(tokenizer.nfc);
  hasher.AddFlag(tokenizer.ignores_merges);
  for (const AddedTokenRule& rule : tokenizer.added_rules) {
    hasher.AddId(rule.id);
    for (const bool flag : {rule.strips_left, rule.strips_right, rule.whole_word}) {
      hasher.AddFlag(flag);
    }
    if (!rule.in_model && !rule.normalized && !rule.byte) continue;
    for (const bool flag : {rule.in_model, rule.normalized, rule.byte}) hasher.AddFlag(flag);
  }
  hasher.Add(tokenizer.chat_template.value_or(""));
  if (tokenizer.steps.has_value()) hasher.AddSteps(*tokenizer.steps);
  if (!tokenizer.prefix.empty() || !tokenizer.suffix.empty()) {
    hasher.Add(bytes_of(tokenizer.prefix));
    hasher.Add(bytes_of(tokenizer.suffix));
  }
  if (!tokenizer.fuses_unknown) hasher.AddFlag(tokenizer.fuses_unknown);
  if (!tokenizer.more_ends.empty()) hasher.Add(bytes_of(tokenizer.more_ends));
  for (const NamedTemplate& named : tokenizer.more_templates) {
    hasher.Add(named.name);
    hasher.Add(named.text);
  }
  if (tokenizer.kind == "bert") {
    hasher.Add(tokenizer.word_prefix);
    hasher.AddNumber(tokenizer.max_word_characters);
  }
  return hasher.Finish();
}

}  // namespace flotilla::model
