#include "model/gguf/gguf_checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_parts.h"
#include "model/gguf/gguf_text.h"
#include "model/padding_token.h"

namespace flotilla::model {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";
constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kKinds[] = "tokenizer.ggml.token_type";

// A missing key is an error of the file, so its NotFound becomes InvalidArgument.
absl::Status AsInvalid(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::InvalidArgumentError(status.message());
}

// A configuration's keys have the architecture in front of them; "general.*" do not.
class GgufConfiguration final : public Configuration {
 public:
  explicit GgufConfiguration(const GgufFile& file) : file_(file) {}

  absl::StatusOr<std::string_view> architecture() const override {
    auto name = file_.GetString("general.architecture");
    if (!name.ok()) return AsInvalid(name.status());
    return name;
  }
  std::string_view title() const override {
    return file_.GetString("general.name").value_or(std::string_view());
  }
  std::string NameOf(std::string_view key) const override {
    return Cat(architecture().value_or(std::string_view()), ".", key);
  }
  bool Has(std::string_view key) const override { return file_.Find(NameOf(key)) != nullptr; }
  absl::StatusOr<uint64_t> Uint(std::string_view key) const override {
    return file_.GetUint(NameOf(key));
  }
  absl::StatusOr<double> Float(std::string_view key) const override {
    return file_.GetFloat(NameOf(key));
  }
  absl::StatusOr<std::string_view> String(std::string_view key) const override {
    return file_.GetString(NameOf(key));
  }
  absl::StatusOr<bool> Bool(std::string_view key) const override {
    return file_.GetBool(NameOf(key));
  }
  absl::StatusOr<std::vector<double>> Numbers(std::string_view key) const override {
    const std::string name = NameOf(key);
    if (const auto one = file_.GetFloat(name); one.ok()) return std::vector<double>{*one};
    if (const auto one = file_.GetUint(name); one.ok()) {
      return std::vector<double>{static_cast<double>(*one)};
    }
    if (const auto floats = file_.GetFloats(name); floats.ok()) {
      return std::vector<double>(floats->begin(), floats->end());
    }
    if (const auto flags = file_.GetBools(name); flags.ok()) {
      return std::vector<double>(flags->begin(), flags->end());
    }
    const auto ints = file_.GetInts(name);
    if (!ints.ok()) return ints.status();
    return std::vector<double>(ints->begin(), ints->end());
  }

 private:
  const GgufFile& file_;
};

// Reads the values of a tokenizer. The first failure sticks, and later reads return nothing.
class TokenizerReader {
 public:
  explicit TokenizerReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<TokenizerBundle> Read() && {
    TokenizerBundle bundle;
    bundle.kind = Value(file_.GetString("tokenizer.ggml.model"));
    bundle.tokens = Strings(kTokens);
    ReadKinds(bundle);
    if (Has("tokenizer.ggml.pre"))
      bundle.pretokenizer = Value(file_.GetString("tokenizer.ggml.pre"));
    if (Has("tokenizer.ggml.merges")) bundle.merges = Strings("tokenizer.ggml.merges");
    if (Has("tokenizer.ggml.scores")) {
      const auto scores = Value(file_.GetFloats("tokenizer.ggml.scores"));
      bundle.scores.assign(scores.begin(), scores.end());
    }
    const size_t count = bundle.tokens.size();
    if (!bundle.scores.empty() && bundle.scores.size() != count) {
      Fail(InvalidArgument("tokenizer.ggml: ", count, " tokens and ", bundle.scores.size(),
                           " scores"));
    }
    bundle.bos = Id("bos", count);
    bundle.eos = Id("eos", count);
    bundle.eot = Id("eot", count);
    bundle.eom = Id("eom", count);
    bundle.unknown = Id("unknown", count);
    bundle.pad = PaddingId(count);
    bundle.sampling = ReadSampling();
    bundle.add_bos = Flag("tokenizer.ggml.add_bos_token");
    bundle.add_eos = Flag("tokenizer.ggml.add_eos_token");
    const bool has_rules = bundle.kind == "gemma4";
    if (has_rules) ReadCharacterRules(bundle);
    if (bundle.kind == "llama") {
      const bool prefix = Flag("tokenizer.ggml.add_space_prefix").value_or(!has_rules);
      bundle.space_prefix = prefix ? SpacePrefix::kParts : SpacePrefix::kNone;
    }
    if (bundle.kind == "bert") ReadWordPiece(bundle);
    if (bundle.kind == "t5") ReadUnigram(bundle);
    if (Has("tokenizer.chat_template")) {
      bundle.chat_template = Value(file_.GetString("tokenizer.chat_template"));
    }
    ReadMoreTemplates(bundle);
    if (!status_.ok()) return status_;
    return bundle;
  }

 private:
  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = AsInvalid(status);
  }
  bool Has(std::string_view key) const { return file_.Find(key) != nullptr; }
  template <class T>
  T Value(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    Fail(value.status());
    return T();
  }

