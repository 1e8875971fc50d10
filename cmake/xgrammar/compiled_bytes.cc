#include "compiled_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "compiled_grammar_impl.h"
#include "grammar_impl.h"
#include "support/json_serializer.h"

namespace xgrammar {
namespace {

using StoreType = AdaptiveTokenMask::StoreType;

static_assert(std::is_trivially_copyable_v<ParserState>);

template <typename T>
void Put(const T& value, std::string& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
void Put(const std::vector<T>& values, std::string& out) {
  Put<std::uint64_t>(values.size(), out);
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// The words of a bitset, which alone can see them.
std::vector<std::uint32_t> WordsOf(const DynamicBitset& bitset) {
  std::vector<std::uint32_t> words(DynamicBitset::GetBufferSize(bitset.Size()));
  if (!words.empty()) DynamicBitset(bitset.Size(), words.data()) = bitset;
  return words;
}

// Takes values from bytes. Throws if there are not as many.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, TakeBytes(sizeof value).data(), sizeof value);
    return value;
  }

  template <typename T>
  std::vector<T> TakeVector() {
    const auto size = Take<std::uint64_t>();
    if (size > rest_.size() / sizeof(T)) throw std::runtime_error("its bytes end too early");
    std::vector<T> values(size);
    const std::string_view bytes = TakeBytes(size * sizeof(T));
    if (size > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  std::string_view TakeBytes(std::uint64_t size) {
    if (size > rest_.size()) throw std::runtime_error("its bytes end too early");
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// The grammar without the automata of its rules, which are parts of `complete_fsm`.
std::string RulesAsJson(const Grammar& grammar) {
  auto rules = std::make_shared<Grammar::Impl>(*grammar.ImplPtr());
  rules->per_rule_fsms.clear();
  rules->optimized = false;  // else XGrammar wants these automata
  return AutoSerializeJSON(Grammar(std::move(rules)));
}

void PutAutomata(const Grammar::Impl& grammar, std::string& out) {
  Put<std::uint64_t>(grammar.per_rule_fsms.size(), out);
  for (const auto& rule : grammar.per_rule_fsms) {
    Put<std::uint8_t>(rule.has_value(), out);
    if (!rule.has_value()) continue;
    const CompactFSMWithStartEnd& part = rule->GetFsm();
    if (part.GetFsm().ImplPtr() != grammar.complete_fsm.ImplPtr()) {
      throw std::runtime_error("a rule's automaton is no part of that of all rules");
    }
    Put<std::int32_t>(part.GetStart(), out);
    Put(part.GetEnds(), out);
    Put<std::int32_t>(rule->GetEdgeNum(), out);
    Put<std::int32_t>(rule->GetNodeNum(), out);
  }
}

void TakeAutomata(Reader& reader, Grammar::Impl& grammar) {
  const auto size = reader.Take<std::uint64_t>();
  if (size != 0 &&
      (grammar.complete_fsm.IsNull() || size != static_cast<std::uint64_t>(grammar.NumRules()))) {
    throw std::runtime_error("it has not an automaton for each rule");
  }
  grammar.per_rule_fsms.reserve(size);
  for (std::uint64_t i = 0; i < size; ++i) {
    if (reader.Take<std::uint8_t>() == 0) {
      if (grammar.optimized) throw std::runtime_error("a rule has no automaton");
      grammar.per_rule_fsms.emplace_back();
      continue;
    }
    const auto start = reader.Take<std::int32_t>();
    std::vector<std::int32_t> ends = reader.TakeVector<std::int32_t>();
    const auto edges = reader.Take<std::int32_t>(), nodes = reader.Take<std::int32_t>();
    const auto is_state = [&grammar](std::int32_t state) {
      return state >= 0 && state < grammar.complete_fsm.NumStates();
    };
    if (!is_state(start) || !std::all_of(ends.begin(), ends.end(), is_state)) {
      throw std::runtime_error("a state of a rule is out of range");
    }
    grammar.per_rule_fsms.emplace_back(CompactFSMWithStartEndWithSize(
        CompactFSMWithStartEnd(grammar.complete_fsm, start, std::move(ends)), edges, nodes));
  }
  if (grammar.optimized && size == 0) throw std::runtime_error("its rules have no automata");
}

void PutMask(const AdaptiveTokenMask& mask, std::string& out) {
  Put(mask.store_type, out);
  Put(mask.accepted_indices, out);
  Put(mask.rejected_indices, out);
  Put(mask.uncertain_indices, out);
  Put<std::int32_t>(mask.accepted_bitset.Size(), out);
  Put(WordsOf(mask.accepted_bitset), out);
}

AdaptiveTokenMask TakeMask(Reader& reader, const TokenizerInfo& vocabulary) {
  AdaptiveTokenMask mask;
  mask.store_type = reader.Take<StoreType>();
  mask.accepted_indices = reader.TakeVector<std::int32_t>();
  mask.rejected_indices = reader.TakeVector<std::int32_t>();
  mask.uncertain_indices = reader.TakeVector<std::int32_t>();
  const auto size = reader.Take<std::int32_t>();
  std::vector<std::uint32_t> words = reader.TakeVector<std::uint32_t>();
  const auto sorted = static_cast<std::int32_t>(vocabulary.GetSortedDecodedVocab().size());
  for (const auto* indices :
       {&mask.accepted_indices, &mask.rejected_indices, &mask.uncertain_indices}) {
    for (const std::int32_t index : *indices) {
      if (index < 0 || index >= sorted)
        throw std::runtime_error("a token of a mask is out of range");
    }
  }
  const bool has_bits = mask.store_type == StoreType::kAcceptedBitset;
  if (!has_bits && mask.store_type != StoreType::kAccepted &&
      mask.store_type != StoreType::kRejected) {
    throw std::runtime_error("a mask is of no type");
  }
  const bool is_whole = size == vocabulary.GetVocabSize() || (size == 0 && !has_bits);
  if (!is_whole || words.size() != static_cast<std::size_t>(DynamicBitset::GetBufferSize(size))) {
    throw std::runtime_error("a mask has not the size of the vocabulary");
  }
  if (size > 0) {
    const DynamicBitset view(size, words.data());
    mask.accepted_bitset = view;
  }
  return mask;
}

}  // namespace

std::string CompiledToBytes(const CompiledGrammar& grammar) {
  const CompiledGrammar::Impl& impl = *grammar.ImplPtr();
  std::string out;
  Put<std::int32_t>(impl.tokenizer_info.GetVocabSize(), out);
  const std::string rules = RulesAsJson(impl.grammar);
  Put<std::uint64_t>(rules.size(), out);
  out += rules;
  Put<std::uint8_t>(impl.grammar->optimized, out);
  PutAutomata(*impl.grammar.ImplPtr(), out);
  Put<std::uint64_t>(impl.adaptive_token_mask_cache.size(), out);
  for (const auto& [state, mask] : impl.adaptive_token_mask_cache) {
    Put(state, out);
    PutMask(mask, out);
  }
  return out;
}

std::variant<CompiledGrammar, std::string> CompiledFromBytes(std::string_view bytes,
                                                             const TokenizerInfo& vocabulary) {
  try {
    Reader reader(bytes);
    auto impl = std::make_shared<CompiledGrammar::Impl>();
    impl->tokenizer_info = vocabulary;
    if (reader.Take<std::int32_t>() != vocabulary.GetVocabSize()) {
      return "it was compiled for a vocabulary of another size";
    }
    const std::string rules(reader.TakeBytes(reader.Take<std::uint64_t>()));
    if (const auto error = AutoDeserializeJSON(&impl->grammar, rules, false, "Grammar")) {
      return std::visit([](const auto& each) { return std::string(each.what()); }, *error);
    }
    if (impl->grammar.IsNull()) return "it has no rules";
    impl->grammar->optimized = reader.Take<std::uint8_t>() != 0;
    TakeAutomata(reader, *impl->grammar.ImplPtr());
    // Each mask takes some bytes, so the loop ends.
    for (auto masks = reader.Take<std::uint64_t>(); masks > 0; --masks) {
      const auto state = reader.Take<ParserState>();
      impl->adaptive_token_mask_cache.emplace(state, TakeMask(reader, vocabulary));
    }
    if (!reader.is_at_end()) return "it has more bytes than a grammar";
    return CompiledGrammar(std::move(impl));
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace xgrammar
