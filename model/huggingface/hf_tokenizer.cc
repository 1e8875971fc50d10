#include "model/huggingface/hf_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxTokens = 1 << 20;

const Json kNull;

const Json& At(const Json& object, const char* name) {
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}
std::string_view Text(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>())
                           : std::string_view();
}
std::string_view TypeOf(const Json& part) { return Text(At(part, "type")); }
bool Flag(const Json& part, const char* name, bool fallback) {
  const Json& value = At(part, name);
  return value.is_boolean() ? value.get<bool>() : fallback;
}
std::string Quote(std::string_view text) {
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, 80))), "'");
}
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
    return Cat("Split by ", Quote(pattern));
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

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

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
    return std::string(Flag(part, "use_regex", true) ? kGpt2 : "(?s).+");
  }
  if (type == "Digits") return Flag(part, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)";
  if (type == "Punctuation" && (behavior == "Isolated" || behavior == "Contiguous")) {
    return Cat(R"([!-/:-@\[-`{-~\p{P}])", behavior == "Isolated" ? "" : "+");
  }
  if (type == "Split" && behavior == "Isolated" && !Flag(part, "invert", false)) {
    return std::string(Text(At(At(part, "pattern"), "Regex")));
  }
  return "";
}

// Reads the files. The first failure sticks.
class Reader {
 public:
  explicit Reader(const HfTokenizerFiles& files)
      : files_(files), model_(At(files.tokenizer, "model")) {}

  absl::StatusOr<TokenizerBundle> Read() && {
    byte_level_ = TypeOf(At(files_.tokenizer, "decoder")) == "ByteLevel";
    bundle_.kind = byte_level_ ? "gpt2" : "llama";
    CheckModel();
    if (byte_level_) {
      ReadSplitting();
    } else {
      ReadSpaces();
    }
    ReadTokens();
    if (!byte_level_) CheckSpaces();
    ReadMerges();
    ReadSpecials();
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

  void CheckModel() {
    const std::string_view type = TypeOf(model_);
    if (type != "BPE" && !(type.empty() && model_.contains("merges"))) {
      return Unknown("the model", Quote(type));
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!Text(At(model_, name)).empty()) Unknown(name, Quote(Text(At(model_, name))));
    }
    const bool falls_back = Flag(model_, "byte_fallback", false);
    if (byte_level_ && falls_back) Unknown("byte_fallback", "true");
    if (byte_level_) return;
    if (!falls_back && !Flag(model_, "fuse_unk", false)) Unknown("fuse_unk", "false");
    if (Flag(model_, "ignore_merges", false)) Unknown("ignore_merges", "true");
  }

  void ReadSplitting() {
    const Json& part = At(files_.tokenizer, "pre_tokenizer");
    const Json& normalizer = At(files_.tokenizer, "normalizer");
    const std::string normalizers = DescribeAll(PartsOf(normalizer, "normalizers"), TypeOf);
    const bool nfc = normalizers == "NFC";
    if (!nfc && !normalizers.empty()) return Unknown("the normalizer", Quote(normalizers));
    const bool ignores_merges = Flag(model_, "ignore_merges", false);
    const std::string parts = Describe(part);
    const auto known = std::ranges::find(kKnown, parts, &Known::parts);
    if (known != std::end(kKnown) && known->nfc == nfc && known->ignores_merges == ignores_merges) {
      bundle_.pretokenizer = known->name;
      return;
    }
    bundle_.nfc = nfc;
    bundle_.ignores_merges = ignores_merges;
    bool to_bytes = false;
    for (const Json* each : PartsOf(part, "pretokenizers")) {
      to_bytes = to_bytes || TypeOf(*each) == "ByteLevel";
      bundle_.split_patterns.push_back(PatternOf(*each));
      if (bundle_.split_patterns.back().empty()) return Unknown("the pre-tokenizer", parts);
    }
    if (!to_bytes) Unknown("the pre-tokenizer", parts);
  }

