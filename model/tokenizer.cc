#include "model/tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "model/detokenizer.h"
#include "model/utf8.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxVocab = 1 << 20;
// Bounds the look-ups at one place of a text: one for each length of an added token. Published ones
// have at most 100 bytes.
constexpr size_t kMaxAddedBytes = 256;

// GPT-2's byte-level alphabet, inverted: code point -> byte, -1 elsewhere. Code points of
// printable bytes stand for these bytes; U+0100 and up stand for the other 68 bytes.
constexpr std::array<int16_t, 0x144> kByteOfCodePoint = [] {
  std::array<int16_t, 0x144> table{};
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    table[printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return table;
}();

// Appends the bytes that `text` means in the byte-level alphabet; false (and
// nothing appended) if a character is not of that alphabet.
template <typename Bytes>
bool AppendByteLevel(std::string_view text, Bytes& out) {
  const size_t begin = out.size();
  for (size_t at = 0; at < text.size();) {
    const Utf8Part part = ReadUtf8(text, at);
    if (part.kind != Utf8Part::Kind::kCharacter || part.code_point >= kByteOfCodePoint.size() ||
        kByteOfCodePoint[part.code_point] < 0) {
      out.resize(begin);
      return false;
    }
    out.push_back(static_cast<char>(kByteOfCodePoint[part.code_point]));
    at += part.bytes;
  }
  return true;
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
  if (bundle.kind != "gpt2") {
    return Unimplemented("tokenizer model '", bundle.kind.substr(0, 64),
                         "' is not supported; supported: gpt2");
  }
  auto pretokenizer =
      Pretokenizer::Create(bundle.pretokenizer.empty() ? "default" : bundle.pretokenizer);
  if (!pretokenizer.ok()) return pretokenizer.status();
  Tokenizer tokenizer(*std::move(pretokenizer));
  absl::Status status = tokenizer.ReadTokens(bundle);
  if (status.ok()) status = tokenizer.ReadMerges(bundle);
  if (!status.ok()) return status;
  tokenizer.ReadSpecials(bundle);
  tokenizer.MarkWholePieces();
  return tokenizer;
}

absl::Status Tokenizer::ReadTokens(const TokenizerBundle& bundle) {
  const size_t count = bundle.tokens.size();
  if (count == 0 || count > kMaxVocab || bundle.kinds.size() != count) {
    return InvalidArgument("tokenizer: ", count, " tokens and ", bundle.kinds.size(),
                           " token types (wanted: as many, 1..", kMaxVocab, ")");
  }
  size_t total = 0;
  for (const std::string& token : bundle.tokens) total += token.size();
  if (total > UINT32_MAX) return InvalidArgument("tokenizer: the tokens are too large");
  bytes_.reserve(total);  // never grows again, so views into it stay valid
  offsets_.reserve(count + 1);
  kinds_.reserve(count);
  by_bytes_.reserve(count);
  added_first_.assign(256, false);
  offsets_.push_back(0);
  for (size_t i = 0; i < count; ++i) {
    const std::string_view token = bundle.tokens[i];
    const Kind kind = bundle.kinds[i];
    if (kind == Kind::kByte) {
      return InvalidArgument("tokenizer: token ", i,
                             " stands for a byte, which gpt2 does not have");
    }
    kinds_.push_back(kind);
    const bool byte_level = kind == Kind::kNormal && AppendByteLevel(token, bytes_);
    if (!byte_level) bytes_.insert(bytes_.end(), token.begin(), token.end());
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    const auto id = static_cast<TokenId>(i);
    const std::string_view bytes = TokenBytes(id);
    if (bytes.empty()) continue;
    if (kind != Kind::kUnused) bound_.AddToken(bytes);
    if (byte_level) {
      by_bytes_.emplace(bytes, id);
      if (bytes.size() == 1) {
        merges_.SetByteToken(static_cast<uint8_t>(bytes[0]), id);
        bound_.AddByte(static_cast<uint8_t>(bytes[0]));
      }
    } else if (kind != Kind::kNormal && kind != Kind::kUnused) {
      if (bytes.size() > kMaxAddedBytes) {
        return InvalidArgument("tokenizer: the added token ", i, " has ", bytes.size(),
                               " bytes, not at most ", kMaxAddedBytes);
      }
      added_.emplace(bytes, id);
      added_first_[static_cast<uint8_t>(bytes[0])] = true;
      added_sizes_.push_back(bytes.size());
    }
  }
  std::ranges::sort(added_sizes_, std::greater<>());
  added_sizes_.erase(std::unique(added_sizes_.begin(), added_sizes_.end()), added_sizes_.end());
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
    merges_.AddMerge(left->second, right->second, result->second, static_cast<uint32_t>(rank));
  }
  return absl::OkStatus();
}

