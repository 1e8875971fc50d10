#include "model/huggingface/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "model/huggingface/hf_text_steps.h"
#include "model/padding_token.h"
#include "model/text/space_mark.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

constexpr size_t kMaxPieces = 1 << 20;

// The fields of a protobuf message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  // Reads the next field. False at the end, and where no field begins (see `bad`).
  bool Next() {
    uint64_t key = 0;
    if (rest_.empty() || !Varint(key)) return false;
    number = key >> 3;
    value = 0;
    bytes = {};
    switch (key & 7) {
      case 0:
        return Varint(value);
      case 1:
        return Fixed(8);
      case 2: {
        uint64_t size = 0;
        if (!Varint(size) || size > rest_.size()) return Fail();
        bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        return Fixed(4);
      default:
        return Fail();
    }
  }

  uint64_t number = 0;     // of the field
  uint64_t value = 0;      // of a number
  std::string_view bytes;  // of a text, of bytes or of a message
  bool bad = false;

  float as_float() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }

 private:
  bool Fail() {
    bad = true;
    return false;
  }
  bool Varint(uint64_t& out) {
    out = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      out |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return Fail();
  }
  bool Fixed(size_t size) {
    if (rest_.size() < size) return Fail();
    for (size_t i = size; i > 0; --i) value = value << 8 | static_cast<uint8_t>(rest_[i - 1]);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

// The numbers of a model that matter here, as the trainer and the normalizer of SentencePiece
// default them.
struct SentencePieceSettings {
  uint64_t model_type = 1;
  bool space_behind = false;
  int32_t bos = 1, eos = 2;
  std::string_view map;
  bool dummy_prefix = true, removes_spaces = true, escapes_spaces = true;
};

class PieceReader {
 public:
  absl::StatusOr<TokenizerBundle> Read(std::string_view bytes) && {
    Fields model(bytes);
    while (model.Next()) {
      if (model.number == 1) {
        if (bundle_.tokens.size() == kMaxPieces) {
          return InvalidArgument("tokenizer.model has more than ", kMaxPieces, " pieces");
        }
        if (absl::Status status = ReadPiece(model.bytes); !status.ok()) return status;
      } else if (model.number == 2) {
        ReadTrainer(model.bytes);
      } else if (model.number == 3) {
        ReadNormalizer(model.bytes);
      }
    }
    bad_ = bad_ || model.bad;
    if (bad_ || bundle_.tokens.empty()) {
      return InvalidArgument("tokenizer.model is no message of SentencePiece with pieces");
    }
    return Finish();
  }

 private:
  absl::Status ReadPiece(std::string_view bytes) {
    Fields piece(bytes);
    std::string_view text;
    float score = 0;
    uint64_t kind = 1;
    while (piece.Next()) {
      if (piece.number == 1) text = piece.bytes;
      if (piece.number == 2) score = piece.as_float();
      if (piece.number == 3) kind = piece.value;
    }
    bad_ = bad_ || piece.bad;
    const size_t id = bundle_.tokens.size();
    if (kind < 1 || kind > static_cast<uint64_t>(TokenKind::kByte)) {
      return InvalidArgument("tokenizer.model: piece ", id, " has type ", kind);
    }
    if (FindInvalidUtf8(text) != std::string_view::npos) {
      return InvalidArgument("tokenizer.model: piece ", id, " is not UTF-8");
    }
    if (static_cast<TokenKind>(kind) == TokenKind::kUnknown) {
      bundle_.unknown = static_cast<TokenId>(id);
    }
    bundle_.tokens.emplace_back(text);
    bundle_.kinds.push_back(static_cast<TokenKind>(kind));
    bundle_.scores.push_back(score);
    return absl::OkStatus();
  }

  void ReadTrainer(std::string_view bytes) {
    Fields trainer(bytes);
    while (trainer.Next()) {
      if (trainer.number == 3) settings_.model_type = trainer.value;
      if (trainer.number == 24) settings_.space_behind = trainer.value != 0;
      if (trainer.number == 41) settings_.bos = static_cast<int32_t>(trainer.value);
      if (trainer.number == 42) settings_.eos = static_cast<int32_t>(trainer.value);
    }
    bad_ = bad_ || trainer.bad;
  }

  void ReadNormalizer(std::string_view bytes) {
    Fields normalizer(bytes);
    while (normalizer.Next()) {
      if (normalizer.number == 2) settings_.map = normalizer.bytes;
      if (normalizer.number == 3) settings_.dummy_prefix = normalizer.value != 0;
      if (normalizer.number == 4) settings_.removes_spaces = normalizer.value != 0;
      if (normalizer.number == 5) settings_.escapes_spaces = normalizer.value != 0;
    }
    bad_ = bad_ || normalizer.bad;
  }

  // The id of a token that is there, or -1.
  TokenId Existing(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < bundle_.tokens.size() ? id : -1;
  }

  absl::StatusOr<TokenizerBundle> Finish() {
    constexpr uint64_t kUnigram = 1, kBpe = 2;
    if (settings_.model_type != kUnigram && settings_.model_type != kBpe) {
      return Unimplemented("tokenizer.model: model_type ", settings_.model_type,
                           " is not supported; 1 (unigram) and 2 (bpe) are");
    }
    if (!settings_.escapes_spaces) {
      return Unimplemented("tokenizer.model: escape_whitespaces = false is not supported");
    }
    const bool unigram = settings_.model_type == kUnigram;
    bundle_.kind = unigram ? "t5" : "llama";
    bundle_.bos = Existing(settings_.bos);
    bundle_.eos = Existing(settings_.eos);
    if (!unigram && settings_.map.empty() && !settings_.removes_spaces && !settings_.space_behind) {
      bundle_.space_prefix = settings_.dummy_prefix ? SpacePrefix::kParts : SpacePrefix::kNone;
    } else {
      MakeSteps();
    }
    return std::move(bundle_);
  }

  void MakeSteps() {
    using Kind = TextStep::Kind;
    TextSteps& steps = bundle_.steps.emplace();
    if (!settings_.map.empty()) {
      steps.normalizer.push_back({.kind = Kind::kPrecompiled,
                                  .flags = TextStep::kLongest,
                                  .text = std::string(settings_.map)});
    }
    const bool prefix = settings_.dummy_prefix && !settings_.space_behind;
    TextStep spaces{.kind = Kind::kSentencePiece, .flags = TextStep::kFloatScores};
    if (prefix) spaces.flags |= TextStep::kSpaceFirst;
    if (settings_.dummy_prefix && settings_.space_behind) spaces.flags |= TextStep::kSpaceBehind;
    if (settings_.removes_spaces) spaces.flags |= TextStep::kExtraSpaces;
    steps.normalizer.push_back(std::move(spaces));
    steps.decoder = {{.kind = Kind::kReplace, .pattern = std::string(kSpaceMark), .text = " "},
                     {.kind = Kind::kByteFallback},
                     {.kind = Kind::kFuse}};
    if (prefix || settings_.removes_spaces) {
      steps.decoder.push_back({.kind = Kind::kStrip, .pattern = " ", .start = 1});
    }
  }

  TokenizerBundle bundle_;
  SentencePieceSettings settings_;
  bool bad_ = false;
};

}  // namespace