  // How spaces become the mark and back.
  void ReadSpaces() {
    const std::string before =
        DescribeAll(PartsOf(At(files_.tokenizer, "normalizer"), "normalizers"), DescribeStep);
    const Json& splitter = At(files_.tokenizer, "pre_tokenizer");
    const std::string split = DescribeAll(PartsOf(splitter, "pretokenizers"), DescribeStep);
    const std::string after =
        DescribeAll(PartsOf(At(files_.tokenizer, "decoder"), "decoders"), DescribeStep);
    const bool metaspace = split == "Metaspace";
    if (metaspace && before.empty()) {
      if (Text(At(splitter, "replacement")) != kSpaceMark) return Unknown("the mark of", "spaces");
      const std::string_view scheme = Text(At(splitter, "prepend_scheme"));
      const bool old = Flag(splitter, "add_prefix_space", true);
      bundle_.space_prefix = scheme == "never" || (scheme.empty() && !old) ? SpacePrefix::kNone
                             : scheme == "first" ? SpacePrefix::kTextWithout
                                                 : SpacePrefix::kPartsWithout;
      each_space_splits_ = Flag(splitter, "split", true);
    } else if (before == "Prepend '_' + Replace ' ' by '_'" && split.empty()) {
      bundle_.space_prefix = SpacePrefix::kParts;
    } else if (before == "Replace ' ' by '_'" &&
               (split.empty() || split == "Split by ' ', MergedWithPrevious")) {
      bundle_.space_prefix = SpacePrefix::kNone;
    } else {
      return Unknown("the normalizer",
                     Cat(Quote(before), " with the pre-tokenizer ", Quote(split)));
    }
    const bool strips = bundle_.space_prefix != SpacePrefix::kNone;
    std::string expected = "Replace '_' by ' ' + ByteFallback + Fuse";
    if (strips) expected += " + Strip a space";
    if (after != expected && after != "Metaspace") Unknown("the decoder", Quote(after));
  }

  // Where each space begins a piece, no token may have one behind its beginning.
  void CheckSpaces() {
    for (size_t id = 0; each_space_splits_ && ok() && id < bundle_.tokens.size(); ++id) {
      if (bundle_.kinds[id] == TokenKind::kNormal &&
          bundle_.tokens[id].find(kSpaceMark, 1) != std::string::npos) {
        Unknown("a pre-tokenizer that splits at each space, with the token",
                Quote(bundle_.tokens[id]));
      }
    }
  }