void Tokenizer::ReadSpecials(const TokenizerBundle& bundle) {
  bos_id_ = bundle.bos;
  eos_id_ = bundle.eos;
  add_bos_ = bundle.add_bos.value_or(pretokenizer_.adds_bos_by_default()) && bos_id_ >= 0;
  add_eos_ = bundle.add_eos.value_or(false) && eos_id_ >= 0;
}

// Finds the tokens that a piece with the same text becomes. The look-up of a whole piece is right
// only for tokens that merging produces, and a vocabulary may have others.
void Tokenizer::MarkWholePieces() {
  whole_.assign(vocab_size(), pretokenizer_.ignores_merges());
  if (pretokenizer_.ignores_merges()) return;
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

bool Tokenizer::IsSpecial(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= kinds_.size()) return false;
  return kinds_[id] == Kind::kControl || kinds_[id] == Kind::kUnknown;
}

TokenId Tokenizer::FindSpecial(std::string_view text) const {
  const auto it = added_.find(text);
  return it != added_.end() && IsSpecial(it->second) ? it->second : -1;
}

Tokenizer::Added Tokenizer::AddedTokenAt(std::string_view text, size_t at,
                                         bool special_allowed) const {
  if (!added_first_[static_cast<uint8_t>(text[at])]) return {0, -1};
  for (const size_t size : added_sizes_) {
    if (size > text.size() - at) continue;
    const auto it = added_.find(text.substr(at, size));
    if (it != added_.end() && (special_allowed || !IsSpecial(it->second))) {
      return {size, it->second};
    }
  }
  return {0, -1};
}

// Normalises in parts, so that a text that is too long is not normalised as a whole.
absl::Status Tokenizer::Normalize(std::string_view text, size_t max_tokens,
                                  std::string& out) const {
  constexpr size_t kPartBytes = 64 << 10;
  // The size of `out` at the next check. It doubles, so that all checks together cost about
  // one pass more.
  size_t judged = kPartBytes;
  for (size_t at = 0; at < text.size();) {
    const size_t end = pretokenizer_.NormalizationCut(text, std::min(at + kPartBytes, text.size()));
    out += pretokenizer_.Normalize(text.substr(at, end - at));
    at = end;
    if (out.size() < judged || at == text.size()) continue;
    if (bound_.Exceeds(out, max_tokens)) return TooMany(max_tokens);
    judged = 2 * out.size();
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodePlain(std::string_view text, size_t max_tokens,
                                    std::vector<TokenId>& out) const {
  std::string normalized;
  if (pretokenizer_.normalizes()) {
    const absl::Status status = Normalize(text, max_tokens - out.size(), normalized);
    if (!status.ok()) return TooMany(max_tokens);
    text = normalized;
  }
  bool fits = true;
  const absl::Status split = pretokenizer_.Split(text, [&](std::string_view piece) {
    const auto it = by_bytes_.find(piece);
    if (it != by_bytes_.end() && whole_[it->second]) {
      out.push_back(it->second);
    } else if (bound_.Exceeds(piece, max_tokens - out.size())) {
      fits = false;  // not worth merging
    } else {
      merges_.Encode(piece, out);
    }
    fits = fits && out.size() <= max_tokens;
    return fits;
  });
  return fits ? split : TooMany(max_tokens);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodeRuns(std::string_view text,
                                                           std::span<const Run> runs,
                                                           const EncodeOptions& options) const {
  const size_t max_tokens = options.max_tokens;
  const bool too_long = pretokenizer_.normalizes() ? bound_.NormalizedExceeds(text, max_tokens)
                                                   : bound_.Exceeds(text, max_tokens);
  if (too_long) return TooMany(max_tokens);
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return InvalidArgument("the text is not UTF-8 at byte ", bad);
  }
  std::vector<TokenId> ids;
  if (options.add_special && add_bos_) ids.push_back(bos_id_);
  size_t plain_begin = 0;
  size_t at = 0;
  const auto flush_plain = [&](size_t end) -> absl::Status {
    if (ids.size() > max_tokens) return TooMany(max_tokens);
    if (end == plain_begin) return absl::OkStatus();
    return EncodePlain(text.substr(plain_begin, end - plain_begin), max_tokens, ids);
  };
  for (const Run& run : runs) {
    const std::string_view visible = text.substr(0, run.end);
    while (at < run.end) {
      const Added added = AddedTokenAt(visible, at, run.special_allowed);
      if (added.id < 0) {
        ++at;
        continue;
      }
      if (absl::Status status = flush_plain(at); !status.ok()) return status;
      ids.push_back(added.id);
      at += added.bytes;
      plain_begin = at;
    }
  }
  if (absl::Status status = flush_plain(text.size()); !status.ok()) return status;
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
  IncrementalDetokenizer detokenizer(this, skip_special);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

}  // namespace flotilla::model
