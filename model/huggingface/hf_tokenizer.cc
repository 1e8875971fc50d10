#include "model/huggingface/hf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "common/types/text.h"
#include "model/huggingface/hf_text_steps.h"
#include "model/huggingface/sentencepiece_model.h"
#include "model/padding_token.h"
#include "model/text/space_mark.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxTokens = 1 << 20;
// The most ids below the largest one that no token has, unless the model has rows for them.
constexpr uint64_t kMaxUnusedIds = 1 << 16;

const Json& At(const Json& object, const char* name) { return JsonAt(object, name); }
std::string_view Text(const Json& value) { return JsonText(value); }
bool Flag(const Json& part, const char* name, bool fallback) {
  return JsonFlag(part, name, fallback);
}
std::string QuotedPart(std::string_view text) { return Quoted(text); }

// Makes `count` one more than an id, if it is less.
void Cover(const Json& id, uint64_t& count) {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  if (id.is_number_unsigned()) count = std::max(count, std::min(id.get<uint64_t>(), kMost) + 1);
}
// One more than the largest id of a token of the model, and of all tokens with those that were
// added.
uint64_t CountModelTokens(const Json& tokenizer) {
  const Json& vocabulary = At(At(tokenizer, "model"), "vocab");
  uint64_t count = vocabulary.is_array() ? vocabulary.size() : 0;
  if (!vocabulary.is_object()) return count;
  for (const Json& id : vocabulary) Cover(id, count);
  return count;
}
uint64_t CountTokens(const Json& tokenizer) {
  uint64_t count = CountModelTokens(tokenizer);
  const Json& added = At(tokenizer, "added_tokens");
  if (!added.is_array()) return count;
  for (const Json& token : added) Cover(At(token, "id"), count);
  return count;
}

std::string_view TypeOf(const Json& part) { return Text(At(part, "type")); }
// A token is a string, or an object with its text.
std::string_view TokenText(const Json& value) {
  return value.is_object() ? Text(At(value, "content")) : Text(value);
}

// The expressions that published tokenizers split by, and what llama.cpp calls them.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Known {
  std::string_view parts;  // as Describe gives them
  std::string_view name;   // as llama.cpp does
  bool nfc = false;
  bool ignores_merges = false;
};

// A pre-tokenizer in one line.
std::string Describe(const Json& part) {
  const std::string_view type = TypeOf(part);
  if (type == "Sequence") {
    std::string all;
    const Json& parts = At(part, "pretokenizers");
    if (!parts.is_array() || parts.size() > 8) return "Sequence?";
    for (const Json& each : parts) {
      // A sequence in a sequence has no use.
      all += Cat(all.empty() ? "" : " + ", TypeOf(each) == "Sequence" ? "?" : Describe(each));
    }
    return all;
  }
  if (type == "ByteLevel") {
    return Cat("ByteLevel", Flag(part, "add_prefix_space", true) ? " with a space" : "",
               Flag(part, "use_regex", true) ? "" : " of pieces");
  }
  if (type == "Digits") {
    return Flag(part, "individual_digits", false) ? "each digit" : "digits";
  }
  if (type == "Split" && Text(At(part, "behavior")) == "Isolated" && !Flag(part, "invert", false)) {
    const std::string_view pattern = Text(At(At(part, "pattern"), "Regex"));
    if (pattern == kLlama3) return "Llama 3";
    if (pattern == kQwen2) return "Qwen 2";
    return Cat("Split by ", QuotedPart(pattern));
  }
  return std::string(type.empty() ? "none" : type);
}

constexpr Known kKnown[] = {
    {"ByteLevel", "gpt-2"},
    {"each digit + ByteLevel", "smollm"},
    {"Llama 3 + ByteLevel of pieces", "llama-bpe", false, true},
    {"Qwen 2 + ByteLevel of pieces", "qwen2", true},
};

