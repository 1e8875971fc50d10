#include "model/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include "model/text/byte_level.h"
#include "model/text/characters.h"
#include "model/text/detokenizer.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxVocab = 1 << 20;
// Bounds the look-ups at one place of a text: one for each length of an added token. Published ones
// have at most 100 bytes.
constexpr size_t kMaxAddedBytes = 256;

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // as CharacterBpe reads it

// The last character before `at`, which is not 0; the text is UTF-8.
uint32_t CharacterBefore(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  return ReadUtf8(text, at).code_point;
}

absl::Status TooMany(size_t max_tokens) {
  return absl::OutOfRangeError(Cat("the text has more than ", max_tokens, " tokens"));
}

}  // namespace

struct Tokenizer::Run {
  size_t end;  // offset in the whole text
  bool special_allowed;
};

absl::StatusOr<Tokenizer> Tokenizer::Create(const TokenizerBundle& bundle) {
  const bool characters = bundle.kind == "llama", byte_level = bundle.kind == "gpt2";
  if (!byte_level && !characters && bundle.kind != "t5" && bundle.kind != "bert") {
    return Unimplemented("tokenizer model '", bundle.kind.substr(0, 64),
                         "' is not supported; supported: bert, gpt2, llama, t5");
  }
  Tokenizer tokenizer;
  tokenizer.byte_level_ = byte_level;
  if (bundle.steps.has_value()) {
    auto pipeline = TextPipeline::Create(*bundle.steps);
    if (!pipeline.ok()) return pipeline.status();
    tokenizer.pipeline_ = *std::move(pipeline);
    tokenizer.ignores_merges_ = bundle.ignores_merges;
  } else if (byte_level) {
    auto pretokenizer = Pretokenizer::Create(bundle);
    if (!pretokenizer.ok()) return pretokenizer.status();
    tokenizer.pretokenizer_ = *std::move(pretokenizer);
    tokenizer.ignores_merges_ = tokenizer.pretokenizer_->ignores_merges();
  } else if (!characters) {
    return InvalidArgument("tokenizer model '", bundle.kind, "' has no steps");
  }
  for (const AddedTokenRule& rule : bundle.added_rules) {
    tokenizer.added_rules_.emplace(rule.id, rule);
  }
  absl::Status status = tokenizer.ReadTokens(bundle);
  if (status.ok()) {
    status = characters   ? tokenizer.MakeCharacterBpe(bundle)
             : byte_level ? tokenizer.ReadMerges(bundle)
                          : tokenizer.MakePieceModel(bundle);
  }
  if (!status.ok()) return status;
  tokenizer.ReadSpecials(bundle);
  if (byte_level) {
    tokenizer.MarkWholePieces();
  } else {
    tokenizer.piece_caches_ = std::make_unique<PieceCaches>();
  }
  return tokenizer;
}

bool Tokenizer::AppendBytes(std::string_view token, TokenKind kind) {
  if (!byte_level_) {
    const bool plain = kind == Kind::kNormal || kind == Kind::kUserDefined || kind == Kind::kUnused;
    const std::string text = plain ? WithSpaces(token) : std::string(token);
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    // Spaces are no part of added tokens: a token that has some is one of many characters.
    return kind == Kind::kNormal || (kind == Kind::kUserDefined && text != token);
  }
  std::string bytes;
  const bool merged = kind == Kind::kNormal && AppendByteLevel(token, bytes);
  if (!merged) bytes = token;
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return merged;
}

absl::StatusOr<std::vector<std::string>> Tokenizer::ReadTexts(const TokenizerBundle& bundle) {
  std::vector<std::string> texts;
  if (!pipeline_.has_value() || byte_level_) return texts;
  size_t most = 64 << 20;  // bytes; decoders of files add a space at most
  for (const std::string& token : bundle.tokens) most += 4 * token.size();
  const TokenText& decoder = pipeline_->token_text();
  size_t total = 0;
  for (size_t i = 0; i < bundle.tokens.size(); ++i) {
    const bool special = bundle.kinds[i] == Kind::kControl || bundle.kinds[i] == Kind::kUnknown;
    texts.push_back(special ? bundle.tokens[i] : decoder.Of(bundle.tokens[i], /*first=*/false));
    total += texts.back().size();
    if (decoder.first_differs() && !special) {
      std::string first = decoder.Of(bundle.tokens[i], /*first=*/true);
      total += first.size();
      if (first != texts.back()) first_bytes_.emplace(static_cast<TokenId>(i), std::move(first));
    }
    if (total > most) return InvalidArgument("tokenizer: the decoder makes the tokens too large");
  }
  return texts;
}

