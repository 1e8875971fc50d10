// Turns text into token ids and back, for vocabularies of byte-level BPE ("gpt2"), SentencePiece's
// BPE of characters ("llama"), Unigram ("t5") and WordPiece ("bert").
//
// A Tokenizer copies what it needs out of the bundle and is immutable but for its caches. Any
// number of threads may use it at once. It belongs to the router; others use only the bytes of its
// vocabulary. It knows nothing of chats: a rendered prompt arrives as pieces that say
// whether special tokens count in them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "common/types/text.h"
#include "common/types/tokenizer_bundle.h"
#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/character_bpe.h"
#include "model/text/piece_cache.h"
#include "model/text/piece_model.h"
#include "model/text/pretokenizer.h"
#include "model/text/text_piece.h"
#include "model/text/text_pipeline.h"
#include "model/text/token_bound.h"

namespace flotilla::model {

struct EncodeOptions {
  // Recognise control tokens written out in the text. Never for user text.
  // (Tokens that a vocabulary calls user-defined are always recognised.)
  bool parse_special = false;
  // Add bos and eos where the model wants them. Chat templates write their own.
  bool add_special = false;
  // A text with more tokens is refused as soon as this is certain, and the rest of it is
  // not encoded.
  size_t max_tokens = kUnlimited;

  static constexpr size_t kUnlimited = SIZE_MAX;
};

class Tokenizer {
 public:
  // Unimplemented for other kinds and unknown pre-tokenizers, listing the known ones, and for steps
  // that cannot be used;
  // InvalidArgument for a vocabulary that contradicts itself.
  static absl::StatusOr<Tokenizer> Create(const TokenizerBundle& bundle);

  // Returns the token ids of `text`. InvalidArgument, naming the byte offset, if it is not
  // UTF-8; ResourceExhausted if splitting it runs into the match limit; OutOfRange past
  // `max_tokens`. The cost follows `max_tokens`, not the text: Encode looks at every byte
  // once, but splits or merges no text that could not have fitted. (A bundle's steps normalise the
  // whole text first.)
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Returns the token ids of the pieces as one text. Plain text that spans pieces is split
  // and merged as a whole. Special tokens count only inside runs of pieces that allow them,
  // whatever parse_special says. Errors are as for Encode, with offsets that count from the
  // first piece.
  absl::StatusOr<std::vector<TokenId>> EncodePieces(std::span<const TextPiece> pieces,
                                                    const EncodeOptions& options = {}) const;

  // Returns the bytes that `id` stands for (not always whole characters); for a special
  // token its text. Empty for an id outside the vocabulary. The bytes live as long as the
  // tokenizer.
  std::string_view TokenBytes(TokenId id) const;

  // The same of the first token of a text, which may stand for other bytes.
  std::string_view FirstTokenBytes(TokenId id) const;

  // Whether `id` is a control token, one that text output leaves out.
  bool IsSpecial(TokenId id) const;

  // The control token with this text, or -1.
  TokenId FindSpecial(std::string_view text) const;

  uint32_t vocab_size() const { return static_cast<uint32_t>(kinds_.size()); }
  TokenId bos_id() const { return bos_id_; }          // -1: none
  TokenId eos_id() const { return eos_id_; }          // -1: none
  TokenId unknown_id() const { return unknown_id_; }  // -1: none
  TokenId pad_id() const { return pad_id_; }          // -1: none

  // Whether a text that is decoded loses a space at its beginning, because texts get one there when
  // they are encoded.
  bool strips_first_space() const {
    return pipeline_.has_value() ? pipeline_->token_text().strips_first_space()
                                 : space_prefix_ != SpacePrefix::kNone;
  }

  // The text of `ids`, with U+FFFD for every maximal part that is not UTF-8.
  std::string Decode(std::span<const TokenId> ids, bool skip_special = true) const;

 private:
  using Kind = TokenKind;
  static std::array<TokenId, 256> NoBytes() {
    std::array<TokenId, 256> none;
    none.fill(-1);
    return none;
  }
  // A part of a text without added tokens.
  struct PlainText {
    std::string_view text;
    bool first;            // nothing comes before it
    bool has_user_text;    // the whole text has some
    bool guarded = false;  // the part has some, so that the model may make no control token of it
  };
  // Where tokens go.
  struct Target {
    std::vector<TokenId>& ids;
    size_t max_tokens;
    PieceCache* cache;  // may be null
  };
  using NormalForms = absl::flat_hash_map<TokenId, std::string>;

  Tokenizer() = default;