// The parts of a sequence, or the part itself; null has none. A sequence in a sequence counts as
// one part.
std::vector<const Json*> PartsOf(const Json& part, const char* list) {
  std::vector<const Json*> parts;
  if (part.is_null()) return parts;
  if (TypeOf(part) != "Sequence") return {&part};
  const Json& all = At(part, list);
  for (size_t i = 0; all.is_array() && i < all.size(); ++i) parts.push_back(&all[i]);
  return parts;
}

// What a part of BPE with a mark for spaces says, in one line.
std::string DescribeStep(const Json& part) {
  const std::string_view type = TypeOf(part);
  const auto shown = [](std::string_view text) {
    return text == kSpaceMark ? std::string_view("_") : text;
  };
  const Json& pattern = At(part, "pattern");
  if (type == "Replace") {
    return Cat("Replace '", shown(Text(At(pattern, "String"))), "' by '",
               shown(Text(At(part, "content"))), "'");
  }
  if (type == "Prepend") return Cat("Prepend '", shown(Text(At(part, "prepend"))), "'");
  if (type == "Split") {
    return Cat("Split by '", shown(Text(At(pattern, "String"))), "', ", Text(At(part, "behavior")));
  }
  if (type == "Strip" && Text(At(part, "content")) == " " && At(part, "start") == 1 &&
      At(part, "stop") == 0) {
    return "Strip a space";
  }
  return std::string(type);
}

template <class Describer>
std::string DescribeAll(const std::vector<const Json*>& parts, const Describer& describe) {
  std::string all;
  for (const Json* part : parts) all += Cat(all.empty() ? "" : " + ", describe(*part));
  return all;
}

// The regular expression of a part that splits text, where its matches are pieces by themselves;
// empty: it is another part.
std::string PatternOf(const Json& part) {
  constexpr std::string_view kGpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  const std::string_view type = TypeOf(part), behavior = Text(At(part, "behavior"));
  if (type == "ByteLevel" && !Flag(part, "add_prefix_space", true)) {
    return std::string(Flag(part, "use_regex", true) ? kGpt2 : "(?m).+");
  }
  if (type == "Digits") return Flag(part, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)";
  if (type == "Split" && behavior == "Isolated" && !Flag(part, "invert", false)) {
    return std::string(Text(At(At(part, "pattern"), "Regex")));
  }
  return "";
}

// Reads the files. The first failure sticks.
class Reader {
 public:
  explicit Reader(HfTokenizerFiles files)
      : files_(std::move(files)), model_(At(files_.tokenizer, "model")) {}
  ~Reader() { FreeJson(files_.tokenizer); }

  absl::StatusOr<TokenizerBundle> Read() && {
    if (files_.tokenizer.is_null() && files_.sentencepiece.has_value()) {
      auto bundle =
          ReadSentencePieceFolder(*files_.sentencepiece, files_.tokenizer_config, files_.rows);
      if (!bundle.ok()) return bundle.status();
      bundle_ = *std::move(bundle);
      ReadSpecials();
      ReadSampling();
      ReadTemplate();
      if (!status_.ok()) return status_;
      return std::move(bundle_);
    }
    const std::string_view decoder = TypeOf(At(files_.tokenizer, "decoder"));
    type_ = TypeOf(model_);
    if (type_.empty() && model_.contains("merges")) type_ = "BPE";
    byte_level_ = type_ == "BPE" && decoder == "ByteLevel";
    bundle_.kind = type_ == "Unigram"     ? "t5"
                   : type_ == "WordPiece" ? "bert"
                   : byte_level_          ? "gpt2"
                                          : "llama";
    CheckModel();
    const bool known = type_ == "BPE" && (byte_level_ ? ReadSplitting() : ReadSpaces());
    if (ok() && !known) ReadSteps();
    ReadTokens();
    if (type_ == "BPE") ReadMerges();
    ReadSpecials();
    ReadSampling();
    ReadPostProcessor();
    ReadTemplate();
    if (!status_.ok()) return status_;
    return std::move(bundle_);
  }