  void Put(std::string_view text, const Json& id, TokenKind kind) {
    const uint64_t count = bundle_.tokens.size();
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= count) {
      return Fail(
          InvalidArgument("tokenizer.json: token ", Quote(text), " has no id below ", count));
    }
    const auto at = id.get<uint64_t>();
    if (placed_[at] && bundle_.tokens[at] != text) {
      return Fail(InvalidArgument("tokenizer.json: two tokens have the id ", at, ": ",
                                  Quote(bundle_.tokens[at]), " and ", Quote(text)));
    }
    placed_[at] = true;
    bundle_.tokens[at] = text;
    bundle_.kinds[at] = kind;
  }

  void ReadTokens() {
    const Json& vocabulary = At(model_, "vocab");
    const Json& added = At(files_.tokenizer, "added_tokens");
    if (!vocabulary.is_object()) {
      return Fail(InvalidArgument("tokenizer.json: model.vocab is no object"));
    }
    const uint64_t count = std::max(HfTokenCount(files_.tokenizer), files_.rows);
    if (count == 0 || count > kMaxTokens) {
      return Fail(InvalidArgument("tokenizer.json has ", count, " tokens, not 1..", kMaxTokens));
    }
    bundle_.tokens.assign(count, {});
    bundle_.kinds.assign(count, TokenKind::kNormal);
    placed_.assign(count, false);
    const bool falls_back = !byte_level_ && Flag(model_, "byte_fallback", false);
    for (const auto& [text, id] : vocabulary.items()) {
      const bool byte = falls_back && text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
      Put(text, id, byte ? TokenKind::kByte : TokenKind::kNormal);
    }
    if (const std::string_view unknown = Text(At(model_, "unk_token")); !byte_level_ && ok()) {
      const auto found = vocabulary.find(std::string(unknown));
      if (found != vocabulary.end() && found->is_number_unsigned()) {
        bundle_.unknown = static_cast<TokenId>(found->get<uint64_t>());
      }
    }
    if (added.is_array()) {
      for (const Json& token : added) {
        Put(Text(At(token, "content")), At(token, "id"),
            Flag(token, "special", false) ? TokenKind::kControl : TokenKind::kUserDefined);
        if (!ok()) return;
        const AddedTokenRule rule{.id = static_cast<TokenId>(At(token, "id").get<uint64_t>()),
                                  .strips_left = Flag(token, "lstrip", false),
                                  .strips_right = Flag(token, "rstrip", false),
                                  .whole_word = Flag(token, "single_word", false)};
        if (rule != AddedTokenRule{.id = rule.id}) bundle_.added_rules.push_back(rule);
      }
    }
    for (size_t id = 0; id < count; ++id) {
      if (placed_[id]) continue;
      bundle_.tokens[id] = Cat("[PAD", id, "]");
      bundle_.kinds[id] = TokenKind::kUnused;
    }
  }

  void ReadMerges() {
    const Json& merges = At(model_, "merges");
    if (!merges.is_array()) return Fail(InvalidArgument("tokenizer.json: model.merges is no list"));
    for (const Json& merge : merges) {
      if (merge.is_string()) {
        bundle_.merges.push_back(merge.get<std::string>());
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        bundle_.merges.push_back(Cat(Text(merge[0]), " ", Text(merge[1])));
      } else {
        return Fail(InvalidArgument("tokenizer.json: merge ", bundle_.merges.size(),
                                    " is neither a string nor two"));
      }
    }
  }

  TokenId Find(std::string_view text) {
    const auto found = std::ranges::find(bundle_.tokens, text);
    if (found != bundle_.tokens.end()) return static_cast<TokenId>(found - bundle_.tokens.begin());
    Fail(InvalidArgument("tokenizer_config.json: ", Quote(text), " is not in the vocabulary"));
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
        Fail(InvalidArgument("eos_token_id ", id, " is outside the vocabulary of ",
                             bundle_.tokens.size()));
      }
      const auto end = static_cast<TokenId>(id);
      if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
    }
    TokenId* const places[] = {&bundle_.eos, &bundle_.eot, &bundle_.eom};
    if (ends.size() > std::size(places)) {
      return Fail(Unimplemented(ends.size(), " tokens that end an answer are not supported; ",
                                std::size(places), " are"));
    }
    for (size_t i = 0; i < ends.size(); ++i) *places[i] = ends[i];
    const Json& adds = At(config, "add_bos_token");
    bundle_.add_bos = adds.is_boolean() ? adds.get<bool>() : TemplateBegins();
    bundle_.add_eos = Flag(config, "add_eos_token", false);
  }

  // Whether the post-processor puts the bos token in front of a text.
  bool TemplateBegins() const {
    const auto begins = [&](const Json& part) {
      if (TypeOf(part) != "TemplateProcessing") return false;
      const Json& single = At(part, "single");
      if (!single.is_array() || single.empty()) return false;
      const std::string_view first = Text(At(At(single[0], "SpecialToken"), "id"));
      return bundle_.bos >= 0 && first == bundle_.tokens[static_cast<size_t>(bundle_.bos)];
    };
    const Json& post = At(files_.tokenizer, "post_processor");
    const Json& parts = At(post, "processors");
    return begins(post) || (parts.is_array() && std::any_of(parts.begin(), parts.end(), begins));
  }

  void ReadTemplate() {
    bundle_.chat_template = files_.chat_template;
    const Json& own = At(files_.tokenizer_config, "chat_template");
    if (bundle_.chat_template.has_value()) return;
    if (own.is_string()) bundle_.chat_template = own.get<std::string>();
    if (!own.is_array()) return;
    for (const Json& named : own) {
      if (Text(At(named, "name")) == "default") {
        bundle_.chat_template = std::string(Text(At(named, "template")));
      }
    }
  }

  const HfTokenizerFiles& files_;
  const Json& model_;
  TokenizerBundle bundle_;
  bool byte_level_ = true;
  bool each_space_splits_ = false;
  std::vector<bool> placed_;
  absl::Status status_;
};

}  // namespace

uint64_t HfTokenCount(const Json& tokenizer) {
  const Json& vocabulary = At(At(tokenizer, "model"), "vocab");
  uint64_t count = vocabulary.is_array() ? vocabulary.size() : 0;
  const auto cover = [&](const Json& id) {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    if (id.is_number_unsigned()) count = std::max(count, std::min(id.get<uint64_t>(), kMost) + 1);
  };
  if (vocabulary.is_object()) std::for_each(vocabulary.begin(), vocabulary.end(), cover);
  const Json& added = At(tokenizer, "added_tokens");
  if (!added.is_array()) return count;
  for (const Json& token : added) cover(At(token, "id"));
  return count;
}

absl::StatusOr<TokenizerBundle> ReadHfTokenizer(const HfTokenizerFiles& files) {
  return Reader(files).Read();
}

}  // namespace flotilla::model