absl::Status Tokenizer::ReadTokens(const TokenizerBundle& bundle) {
  const size_t count = bundle.tokens.size();
  if (count == 0 || count > kMaxVocab || bundle.kinds.size() != count) {
    return InvalidArgument("tokenizer: ", count, " tokens and ", bundle.kinds.size(),
                           " token types (wanted: as many, 1..", kMaxVocab, ")");
  }
  const auto texts = ReadTexts(bundle);
  if (!texts.ok()) return texts.status();
  size_t total = 0;
  for (const std::string& token : texts->empty() ? bundle.tokens : *texts) total += token.size();
  if (total > UINT32_MAX) return InvalidArgument("tokenizer: the tokens are too large");
  bytes_.reserve(total);  // never grows again, so views into it stay valid
  offsets_.reserve(count + 1);
  kinds_.reserve(count);
  by_bytes_.reserve(count);
  offsets_.push_back(0);
  for (size_t i = 0; i < count; ++i) {
    const std::string_view token = bundle.tokens[i];
    const Kind kind = bundle.kinds[i];
    const std::optional<uint8_t> byte = ByteOf(token);
    if (kind == Kind::kByte && (byte_level_ || !byte.has_value())) {
      return InvalidArgument("tokenizer: token ", i, " stands for a byte, which ",
                             byte_level_ ? "gpt2 does not have" : "is not written as <0xHH>");
    }
    kinds_.push_back(kind);
    const auto id = static_cast<TokenId>(i);
    bool merged = false;
    if (!texts->empty()) {
      bytes_.insert(bytes_.end(), (*texts)[i].begin(), (*texts)[i].end());
    } else if (kind == Kind::kByte) {
      bytes_.push_back(static_cast<char>(*byte));
    } else {
      merged = AppendBytes(token, kind);
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    const std::string_view bytes = TokenBytes(id);
    if (token.empty() || (bytes.empty() && texts->empty())) continue;
    if (kind != Kind::kUnused) bound_.AddToken(bytes);
    if (kind == Kind::kByte) {
      byte_tokens_[*byte] = id;
    } else if (merged) {
      by_bytes_.emplace(bytes, id);
      if (bytes.size() == 1 && byte_level_) {
        merges_.SetByteToken(static_cast<uint8_t>(bytes[0]), id);
        bound_.AddByte(static_cast<uint8_t>(bytes[0]));
      }
    } else if (kind != Kind::kNormal && kind != Kind::kUnused) {
      if (token.size() > kMaxAddedBytes) {
        return InvalidArgument("tokenizer: the added token ", i, " has ", token.size(),
                               " bytes, not at most ", kMaxAddedBytes);
      }
      added_.emplace(token, id);
      if (InModel(id)) by_bytes_.emplace(bytes, id);
      added_first_[static_cast<uint8_t>(token[0])] = true;
      added_sizes_.push_back(token.size());
    }
  }
  std::ranges::sort(added_sizes_, std::greater<>());
  added_sizes_.erase(std::unique(added_sizes_.begin(), added_sizes_.end()), added_sizes_.end());
  return absl::OkStatus();
}

absl::Status Tokenizer::MakeCharacterBpe(const TokenizerBundle& bundle) {
  if (!bundle.scores.empty() && bundle.scores.size() != kinds_.size()) {
    return InvalidArgument("tokenizer: ", kinds_.size(), " tokens and ", bundle.scores.size(),
                           " scores");
  }
  if (std::ranges::any_of(bundle.scores, [](double score) { return std::isnan(score); })) {
    return InvalidArgument("tokenizer: a score is not a number");
  }
  CharacterBpe::Vocabulary vocabulary{.texts = std::vector<std::string_view>(kinds_.size()),
                                      .bytes = byte_tokens_,
                                      .unknown = bundle.unknown,
                                      .merges = bundle.merges,
                                      .scores = bundle.scores,
                                      .fuses_unknown = bundle.fuses_unknown};
  for (const auto& [bytes, id] : by_bytes_) vocabulary.texts[static_cast<size_t>(id)] = bytes;
  std::vector<std::string> spaced(pipeline_.has_value() ? kinds_.size() : 0);
  for (size_t id = 0; id < spaced.size(); ++id) {
    if (InModel(static_cast<TokenId>(id))) spaced[id] = WithSpaces(bundle.tokens[id]);
    vocabulary.texts[id] = spaced[id];
  }
  auto characters = CharacterBpe::Create(vocabulary);
  if (!characters.ok()) return characters.status();
  characters_ = *std::move(characters);
  space_prefix_ = bundle.space_prefix;
  // Each byte costs a part of a token, if there are tokens for all of them. The mark of a space has
  // three bytes, which count as nothing.
  if (std::ranges::all_of(byte_tokens_, [](TokenId id) { return id >= 0; })) {
    constexpr uint8_t kMark[] = {0xe2, 0x96, 0x81};
    for (int byte = 0; byte < 256; ++byte) {
      if (std::ranges::find(kMark, byte) == std::end(kMark)) {
        bound_.AddByte(static_cast<uint8_t>(byte));
      }
    }
  }
  return absl::OkStatus();
}

bool Tokenizer::InModel(TokenId id) const {
  const Kind kind = kinds_[static_cast<size_t>(id)];
  if (kind != Kind::kUserDefined) return kind == Kind::kNormal;
  const auto rule = added_rules_.find(id);
  return rule != added_rules_.end() && rule->second.in_model;
}

absl::Status Tokenizer::MakePieceModel(const TokenizerBundle& bundle) {
  std::vector<std::string_view> texts(kinds_.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    if (InModel(static_cast<TokenId>(id))) texts[id] = bundle.tokens[id];
  }
  const bool exact = std::ranges::none_of(bundle.steps->normalizer, [](const TextStep& step) {
    return step.kind == TextStep::Kind::kSentencePiece && step.has(TextStep::kFloatScores);
  });
  const PieceVocabulary vocabulary{.texts = texts,
                                   .bytes = byte_tokens_,
                                   .unknown = bundle.unknown,
                                   .scores = bundle.scores,
                                   .single_precision = !exact,
                                   .word_prefix = bundle.word_prefix,
                                   .max_word_characters = bundle.max_word_characters};
  auto model = bundle.kind == "t5" ? MakeUnigram(vocabulary) : MakeWordPiece(vocabulary);
  if (!model.ok()) return model.status();
  piece_model_ = *std::move(model);
  return absl::OkStatus();
}

absl::Status Tokenizer::ReadMerges(const TokenizerBundle& bundle) {
  const std::vector<std::string>& merges = bundle.merges;
  if (merges.size() > UINT32_MAX) return InvalidArgument("tokenizer: too many merges");
  merges_.Reserve(merges.size());
  std::string both;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    // A space is not in the byte-level alphabet, so the first one separates.
    const size_t space = merge.find(' ');
    const auto fail = [&](std::string_view problem) {
      return InvalidArgument("tokenizer: merge rule ", rank, " ", problem);
    };
    if (space == std::string_view::npos) return fail("has no space");
    both.clear();
    if (!AppendByteLevel(merge.substr(0, space), both)) return fail("is not byte-level text");
    const size_t left_size = both.size();
    if (!AppendByteLevel(merge.substr(space + 1), both)) return fail("is not byte-level text");
    const std::string_view joined = both;
    const auto left = by_bytes_.find(joined.substr(0, left_size));
    const auto right = by_bytes_.find(joined.substr(left_size));
    const auto result = by_bytes_.find(joined);
    if (left == by_bytes_.end() || right == by_bytes_.end() || result == by_bytes_.end()) {
      return fail("names a token that is not in the vocabulary");
    }
    merges_.AddMerge(left->second, right->second, result->second, static_cast<uint32_t>(rank),
                     merges_.SeamOf(left->first, right->first));
  }
  return absl::OkStatus();
}