  // Those of added tokens that count in normalised text.
  absl::StatusOr<NormalForms> ReadNormalForms(const TokenizerBundle& bundle);
  absl::Status ReadTokens(const TokenizerBundle& bundle);
  // Says that the model makes the token of `text`.
  void AddModelText(TokenId id, std::string_view text);
  absl::Status AddToken(TokenId id, std::string_view token, const NormalForms& normal);
  // The bytes of all tokens by the steps' decoder; those of the first token go to first_bytes_.
  absl::StatusOr<std::vector<std::string>> ReadTexts(const TokenizerBundle& bundle,
                                                     const NormalForms& normal);
  absl::Status MakePieceModel(const TokenizerBundle& bundle);
  // Whether the model may make this token of text.
  bool InModel(TokenId id) const;
  const AddedTokenRule& RuleOf(TokenId id) const;
  // Puts the bytes that a token stands for into bytes_. Returns whether text becomes it by merging.
  bool AppendBytes(TokenId id, std::string_view token, TokenKind kind);
  // Finds what stands for the control tokens that the model may make.
  void ReadGuarded(const TokenizerBundle& bundle);
  absl::Status MakeCharacterBpe(const TokenizerBundle& bundle);
  absl::Status ReadMerges(const TokenizerBundle& bundle);
  void ReadSpecials(const TokenizerBundle& bundle);
  void MarkWholePieces();

  // These return OutOfRange when there would be more than `max_tokens`.
  // `runs`: of the part's text, where added tokens of normalised text may be.
  absl::Status EncodePlain(PlainText part, std::span<const TextRun> runs,
                           const Target& target) const;
  // The same of normalised text without added tokens.
  absl::Status EncodeNormal(PlainText part, const Target& target) const;
  absl::Status EncodeByModel(const PlainText& part, const Target& target) const;
  absl::Status EncodeCharacters(const PlainText& part, const Target& target) const;
  absl::Status EncodeByPipeline(const PlainText& part, const Target& target) const;
  // Appends the tokens of a piece of byte-level BPE; false: they would be more than `max_tokens`.
  bool EncodePiece(std::string_view piece, bool guarded, const Target& target) const;
  bool HasGuarded(std::span<const TokenId> ids) const;
  // Puts others in place of the guarded tokens from place `from` on.
  void SplitGuarded(std::vector<TokenId>& ids, size_t from) const;
  absl::Status Normalize(std::string_view text, size_t max_tokens, std::string& out) const;
  absl::StatusOr<std::vector<TokenId>> EncodeRuns(std::string_view text,
                                                  std::span<const TextRun> runs,
                                                  const EncodeOptions& options) const;

  template <typename Value>
  using TextMap = absl::flat_hash_map<std::string_view, Value, TextHash, TextEqual>;

  bool byte_level_ = false;
  // What comes before and after the model, if the bundle has steps.
  std::optional<TextPipeline> pipeline_;
  absl::flat_hash_map<TokenId, std::string> first_bytes_;  // where they are others than bytes_
  // Of Unigram and WordPiece.
  std::unique_ptr<const PieceModel> piece_model_;
  // Of all but byte-level BPE, which finds common words in its vocabulary.
  std::unique_ptr<PieceCaches> piece_caches_;
  // Of byte-level BPE.
  bool ignores_merges_ = false;
  std::optional<Pretokenizer> pretokenizer_;
  BpeMerges merges_;
  // Of the BPE of characters.
  std::optional<CharacterBpe> characters_;
  SpacePrefix space_prefix_ = SpacePrefix::kNone;
  absl::flat_hash_map<TokenId, AddedTokenRule> added_rules_;
  TokenBound bound_;
  std::vector<char> bytes_;                           // of all tokens, one after the other
  std::vector<uint32_t> offsets_;                     // [vocab + 1] into bytes_
  std::vector<Kind> kinds_;                           // [vocab]
  std::array<TokenId, 256> byte_tokens_ = NoBytes();  // -1: no token stands for the byte
  std::vector<bool> whole_;              // [vocab] a piece with this token's text is this token
  TextMap<TokenId> by_bytes_;            // normal tokens
  std::deque<std::string> model_texts_;  // of by_bytes_ where they are not in bytes_
  // Control and user-defined tokens as they are written, and by the texts where they count: as it
  // comes, or normalised. In text of a user a normalizer might make a control token, so that there
  // all control tokens are looked for in the text as it comes.
  AddedTokens written_, in_text_, in_guarded_text_, in_normal_text_;
  bool normalizes_ = false;  // normalising may change a text
  // [vocab], or empty: control tokens that the model may make, and what stands for them in text of
  // a user.
  std::vector<bool> guarded_;
  TokenId first_guarded_ = 0, last_guarded_ = 0;
  absl::flat_hash_map<TokenId, std::vector<TokenId>> parts_;
  TokenId bos_id_ = -1;
  TokenId eos_id_ = -1;
  TokenId unknown_id_ = -1;
  TokenId pad_id_ = -1;
  bool add_bos_ = false;
  bool add_eos_ = false;
  std::vector<TokenId> prefix_, suffix_;
};

}  // namespace flotilla::model