  void ReadMoreTemplates(TokenizerBundle& bundle) {
    constexpr size_t kMost = 16;
    constexpr std::string_view kNames = "tokenizer.chat_templates";
    if (!Has(kNames)) return;
    const std::vector<std::string> names = Strings(kNames);
    if (names.size() > kMost) {
      return Fail(InvalidArgument(kNames, " has ", names.size(), " names, not at most ", kMost));
    }
    for (const std::string& name : names) {
      const std::string key = Cat("tokenizer.chat_template.", name);
      bundle.more_templates.push_back(
          {.name = name, .text = std::string(Value(file_.GetString(key)))});
    }
  }

  std::vector<std::string> Strings(std::string_view key) {
    const std::vector<std::string_view> views = Value(file_.GetStrings(key));
    return {views.begin(), views.end()};
  }

  std::optional<bool> Flag(std::string_view key) {
    if (!Has(key)) return std::nullopt;
    return Value(file_.GetBool(key));
  }

  TokenId Id(std::string_view name, size_t count) {
    const std::string key = Cat("tokenizer.ggml.", name, "_token_id");
    if (!Has(key)) return -1;
    const uint64_t id = Value(file_.GetUint(key));
    if (id < count) return static_cast<TokenId>(id);
    Fail(InvalidArgument(key, " = ", id, " is outside the vocabulary of ", count));
    return -1;
  }

  // Nothing but templates needs it, so a file that has it wrong is no worse without it.
  TokenId PaddingId(size_t count) const {
    const auto id = file_.GetUint("tokenizer.ggml.padding_token_id");
    return id.ok() && *id < count ? static_cast<TokenId>(*id) : -1;
  }

  // As llama.cpp's converter writes it.
  std::vector<SamplingDefault> ReadSampling() const {
    constexpr std::pair<const char*, const char*> kNames[] = {
        {"temp", "temperature"},
        {"top_k", "top_k"},
        {"top_p", "top_p"},
        {"min_p", "min_p"},
        {"xtc_probability", "xtc_probability"},
        {"xtc_threshold", "xtc_threshold"},
        {"penalty_repeat", "repetition_penalty"}};
    std::vector<SamplingDefault> sampling;
    for (const auto& [key, name] : kNames) {
      const std::string path = Cat("general.sampling.", key);
      if (!Has(path)) continue;
      double value = std::numeric_limits<double>::quiet_NaN();
      if (const auto real = file_.GetFloat(path); real.ok()) value = *real;
      if (const auto integer = file_.GetUint(path); integer.ok()) {
        value = static_cast<double>(*integer);
      }
      sampling.push_back({.name = name, .value = value});
    }
    return sampling;
  }

  // Gemma 4 has rules, as a tokenizer.json has them, where "llama" has scores.
  void ReadCharacterRules(TokenizerBundle& bundle) {
    if (bundle.merges.empty()) {
      return Fail(InvalidArgument("tokenizer.ggml.merges: the tokenizer model '", bundle.kind,
                                  "' has no rules"));
    }
    bundle.kind = "llama";
  }

  // The file has a mark in front of tokens that begin a word, and nothing in front of the others.
  void ReadWordPiece(TokenizerBundle& bundle) {
    using Kind = TextStep::Kind;
    bundle.word_prefix = "##";
    bundle.max_word_characters = 1 << 20;  // there is no bound
    for (size_t id = 0; id < bundle.kinds.size(); ++id) {
      if (bundle.kinds[id] != TokenKind::kNormal) continue;
      std::string& token = bundle.tokens[id];
      token = token.starts_with(kSpaceMark) ? token.substr(kSpaceMark.size())
                                            : Cat(bundle.word_prefix, token);
    }
    bundle.steps = TextSteps{.normalizer = {{.kind = Kind::kBertNormalizer,
                                             .flags = TextStep::kCleanText | TextStep::kChinese |
                                                      TextStep::kAccents | TextStep::kLower}},
                             .pre_tokenizer = {{.kind = Kind::kBertPreTokenizer}},
                             .decoder = {{.kind = Kind::kWordPiece,
                                          .flags = TextStep::kCleanUp,
                                          .pattern = bundle.word_prefix}}};
    const TokenId begin = Id("cls", bundle.tokens.size());
    const TokenId end = Id("seperator", bundle.tokens.size());  // as the key is spelled
    if (begin >= 0 && bundle.add_bos.value_or(true)) bundle.prefix.push_back(begin);
    if (end >= 0 && bundle.add_eos.value_or(true)) bundle.suffix.push_back(end);
    bundle.add_bos = bundle.add_eos = false;
  }