void Tokenizer::ReadSpecials(const TokenizerBundle& bundle) {
  bos_id_ = bundle.bos;
  eos_id_ = bundle.eos;
  const bool adds_bos =
      !pipeline_.has_value() && (!byte_level_ || pretokenizer_->adds_bos_by_default());
  add_bos_ = bundle.add_bos.value_or(adds_bos) && bos_id_ >= 0;
  add_eos_ = bundle.add_eos.value_or(false) && eos_id_ >= 0;
  prefix_ = bundle.prefix;
  suffix_ = bundle.suffix;
}

// Finds the tokens that a piece with the same text becomes. The look-up of a whole piece is right
// only for tokens that merging produces, and a vocabulary may have others.
void Tokenizer::MarkWholePieces() {
  whole_.assign(vocab_size(), ignores_merges_);
  if (ignores_merges_) return;
  std::vector<TokenId> ids;
  for (const auto& [bytes, id] : by_bytes_) {
    ids.clear();
    merges_.Encode(bytes, ids);
    whole_[id] = ids.size() == 1 && ids[0] == id;
  }
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) + 1 >= offsets_.size()) return {};
  return {bytes_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]};
}

std::string_view Tokenizer::FirstTokenBytes(TokenId id) const {
  const auto first = first_bytes_.find(id);
  return first == first_bytes_.end() ? TokenBytes(id) : std::string_view(first->second);
}

