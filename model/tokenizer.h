// Text to token ids and back, for byte-level BPE vocabularies.
//
// A Tokenizer copies what it needs out of the model file, is immutable, and may
// be used by any number of threads at once. It belongs to the router; others
// use only the bytes of its vocabulary. It knows nothing of chats: a rendered
// prompt arrives as pieces that say whether special tokens count in them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "model/bpe.h"
#include "model/gguf.h"
#include "model/pretokenizer.h"
#include "model/text.h"
#include "model/text_piece.h"
#include "model/token_bound.h"

namespace flotilla {

struct EncodeOptions {
  // Recognise control tokens written out in the text. Never for user text.
  // (Tokens that a vocabulary calls user-defined are always recognised.)
  bool parse_special = false;
  // Add bos and eos where the model wants them. Chat templates write their own.
  bool add_special = false;
  // More tokens are refused as soon as they are certain, without encoding the rest.
  size_t max_tokens = kUnlimited;

  static constexpr size_t kUnlimited = SIZE_MAX;
};

class Tokenizer {
 public:
  // Reads `tokenizer.ggml.*`. Unimplemented for tokenizer models other than
  // `gpt2` and unknown pre-tokenizers, listing the known ones; InvalidArgument
  // for a vocabulary that contradicts itself.
  static absl::StatusOr<Tokenizer> FromGguf(const GgufFile& file);

  // Token ids of `text`. InvalidArgument, naming the byte offset, if it is not
  // UTF-8; ResourceExhausted if splitting it runs into the match limit; OutOfRange past
  // `max_tokens`. What that costs follows the bound, not the text: besides a look at every
  // byte, no text is split or merged that could not have fitted.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Token ids of the pieces as one text: plain text that spans pieces is split
  // and merged as a whole, special tokens count only inside runs of pieces that
  // allow them, whatever parse_special says. Errors as for Encode, offsets counting from
  // the first piece.
  absl::StatusOr<std::vector<TokenId>> EncodePieces(std::span<const TextPiece> pieces,
                                                    const EncodeOptions& options = {}) const;

  // The bytes that `id` stands for (not always whole characters); of a special
  // token its text. Empty for an id outside the vocabulary. Lives as long as
  // the tokenizer.
  std::string_view TokenBytes(TokenId id) const;

  // Whether `id` is a control token, one that text output leaves out.
  bool IsSpecial(TokenId id) const;

  // The control token with this text, or -1.
  TokenId FindSpecial(std::string_view text) const;

  uint32_t vocab_size() const { return static_cast<uint32_t>(kinds_.size()); }
  TokenId bos_id() const { return bos_id_; }  // -1: none
  TokenId eos_id() const { return eos_id_; }  // -1: none

  // The text of `ids`, with U+FFFD for every maximal part that is not UTF-8.
  std::string Decode(std::span<const TokenId> ids, bool skip_special = true) const;

 private:
  // `token_type` of GGUF.
  enum class Kind : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused };

  struct Run;  // consecutive pieces with equal special_allowed

  explicit Tokenizer(Pretokenizer pretokenizer) : pretokenizer_(std::move(pretokenizer)) {}

  absl::Status ReadTokens(const GgufFile& file);
  absl::Status ReadMerges(const GgufFile& file);
  absl::Status ReadSpecials(const GgufFile& file);
  void MarkWholePieces();

  // Length and id of the added token that begins at `at`, the longest; id -1 if none.
  struct Added {
    size_t bytes;
    TokenId id;
  };
  Added AddedTokenAt(std::string_view text, size_t at, bool special_allowed) const;

  // Both OutOfRange when `out` would have more than `max_tokens`.
  absl::Status EncodePlain(std::string_view text, size_t max_tokens,
                           std::vector<TokenId>& out) const;
  absl::Status Normalize(std::string_view text, size_t max_tokens, std::string& out) const;
  absl::StatusOr<std::vector<TokenId>> EncodeRuns(std::string_view text, std::span<const Run> runs,
                                                  const EncodeOptions& options) const;

  template <typename Value>
  using TextMap = absl::flat_hash_map<std::string_view, Value, TextHash, TextEqual>;

  Pretokenizer pretokenizer_;
  BpeMerges merges_;
  TokenBound bound_;
  std::vector<char> bytes_;          // of all tokens, one after the other
  std::vector<uint32_t> offsets_;    // [vocab + 1] into bytes_
  std::vector<Kind> kinds_;          // [vocab]
  std::vector<bool> whole_;          // [vocab] a piece equal to the token is the token
  TextMap<TokenId> by_bytes_;        // normal tokens
  TextMap<TokenId> added_;           // control and user-defined tokens
  std::vector<size_t> added_sizes_;  // distinct lengths of added_, longest first
  std::vector<bool> added_first_;    // [256] some added token begins with this byte
  TokenId bos_id_ = -1;
  TokenId eos_id_ = -1;
  bool add_bos_ = false;
  bool add_eos_ = false;
};

}  // namespace flotilla