 private:
  bool ok() const { return status_.ok(); }
  void Fail(absl::Status status) {
    if (ok()) status_ = std::move(status);
  }
  void Unknown(std::string_view what, std::string_view value) {
    Fail(Unimplemented("tokenizer.json: ", what, " ", value, " is not supported"));
  }

  void AddRule(TokenId id, const Json& token, bool in_model, bool byte) {
    AddedTokenRule rule = ReadAddedRule(id, token);
    rule.in_model = in_model;
    rule.byte = byte;
    if (rule != AddedTokenRule{.id = id}) bundle_.added_rules.push_back(rule);
  }

  void CheckModel() {
    if (type_ == "WordPiece") {
      constexpr uint64_t kMost = 1 << 20;
      const Json& longest = At(model_, "max_input_chars_per_word");
      const uint64_t most = longest.is_number_unsigned() ? longest.get<uint64_t>() : 100;
      bundle_.max_word_characters = static_cast<uint32_t>(std::min(most, kMost));
      bundle_.word_prefix = Text(At(model_, "continuing_subword_prefix"));
      return;
    }
    if (type_ == "Unigram") return;
    if (type_ != "BPE") return Unknown("the model", QuotedPart(type_));
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!Text(At(model_, name)).empty()) Unknown(name, QuotedPart(Text(At(model_, name))));
    }
    if (byte_level_ && Flag(model_, "byte_fallback", false)) Unknown("byte_fallback", "true");
    if (byte_level_) return;
    bundle_.fuses_unknown = Flag(model_, "fuse_unk", false);
    if (Flag(model_, "ignore_merges", false)) Unknown("ignore_merges", "true");
  }

  // All that the file says, step by step.
  void ReadSteps() {
    auto steps = ReadTextSteps(files_.tokenizer);
    if (!steps.ok()) return Fail(steps.status());
    using Kind = TextStep::Kind;
    const auto to_bytes = [](const TextStep& step) { return step.kind == Kind::kByteLevel; };
    const auto& splitter = steps->pre_tokenizer;
    if (std::ranges::any_of(splitter, to_bytes) != byte_level_) {
      return Unknown("the pre-tokenizer",
                     byte_level_ ? "that has no ByteLevel" : "ByteLevel without such a decoder");
    }
    if (byte_level_) bundle_.ignores_merges = Flag(model_, "ignore_merges", false);
    bundle_.steps = *std::move(steps);
  }

  // The tokens that a post-processor puts around a text. Where tokenizer_config.json speaks of bos
  // and eos, that is what counts.
  void ReadPostProcessor() {
    if (At(files_.tokenizer_config, "add_bos_token").is_boolean()) return;
    auto around = ReadTemplateTokens(At(files_.tokenizer, "post_processor"), bundle_.tokens.size());
    if (!around.ok()) return Fail(around.status());
    const bool only_bos =
        around->suffix.empty() && around->prefix.size() == 1 && around->prefix[0] == bundle_.bos;
    bundle_.add_bos = only_bos;
    if (only_bos) return;
    bundle_.prefix = std::move(around->prefix);
    bundle_.suffix = std::move(around->suffix);
  }

  // By the names and expressions of model/text/pretokenizer.h. False: it takes steps.
  bool ReadSplitting() {
    const Json& part = At(files_.tokenizer, "pre_tokenizer");
    const Json& normalizer = At(files_.tokenizer, "normalizer");
    const std::string normalizers = DescribeAll(PartsOf(normalizer, "normalizers"), TypeOf);
    const bool nfc = normalizers == "NFC";
    if (!nfc && !normalizers.empty()) return false;
    const bool ignores_merges = Flag(model_, "ignore_merges", false);
    const std::string parts = Describe(part);
    const auto known = std::ranges::find(kKnown, parts, &Known::parts);
    if (known != std::end(kKnown) && known->nfc == nfc && known->ignores_merges == ignores_merges) {
      bundle_.pretokenizer = known->name;
      return true;
    }
    bool to_bytes = false;
    std::vector<std::string> patterns;
    for (const Json* each : PartsOf(part, "pretokenizers")) {
      if (to_bytes) return false;  // it would split the characters that stand for bytes
      to_bytes = TypeOf(*each) == "ByteLevel";
      patterns.push_back(PatternOf(*each));
      if (patterns.back().empty()) return false;
    }
    if (!to_bytes) return false;
    bundle_.split_patterns = std::move(patterns);
    bundle_.nfc = nfc;
    bundle_.ignores_merges = ignores_merges;
    return true;
  }

  // How spaces become the mark and back, where nothing else splits text. False: it takes steps.
  bool ReadSpaces() {
    const Json& added = At(files_.tokenizer, "added_tokens");
    for (size_t i = 0; added.is_array() && i < added.size(); ++i) {
      if (Flag(added[i], "normalized", false)) return false;  // it counts in text with marks
      // One that the model does not have stands for spaces in the other kinds of files.
      const std::string content(Text(At(added[i], "content")));
      if (content.find(kSpaceMark) != content.npos && !At(model_, "vocab").contains(content)) {
        return false;
      }
    }
    const std::string before =
        DescribeAll(PartsOf(At(files_.tokenizer, "normalizer"), "normalizers"), DescribeStep);
    const Json& splitter = At(files_.tokenizer, "pre_tokenizer");
    const std::string split = DescribeAll(PartsOf(splitter, "pretokenizers"), DescribeStep);
    const std::string after =
        DescribeAll(PartsOf(At(files_.tokenizer, "decoder"), "decoders"), DescribeStep);
    if (before == "Prepend '_' + Replace ' ' by '_'" && split.empty()) {
      bundle_.space_prefix = SpacePrefix::kParts;
    } else if (before == "Replace ' ' by '_'" && split.empty()) {
      bundle_.space_prefix = SpacePrefix::kNone;
    } else {
      return false;
    }
    std::string expected = "Replace '_' by ' ' + ByteFallback + Fuse";
    if (bundle_.space_prefix != SpacePrefix::kNone) expected += " + Strip a space";
    if (after == expected) return true;
    bundle_.space_prefix = SpacePrefix::kNone;
    return false;
  }

  void Put(std::string_view text, const Json& id, TokenKind kind) {
    const uint64_t count = bundle_.tokens.size();
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= count) {
      return Fail(
          InvalidArgument("tokenizer.json: token ", QuotedPart(text), " has no id below ", count));
    }
    const auto at = id.get<uint64_t>();
    if (placed_[at] && bundle_.tokens[at] != text) {
      return Fail(InvalidArgument("tokenizer.json: two tokens have the id ", at, ": ",
                                  QuotedPart(bundle_.tokens[at]), " and ", QuotedPart(text)));
    }
    placed_[at] = true;
    bundle_.tokens[at] = text;
    bundle_.kinds[at] = kind;
  }

  // Unigram's vocabulary: a list of pairs of a text and its score.
  template <class Taker>
  void ReadScores(const Json& vocabulary, const Taker& put) {
    bundle_.scores.assign(bundle_.tokens.size(), 0);
    for (size_t id = 0; ok() && id < vocabulary.size(); ++id) {
      const Json& pair = vocabulary[id];
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number()) {
        return Fail(
            InvalidArgument("tokenizer.json: model.vocab[", id, "] is no text with a score"));
      }
      put(Text(pair[0]), Json(uint64_t{id}));
      bundle_.scores[id] = pair[1].get<double>();
    }
    const Json& unknown = At(model_, "unk_id");
    if (unknown.is_null()) return;
    if (!unknown.is_number_unsigned() || unknown.get<uint64_t>() >= vocabulary.size()) {
      return Fail(InvalidArgument("tokenizer.json: unk_id is no place of the vocabulary of ",
                                  vocabulary.size()));
    }
    bundle_.unknown = static_cast<TokenId>(unknown.get<uint64_t>());
  }

  void ReadTokens() {
    const Json& vocabulary = At(model_, "vocab");
    const Json& added = At(files_.tokenizer, "added_tokens");
    if (type_ == "Unigram" ? !vocabulary.is_array() : !vocabulary.is_object()) {
      return Fail(InvalidArgument("tokenizer.json: model.vocab is no ",
                                  type_ == "Unigram" ? "list" : "object"));
    }
    const bool has_rows = files_.rows >= CountModelTokens(files_.tokenizer);
    const uint64_t count =
        has_rows && files_.rows > 0 ? files_.rows : CountTokens(files_.tokenizer);
    if (count == 0 || count > kMaxTokens) {
      return Fail(InvalidArgument("tokenizer.json has ", count, " tokens, not 1..", kMaxTokens));
    }
    const uint64_t listed = vocabulary.size() + (added.is_array() ? added.size() : 0);
    if (count != files_.rows && count > listed + kMaxUnusedIds) {
      return Fail(InvalidArgument("tokenizer.json has ids up to ", count - 1, " for ", listed,
                                  " tokens; at most ", kMaxUnusedIds, " ids may be unused"));
    }
    bundle_.tokens.assign(count, {});
    bundle_.kinds.assign(count, TokenKind::kNormal);
    placed_.assign(count, false);
    const bool falls_back = !byte_level_ && Flag(model_, "byte_fallback", false);
    const auto put = [&](std::string_view text, const Json& id) {
      const bool byte = falls_back && text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
      Put(text, id, byte ? TokenKind::kByte : TokenKind::kNormal);
    };
    if (type_ == "Unigram") {
      ReadScores(vocabulary, put);
    } else {
      for (const auto& [text, id] : vocabulary.items()) put(text, id);
    }
    if (const std::string_view unknown = Text(At(model_, "unk_token")); !byte_level_ && ok()) {
      const auto found = vocabulary.find(std::string(unknown));
      if (found != vocabulary.end() && found->is_number_unsigned()) {
        bundle_.unknown = static_cast<TokenId>(found->get<uint64_t>());
      }
    }
    if (added.is_array()) {
      for (const Json& token : added) {
        const Json& place = At(token, "id");
        // No vector belongs to it.
        if (files_.rows == count && place.is_number_unsigned() && place.get<uint64_t>() >= count) {
          continue;
        }
        const bool special = Flag(token, "special", false);
        // The model has it, too: merges may make it of text that normalisation has changed.
        const bool in_model = place.is_number_unsigned() && place.get<uint64_t>() < count &&
                              placed_[place.get<uint64_t>()];
        const bool byte = in_model && bundle_.kinds[place.get<uint64_t>()] == TokenKind::kByte;
        Put(Text(At(token, "content")), place,
            special ? TokenKind::kControl : TokenKind::kUserDefined);
        if (!ok()) return;
        AddRule(static_cast<TokenId>(place.get<uint64_t>()), token, in_model, byte);
      }
    }
    for (size_t id = 0; id < count; ++id) {
      if (placed_[id]) continue;
      bundle_.tokens[id] = PaddingToken(id);
      bundle_.kinds[id] = TokenKind::kUnused;
    }
  }

  void ReadMerges() {
    const Json& merges = At(model_, "merges");
    if (!merges.is_array()) return Fail(InvalidArgument("tokenizer.json: model.merges is no list"));
    if (const auto wrong = files_.merges.wrong; wrong.has_value()) {
      return Fail(
          InvalidArgument("tokenizer.json: merge ", *wrong, " is neither a string nor two"));
    }
    bundle_.merges = std::move(files_.merges.rules);
  }

  TokenId Find(std::string_view text) {
    const auto found = std::ranges::find(bundle_.tokens, text);
    if (found != bundle_.tokens.end()) return static_cast<TokenId>(found - bundle_.tokens.begin());
    Fail(InvalidArgument("tokenizer_config.json: ", QuotedPart(text), " is not in the vocabulary"));
    return -1;
  }

  void ReadSpecials() {
    const Json& config = files_.tokenizer_config;
    if (const std::string_view bos = TokenText(At(config, "bos_token")); !bos.empty() && ok()) {
      bundle_.bos = Find(bos);
    }
    std::vector<TokenId> ends;
    if (const std::string_view eos = TokenText(At(config, "eos_token")); !eos.empty() && ok()) {
      ends.push_back(Find(eos));
    }
    for (const uint64_t id : files_.end_ids) {
      if (id >= bundle_.tokens.size()) {
        Fail(InvalidArgument("config.json, generation_config.json: eos_token_id ", id,
                             " is outside the vocabulary of ", bundle_.tokens.size()));
      }
      const auto end = static_cast<TokenId>(id);
      if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
    }
    TokenId* const places[] = {&bundle_.eos, &bundle_.eot, &bundle_.eom};
    const size_t placed = std::min(ends.size(), std::size(places));
    for (size_t i = 0; i < placed; ++i) *places[i] = ends[i];
    bundle_.more_ends.assign(ends.begin() + static_cast<ptrdiff_t>(placed), ends.end());
    const Json& adds = At(config, "add_bos_token");
    if (adds.is_boolean()) bundle_.add_bos = adds.get<bool>();
    bundle_.add_eos = Flag(config, "add_eos_token", bundle_.add_eos.value_or(false));
    bundle_.pad = NamedToken(config, "pad_token");
    if (byte_level_) bundle_.unknown = NamedToken(config, "unk_token");
  }

  // A token that only templates need, so a folder that has it wrong is no worse without it. -1:
  // none.
  TokenId NamedToken(const Json& config, const char* name) const {
    const auto token = std::ranges::find(bundle_.tokens, TokenText(At(config, name)));
    if (token == bundle_.tokens.end() || token->empty()) return -1;
    return static_cast<TokenId>(token - bundle_.tokens.begin());
  }

  // What vLLM reads of it, and typical_p.
  void ReadSampling() {
    for (const char* name :
         {"temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"}) {
      const Json& value = At(files_.generation, name);
      if (value.is_null()) continue;
      const double none = std::numeric_limits<double>::quiet_NaN();
      bundle_.sampling.push_back(
          {.name = name, .value = value.is_number() ? value.get<double>() : none});
    }
  }

  // Templates in files of their own go before those in tokenizer_config.json. Of several the one
  // called "default" is used.
  void ReadTemplate() {
    bundle_.chat_template = files_.chat_template;
    bundle_.more_templates = files_.more_templates;
    const Json& own = At(files_.tokenizer_config, "chat_template");
    const bool in_files = bundle_.chat_template.has_value() || !bundle_.more_templates.empty();
    if (own.is_string() && !in_files) bundle_.chat_template = own.get<std::string>();
    for (size_t i = 0; !in_files && own.is_array() && i < own.size(); ++i) {
      bundle_.more_templates.push_back({.name = std::string(Text(At(own[i], "name"))),
                                        .text = std::string(Text(At(own[i], "template")))});
    }
    const auto main = std::ranges::find(bundle_.more_templates, "default", &NamedTemplate::name);
    if (main != bundle_.more_templates.end()) {
      if (!bundle_.chat_template.has_value()) bundle_.chat_template = std::move(main->text);
      bundle_.more_templates.erase(main);
    }
  }

  HfTokenizerFiles files_;
  const Json& model_;
  TokenizerBundle bundle_;
  std::string_view type_;  // of the model
  bool byte_level_ = false;
  std::vector<bool> placed_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<TokenizerBundle> ReadHfTokenizer(HfTokenizerFiles files) {
  return Reader(std::move(files)).Read();
}

}  // namespace flotilla::model