bool Tokenizer::IsSpecial(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= kinds_.size()) return false;
  return kinds_[id] == Kind::kControl || kinds_[id] == Kind::kUnknown;
}

TokenId Tokenizer::FindSpecial(std::string_view text) const {
  const auto it = added_.find(text);
  return it != added_.end() && IsSpecial(it->second) ? it->second : -1;
}

Tokenizer::Added Tokenizer::AddedTokenAt(std::string_view text, size_t plain_begin, size_t at,
                                         size_t run_end, bool special_allowed) const {
  constexpr Added kNone{-1, 0, 0};
  if (!MayBeginAdded(text[at])) return kNone;
  for (const size_t size : added_sizes_) {
    if (size > run_end - at) continue;
    const auto it = added_.find(text.substr(at, size));
    if (it == added_.end() || (IsSpecial(it->second) && !special_allowed)) continue;
    if (const Added added = WithRule(it->second, text, plain_begin, at, size); added.id >= 0)
      return added;
  }
  return kNone;
}

Tokenizer::Added Tokenizer::WithRule(TokenId id, std::string_view text, size_t plain_begin,
                                     size_t at, size_t size) const {
  Added added{id, at, at + size};
  const auto rule = added_rules_.find(id);
  if (rule == added_rules_.end()) return added;
  if (rule->second.whole_word &&
      ((at > 0 && IsWordCharacter(CharacterBefore(text, at))) ||
       (added.end < text.size() && IsWordCharacter(ReadUtf8(text, added.end).code_point)))) {
    return {-1, 0, 0};
  }
  while (rule->second.strips_left && added.begin > plain_begin &&
         IsWhiteSpace(CharacterBefore(text, added.begin))) {
    --added.begin;
    while ((static_cast<uint8_t>(text[added.begin]) & 0xc0) == 0x80) --added.begin;
  }
  while (rule->second.strips_right && added.end < text.size()) {
    const Utf8Part part = ReadUtf8(text, added.end);
    if (!IsWhiteSpace(part.code_point)) break;
    added.end += part.bytes;
  }
  return added;
}