  void ReadUnigram(TokenizerBundle& bundle) {
    using Kind = TextStep::Kind;
    constexpr char kMap[] = "tokenizer.ggml.precompiled_charsmap";
    const bool prefix = Flag("tokenizer.ggml.add_space_prefix").value_or(true);
    const bool removes = Flag("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
    TextSteps& steps = bundle.steps.emplace();
    if (Has(kMap)) {
      TextStep step{.kind = Kind::kPrecompiled, .flags = TextStep::kLongest};
      for (const int64_t byte : Value(file_.GetInts(kMap))) {
        step.text += static_cast<char>(byte);
      }
      if (!step.text.empty()) steps.normalizer.push_back(std::move(step));
    }
    TextStep spaces{.kind = Kind::kSentencePiece};
    if (prefix) spaces.flags |= TextStep::kSpaceFirst;
    if (removes) spaces.flags |= TextStep::kExtraSpaces;
    steps.normalizer.push_back(std::move(spaces));
    steps.decoder = {{.kind = Kind::kReplace, .pattern = std::string(kSpaceMark), .text = " "},
                     {.kind = Kind::kByteFallback},
                     {.kind = Kind::kFuse}};
    if (prefix) steps.decoder.push_back({.kind = Kind::kStrip, .pattern = " ", .start = 1});
    if (!bundle.add_eos.has_value()) bundle.add_eos = true;
  }

  void ReadKinds(TokenizerBundle& bundle) {
    const std::vector<int64_t> kinds = Value(file_.GetInts(kKinds));
    if (kinds.size() != bundle.tokens.size()) {
      Fail(InvalidArgument("tokenizer.ggml: ", bundle.tokens.size(), " tokens and ", kinds.size(),
                           " token types"));
      return;
    }
    bundle.kinds.reserve(kinds.size());
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] < 1 || kinds[i] > static_cast<int64_t>(TokenKind::kByte)) {
        Fail(InvalidArgument("tokenizer.ggml.token_type: token ", i, " has type ", kinds[i]));
        return;
      }
      bundle.kinds.push_back(static_cast<TokenKind>(kinds[i]));
    }
  }

  const GgufFile& file_;
  absl::Status status_;
};

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(GgufParts parts, std::string path)
      : path_(std::move(path)),
        parts_(std::move(parts)),
        first_(parts_.first()),
        configuration_(first_) {}

  std::string format() const override {
    const size_t parts = parts_.files().size();
    return parts == 1 ? Cat("GGUF v", first_.version())
                      : Cat("GGUF v", first_.version(), " in ", parts, " parts");
  }
  std::string_view path() const override { return path_; }
  const Configuration& configuration() const override { return configuration_; }
  std::span<const Tensor> tensors() const override { return parts_.tensors(); }
  const Tensor* FindTensor(std::string_view name) const override { return parts_.FindTensor(name); }
  uint64_t token_count() const override {
    const auto tokens = first_.GetStrings(kTokens);
    if (!tokens.ok()) return 0;
    const auto kinds = first_.GetInts(kKinds);
    if (!kinds.ok() || kinds->size() != tokens->size()) return tokens->size();
    return CountWithoutPadding(*tokens, *kinds);
  }
  absl::StatusOr<TokenizerBundle> ReadTokenizer() const override {
    auto bundle = TokenizerReader(first_).Read();
    if (!bundle.ok()) return InFile(path_, bundle.status());
    return bundle;
  }
  void ReleasePages() const override {
    for (const GgufFile& file : parts_.files()) file.ReleasePages();
  }
  uint64_t MetadataHash() const override {
    std::vector<uint64_t> hashes;
    for (const GgufFile& file : parts_.files()) {
      hashes.push_back(XXH3_64bits(file.metadata().data(), file.metadata().size()));
    }
    return hashes.size() == 1 ? hashes[0]
                              : XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
  }
  std::vector<MetadataEntry> Metadata() const override {
    std::vector<std::pair<std::string_view, const GgufValue*>> values;
    for (const auto& [key, value] : first_.values()) values.emplace_back(key, &value);
    std::ranges::sort(values);
    std::vector<MetadataEntry> entries;
    for (const auto& [key, value] : values) {
      entries.push_back({EscapedText(key), TypeText(*value), ValueText(*value)});
    }
    return entries;
  }

 private:
  const std::string path_;
  const GgufParts parts_;
  const GgufFile& first_;
  const GgufConfiguration configuration_;
};

absl::StatusOr<std::shared_ptr<const Checkpoint>> Wrap(absl::StatusOr<GgufParts> parts,
                                                       const std::string& path) {
  if (!parts.ok()) return parts.status();
  return std::make_shared<const GgufCheckpoint>(*std::move(parts), path);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenGguf(const std::string& path) {
  return Wrap(GgufParts::Open(path), path);
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> ParseGguf(
    std::span<const std::span<const std::byte>> parts) {
  std::vector<GgufFile> files;
  std::vector<std::string> names;
  for (const std::span<const std::byte> part : parts) {
    auto file = GgufFile::Parse(part);
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
    names.push_back(Cat("part ", files.size()));
  }
  return Wrap(GgufParts::Join(std::move(files), names), "");
}

}  // namespace flotilla::model