absl::StatusOr<TokenizerBundle> ReadSentencePieceModel(std::string_view bytes) {
  return PieceReader().Read(bytes);
}

absl::StatusOr<TokenizerBundle> ReadSentencePieceFolder(std::string_view bytes, const Json& config,
                                                        uint64_t rows) {
  constexpr std::string_view kClasses[] = {"", "LlamaTokenizer", "CodeLlamaTokenizer",
                                           "GemmaTokenizer", "T5Tokenizer"};
  std::string_view name = JsonText(JsonAt(config, "tokenizer_class"));
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (std::ranges::find(kClasses, name) == std::end(kClasses)) {
    return Unimplemented("tokenizer_config.json: ", Quoted(name),
                         " is not supported without tokenizer.json");
  }
  auto bundle = ReadSentencePieceModel(bytes);
  if (!bundle.ok()) return bundle.status();
  std::vector<std::pair<uint64_t, const Json*>> added;
  uint64_t count = std::max<uint64_t>(bundle->tokens.size(), rows);
  const bool has_rows = rows >= bundle->tokens.size();
  for (const auto& [key, token] : JsonAt(config, "added_tokens_decoder").items()) {
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id >= kMaxPieces) {
      return InvalidArgument("tokenizer_config.json: the added token ", Quoted(key),
                             " has no id below ", kMaxPieces);
    }
    if (has_rows && id >= rows) continue;  // no vector belongs to it
    count = std::max(count, id + 1);
    added.emplace_back(id, &token);
  }
  if (count > kMaxPieces) {
    return InvalidArgument("tokenizer.model: ", count, " tokens, not at most ", kMaxPieces);
  }
  for (uint64_t id = bundle->tokens.size(); id < count; ++id) {
    bundle->tokens.push_back(PaddingToken(id));
  }
  bundle->kinds.resize(count, TokenKind::kUnused);
  bundle->scores.resize(count, 0);
  for (const auto& [place, token] : added) {
    const auto id = static_cast<TokenId>(place);
    bundle->tokens[place] = JsonText(JsonAt(*token, "content"));
    if (bundle->kinds[place] != TokenKind::kUnknown) {
      bundle->kinds[place] =
          JsonFlag(*token, "special", false) ? TokenKind::kControl : TokenKind::kUserDefined;
    }
    AddedTokenRule rule = ReadAddedRule(id, *token);
    rule.normalized = false;  // SentencePiece looks for them in the text as it comes
    if (rule != AddedTokenRule{.id = id}) bundle->added_rules.push_back(rule);
  }
  bundle->add_bos = bundle->kind == "llama";
  bundle->add_eos = bundle->kind != "llama";
  return bundle;
}

}  // namespace flotilla::model