// Normalises in parts, so that a text that is too long is not normalised as a whole.
absl::Status Tokenizer::Normalize(std::string_view text, size_t max_tokens,
                                  std::string& out) const {
  constexpr size_t kPartBytes = 64 << 10;
  // The size of `out` at the next check. It doubles, so that all checks together cost about
  // one pass more.
  size_t judged = kPartBytes;
  for (size_t at = 0; at < text.size();) {
    const size_t end =
        pretokenizer_->NormalizationCut(text, std::min(at + kPartBytes, text.size()));
    out += pretokenizer_->Normalize(text.substr(at, end - at));
    at = end;
    if (out.size() < judged || at == text.size()) continue;
    if (bound_.Exceeds(out, max_tokens)) return TooMany(max_tokens);
    judged = 2 * out.size();
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeCharacters(std::string_view text, bool first, size_t max_tokens,
                                         PieceCache* cache, std::vector<TokenId>& out) const {
  if (bound_.Exceeds(text, max_tokens - out.size())) return TooMany(max_tokens);
  bool after_space = space_prefix_ != SpacePrefix::kNone;
  if (space_prefix_ != SpacePrefix::kParts) {
    after_space = after_space && WithSpaces(text.substr(0, kSpaceMark.size()))[0] != ' ';
  }
  if (space_prefix_ == SpacePrefix::kTextWithout) after_space = after_space && first;
  characters_->Encode(text, after_space, cache, out);
  return out.size() <= max_tokens ? absl::OkStatus() : TooMany(max_tokens);
}

absl::Status Tokenizer::EncodeByPipeline(std::string_view text, bool first, size_t max_tokens,
                                         PieceCache* cache, std::vector<TokenId>& out) const {
  bool fits = true;
  std::vector<TokenId> ids;
  const absl::Status split = pipeline_->Split(text, first, [&](std::string_view piece) {
    if (byte_level_) return fits = EncodePiece(piece, max_tokens, out);
    ids.clear();
    if (piece_model_ != nullptr) {
      PieceCache::Append(cache, piece, ids, [&] { piece_model_->Encode(piece, ids); });
    } else {
      characters_->Encode(piece, /*after_space=*/false, cache, ids);
    }
    out.insert(out.end(), ids.begin(), ids.end());
    return fits = out.size() <= max_tokens;
  });
  return fits ? split : TooMany(max_tokens);
}

bool Tokenizer::EncodePiece(std::string_view piece, size_t max_tokens,
                            std::vector<TokenId>& out) const {
  const auto it = by_bytes_.find(piece);
  if (it != by_bytes_.end() && whole_[it->second]) {
    out.push_back(it->second);
  } else if (bound_.Exceeds(piece, max_tokens - out.size())) {
    return false;  // not worth merging
  } else {
    merges_.Encode(piece, out);
  }
  return out.size() <= max_tokens;
}

absl::Status Tokenizer::EncodePlain(std::string_view text, bool first, size_t max_tokens,
                                    PieceCache* cache, std::vector<TokenId>& out) const {
  if (pipeline_.has_value()) return EncodeByPipeline(text, first, max_tokens, cache, out);
  if (characters_.has_value()) return EncodeCharacters(text, first, max_tokens, cache, out);
  std::string normalized;
  if (pretokenizer_->normalizes()) {
    const absl::Status status = Normalize(text, max_tokens - out.size(), normalized);
    if (!status.ok()) return TooMany(max_tokens);
    text = normalized;
  }
  bool fits = true;
  const absl::Status split = pretokenizer_->Split(
      text, [&](std::string_view piece) { return fits = EncodePiece(piece, max_tokens, out); });
  return fits ? split : TooMany(max_tokens);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodeRuns(std::string_view text,
                                                           std::span<const Run> runs,
                                                           const EncodeOptions& options) const {
  const size_t max_tokens = options.max_tokens;
  const bool normalizes = pretokenizer_.has_value() && pretokenizer_->normalizes();
  const bool too_long = pipeline_.has_value() ? false
                        : normalizes          ? bound_.NormalizedExceeds(text, max_tokens)
                                              : bound_.Exceeds(text, max_tokens);
  if (too_long) return TooMany(max_tokens);
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return InvalidArgument("the text is not UTF-8 at byte ", bad);
  }
  const PieceCaches::Lease lease(piece_caches_.get());
  std::vector<TokenId> ids;
  if (options.add_special && add_bos_) ids.push_back(bos_id_);
  if (options.add_special) ids.insert(ids.end(), prefix_.begin(), prefix_.end());
  size_t plain_begin = 0;
  size_t at = 0;
  const auto flush_plain = [&](size_t end) -> absl::Status {
    if (ids.size() > max_tokens) return TooMany(max_tokens);
    if (end <= plain_begin) return absl::OkStatus();
    return EncodePlain(text.substr(plain_begin, end - plain_begin), plain_begin == 0, max_tokens,
                       lease.get(), ids);
  };
  for (const Run& run : runs) {
    while (true) {
      while (at < run.end && !MayBeginAdded(text[at])) ++at;
      if (at >= run.end) break;
      const Added added = AddedTokenAt(text, plain_begin, at, run.end, run.special_allowed);
      if (added.id < 0) {
        ++at;
        continue;
      }
      if (absl::Status status = flush_plain(added.begin); !status.ok()) return status;
      ids.push_back(added.id);
      plain_begin = at = added.end;
    }
  }
  if (absl::Status status = flush_plain(text.size()); !status.ok()) return status;
  if (options.add_special) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  if (options.add_special && add_eos_) ids.push_back(eos_id_);
  if (ids.size() > max_tokens) return TooMany(max_tokens);
  return ids;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  const Run run{text.size(), options.parse_special};
  return EncodeRuns(text, {&run, 1}, options);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodePieces(std::span<const TextPiece> pieces,
                                                             const EncodeOptions& options) const {
  std::string text;
  std::vector<Run> runs;
  for (const TextPiece& piece : pieces) {
    text += piece.text;
    if (runs.empty() || runs.back().special_allowed != piece.special_allowed) {
      runs.push_back({text.size(), piece.special_allowed});
    }
    runs.back().end = text.size();
  }
  return EncodeRuns(text, runs, options);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  IncrementalDetokenizer detokenizer(this, skip_special, /*begins_text=*/true);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

}  // namespace flotilla::model
