#include "model/content_hash.h"

#include <xxhash.h>

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
  hasher.Add(bytes_of(tokenizer.scores));
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
  }
  hasher.Add(tokenizer.chat_template.value_or(""));
  return hasher.Finish();
}

}  // namespace flotilla::model
