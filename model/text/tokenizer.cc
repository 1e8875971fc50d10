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
#include "model/text/pattern.h"
#include "model/text/space_mark.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxVocab = 1 << 20;

// Bounds the processor time that the patterns of a file take for its own tokens. Each text has a
// bound of its own, of which a vocabulary of many tokens would take many.
class LoadTime {
 public:
  absl::Status Check() const {
    if (ThreadNanoseconds() - begin_ <= kMost) return absl::OkStatus();
    return InvalidArgument("tokenizer: its patterns take more than ", kMost / 1'000'000,
                           " ms for its own tokens");
  }

 private:
  static constexpr int64_t kMost = 300'000'000;
  const int64_t begin_ = ThreadNanoseconds();
};

absl::Status CheckAddedToken(TokenId id, std::string_view text) {
  if (text.size() <= AddedTokens::kMostBytes) return absl::OkStatus();
  return InvalidArgument("tokenizer: the added token ", id, " has ", text.size(),
                         " bytes, not at most ", AddedTokens::kMostBytes);
}

absl::Status TooMany(size_t max_tokens) {
  return absl::OutOfRangeError(Cat("the text has more than ", max_tokens, " tokens"));
}

}  // namespace

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
    tokenizer.normalizes_ = !tokenizer.pipeline_->normalizer().empty();
    tokenizer.ignores_merges_ = bundle.ignores_merges;
  } else if (byte_level) {
    auto pretokenizer = Pretokenizer::Create(bundle);
    if (!pretokenizer.ok()) return pretokenizer.status();
    tokenizer.pretokenizer_ = *std::move(pretokenizer);
    tokenizer.ignores_merges_ = tokenizer.pretokenizer_->ignores_merges();
    tokenizer.normalizes_ = tokenizer.pretokenizer_->normalizes();
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
  tokenizer.ReadGuarded(bundle);
  if (byte_level) {
    tokenizer.MarkWholePieces();
  } else {
    tokenizer.piece_caches_ = std::make_unique<PieceCaches>();
  }
  return tokenizer;
}

const AddedTokenRule& Tokenizer::RuleOf(TokenId id) const {
  static const AddedTokenRule none;
  const auto rule = added_rules_.find(id);
  return rule == added_rules_.end() ? none : rule->second;
}

absl::StatusOr<Tokenizer::NormalForms> Tokenizer::ReadNormalForms(const TokenizerBundle& bundle) {
  NormalForms forms;
  const LoadTime time;
  for (const AddedTokenRule& rule : bundle.added_rules) {
    const auto place = static_cast<size_t>(rule.id);
    if (!rule.normalized || place >= bundle.tokens.size()) continue;
    std::string form = bundle.tokens[place];
    if (FindInvalidUtf8(form) != std::string::npos) continue;
    if (absl::Status status = CheckAddedToken(rule.id, form); !status.ok()) return status;
    bool keeps_begin = true;
    absl::Status status;
    if (pipeline_.has_value()) {
      status = pipeline_->normalizer().Apply(form, keeps_begin);
    } else if (pretokenizer_.has_value()) {
      form = pretokenizer_->Normalize(form);
    }
    if (status.ok()) status = CheckAddedToken(rule.id, form);
    if (status.ok()) status = time.Check();
    if (!status.ok()) return status;
    forms.emplace(rule.id, std::move(form));
  }
  return forms;
}

bool Tokenizer::AppendBytes(TokenId id, std::string_view token, TokenKind kind) {
  const bool in_model = InModel(id);
  if (!byte_level_) {
    const bool plain = kind == Kind::kNormal || kind == Kind::kUserDefined || kind == Kind::kUnused;
    const std::string text = plain || in_model ? WithSpaces(token) : std::string(token);
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    // Where no rule says more, spaces are no part of added tokens: a token that has some is one of
    // many characters.
    return kind == Kind::kNormal || (kind == Kind::kUserDefined && text != token && !in_model);
  }
  std::string bytes;
  const bool merged = in_model && AppendByteLevel(token, bytes);
  if (!merged) bytes = token;
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return merged && kind == Kind::kNormal;
}

absl::StatusOr<std::vector<std::string>> Tokenizer::ReadTexts(const TokenizerBundle& bundle,
                                                              const NormalForms& normal) {
  std::vector<std::string> texts;
  if (!pipeline_.has_value() || byte_level_) return texts;
  size_t most = 64 << 20;  // bytes; decoders of files add a space at most
  for (const std::string& token : bundle.tokens) most += 4 * token.size();
  const TokenText& decoder = pipeline_->token_text();
  size_t total = 0;
  const LoadTime time;
  for (size_t i = 0; i < bundle.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const bool control = bundle.kinds[i] == Kind::kControl || bundle.kinds[i] == Kind::kUnknown;
    const bool special = control && !RuleOf(id).byte;
    const auto form = normal.find(id);
    const std::string& token = form == normal.end() ? bundle.tokens[i] : form->second;
    if (special) {
      texts.push_back(bundle.tokens[i]);
    } else {
      absl::StatusOr<std::string> text = decoder.Of(token, /*first=*/false);
      if (!text.ok()) return text.status();
      texts.push_back(*std::move(text));
    }
    total += texts.back().size();
    if (decoder.first_differs() && !special) {
      absl::StatusOr<std::string> first = decoder.Of(token, /*first=*/true);
      if (!first.ok()) return first.status();
      total += first->size();
      if (*first != texts.back()) first_bytes_.emplace(id, *std::move(first));
    }
    if (decoder.has_patterns()) {
      if (absl::Status status = time.Check(); !status.ok()) return status;
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
  const auto normal = ReadNormalForms(bundle);
  if (!normal.ok()) return normal.status();
  const auto texts = ReadTexts(bundle, *normal);
  if (!texts.ok()) return texts.status();
  size_t total = 0;
  for (const auto& [id, form] : *normal) total += form.size();
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
    const auto id = static_cast<TokenId>(i);
    const bool is_byte = kind == Kind::kByte || RuleOf(id).byte;
    if (is_byte && (byte_level_ || !byte.has_value())) {
      return InvalidArgument("tokenizer: token ", i, " stands for a byte, which ",
                             byte_level_ ? "gpt2 does not have" : "is not written as <0xHH>");
    }
    kinds_.push_back(kind);
    bool merged = false;
    if (!texts->empty()) {
      bytes_.insert(bytes_.end(), (*texts)[i].begin(), (*texts)[i].end());
    } else if (is_byte) {
      bytes_.push_back(static_cast<char>(*byte));
    } else {
      const auto form = normal->find(id);
      const bool shows_form = form != normal->end() && kind == Kind::kUserDefined;
      merged = AppendBytes(id, shows_form ? std::string_view(form->second) : token, kind);
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    const std::string_view bytes = TokenBytes(id);
    if (token.empty() || (bytes.empty() && texts->empty())) continue;
    if (kind != Kind::kUnused) bound_.AddToken(bytes);
    if (is_byte) byte_tokens_[*byte] = id;
    if (merged) {
      AddModelText(id, bytes);
    } else if (kind != Kind::kNormal && kind != Kind::kUnused && kind != Kind::kByte) {
      if (absl::Status status = AddToken(id, token, *normal); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

void Tokenizer::AddModelText(TokenId id, std::string_view text) {
  by_bytes_.emplace(text, id);
  if (byte_level_ && text.size() == 1) {
    merges_.SetByteToken(static_cast<uint8_t>(text[0]), id);
    bound_.AddByte(static_cast<uint8_t>(text[0]));
  }
}

absl::Status Tokenizer::AddToken(TokenId id, std::string_view token, const NormalForms& normal) {
  const AddedTokenRule& rule = RuleOf(id);
  const bool special = IsSpecial(id);
  const auto form = normal.find(id);
  if (absl::Status status = CheckAddedToken(id, token); !status.ok()) return status;
  written_.Add(token, id, special, rule);
  if (form == normal.end()) in_text_.Add(token, id, special, rule);
  if (form == normal.end() || special) in_guarded_text_.Add(token, id, special, rule);
  if (form != normal.end() && !form->second.empty()) {
    in_normal_text_.Add(form->second, id, special, rule);
  }
  if (!InModel(id) || rule.byte) return absl::OkStatus();
  // The bytes of the token are those of its normal form.
  std::string& text = model_texts_.emplace_back();
  if (!byte_level_) {
    text = WithSpaces(token);
  } else if (!AppendByteLevel(token, text)) {
    text = token;
  }
  AddModelText(id, text);
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
    const auto token = static_cast<TokenId>(id);
    if (InModel(token) && !RuleOf(token).byte) spaced[id] = WithSpaces(bundle.tokens[id]);
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
  if (kind == Kind::kUserDefined || kind == Kind::kControl) return RuleOf(id).in_model;
  return kind == Kind::kNormal;
}

void Tokenizer::ReadGuarded(const TokenizerBundle& bundle) {
  std::vector<bool> guarded(kinds_.size());
  TextMap<TokenId> texts;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    // Text may become the unknown token, except in byte-level BPE.
    guarded[i] = kinds_[i] == Kind::kControl && InModel(id) && !RuleOf(id).byte &&
                 (byte_level_ || id != bundle.unknown);
    if (!guarded[i]) continue;
    if (guarded_.empty()) first_guarded_ = id;
    last_guarded_ = id;
    guarded_ = {true};
  }
  if (guarded_.empty()) return;
  guarded_ = std::move(guarded);
  if (piece_model_ != nullptr) return;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (InModel(static_cast<TokenId>(i))) texts.emplace(bundle.tokens[i], static_cast<TokenId>(i));
  }
  std::string both;
  for (const std::string_view merge : bundle.merges) {
    const size_t space = std::min(merge.find(' '), merge.size() - 1);
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    both = left;
    both += right;
    const auto whole = texts.find(both), first = texts.find(left), second = texts.find(right);
    if (whole == texts.end() || first == texts.end() || second == texts.end()) continue;
    if (!guarded_[static_cast<size_t>(whole->second)]) continue;
    parts_.try_emplace(whole->second, std::vector<TokenId>{first->second, second->second});
  }
  // A character becomes its bytes. One without them has no other token.
  for (size_t i = 0; i < guarded_.size(); ++i) {
    if (!guarded_[i] || parts_.contains(static_cast<TokenId>(i))) continue;
    std::vector<TokenId> bytes;
    for (const char c : bundle.tokens[i]) bytes.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
    if (std::ranges::find(bytes, -1) == bytes.end()) {
      parts_.emplace(static_cast<TokenId>(i), std::move(bytes));
    }
  }
}

bool Tokenizer::HasGuarded(std::span<const TokenId> ids) const {
  // Control tokens lie side by side, so that this says no of most texts.
  const auto begin = static_cast<uint32_t>(first_guarded_);
  const auto most = static_cast<uint32_t>(last_guarded_) - begin;
  bool near = false;
  for (const TokenId id : ids) near |= static_cast<uint32_t>(id) - begin <= most;
  return near &&
         std::ranges::any_of(ids, [&](TokenId id) { return guarded_[static_cast<size_t>(id)]; });
}

void Tokenizer::SplitGuarded(std::vector<TokenId>& ids, size_t from) const {
  if (!HasGuarded(std::span(ids).subspan(from))) return;
  std::vector<TokenId> waiting(ids.rbegin(), ids.rend() - static_cast<std::ptrdiff_t>(from));
  ids.resize(from);
  while (!waiting.empty()) {
    const TokenId id = waiting.back();
    waiting.pop_back();
    const auto parts = guarded_[static_cast<size_t>(id)] ? parts_.find(id) : parts_.end();
    if (parts == parts_.end()) {
      ids.push_back(id);
    } else {
      waiting.insert(waiting.end(), parts->second.rbegin(), parts->second.rend());
    }
  }
}

absl::Status Tokenizer::MakePieceModel(const TokenizerBundle& bundle) {
  std::vector<std::string_view> texts(kinds_.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    if (InModel(static_cast<TokenId>(id))) texts[id] = bundle.tokens[id];
  }
  const bool exact = std::ranges::none_of(bundle.steps->normalizer, [](const TextStep& step) {
    return step.kind == TextStep::Kind::kSentencePiece && step.has(TextStep::kFloatScores);
  });
  std::vector<bool> guarded(kinds_.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    guarded[id] = kinds_[id] == Kind::kControl && token != bundle.unknown && !RuleOf(token).byte;
    // `tokenizers` finds the names of bytes in text, and SentencePiece does not.
    if (exact && kinds_[id] == Kind::kByte) texts[id] = bundle.tokens[id];
  }
  const PieceVocabulary vocabulary{.texts = texts,
                                   .bytes = byte_tokens_,
                                   .guarded = std::move(guarded),
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
  unknown_id_ = bundle.unknown;
  pad_id_ = bundle.pad;
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
  const TokenId id = written_.Find(text);
  return IsSpecial(id) ? id : -1;
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

absl::Status Tokenizer::EncodeCharacters(const PlainText& part, const Target& target) const {
  const auto& [out, max_tokens, cache] = target;
  if (bound_.Exceeds(part.text, max_tokens - out.size())) return TooMany(max_tokens);
  bool after_space = space_prefix_ != SpacePrefix::kNone;
  if (space_prefix_ != SpacePrefix::kParts) {
    after_space = after_space && WithSpaces(part.text.substr(0, kSpaceMark.size()))[0] != ' ';
  }
  if (space_prefix_ == SpacePrefix::kTextWithout) after_space = after_space && part.first;
  const size_t from = out.size();
  characters_->Encode(part.text, after_space, cache, out);
  if (part.guarded) SplitGuarded(out, from);
  return out.size() <= max_tokens ? absl::OkStatus() : TooMany(max_tokens);
}

absl::Status Tokenizer::EncodeByPipeline(const PlainText& part, const Target& target) const {
  std::vector<TokenId>& out = target.ids;
  const size_t max_tokens = target.max_tokens;
  const bool guarded = part.guarded;
  PieceCache* const cache = guarded ? nullptr : target.cache;
  bool fits = true;
  std::vector<TokenId> ids;
  const auto encode = [&](std::string_view piece) {
    if (byte_level_) return fits = EncodePiece(piece, guarded, target);
    ids.clear();
    if (piece_model_ != nullptr) {
      PieceCache::Append(cache, piece, ids, [&] {
        if (guarded) return piece_model_->EncodeGuarded(piece, ids);
        piece_model_->Encode(piece, ids);
      });
    } else {
      characters_->Encode(piece, /*after_space=*/false, cache, ids);
      if (guarded) SplitGuarded(ids, 0);
    }
    out.insert(out.end(), ids.begin(), ids.end());
    return fits = out.size() <= max_tokens;
  };
  const absl::Status split = pipeline_->splitter().Split(part.text, part.first, encode);
  return fits ? split : TooMany(max_tokens);
}

bool Tokenizer::EncodePiece(std::string_view piece, bool guarded, const Target& target) const {
  std::vector<TokenId>& out = target.ids;
  const auto it = by_bytes_.find(piece);
  if (it != by_bytes_.end() && whole_[it->second] && !(guarded && guarded_[it->second])) {
    out.push_back(it->second);
  } else if (bound_.Exceeds(piece, target.max_tokens - out.size())) {
    return false;  // not worth merging
  } else {
    const size_t from = out.size();
    merges_.Encode(piece, out);
    if (guarded) SplitGuarded(out, from);
  }
  return out.size() <= target.max_tokens;
}

absl::Status Tokenizer::EncodeNormal(PlainText part, const Target& target) const {
  if (!part.guarded) return EncodeByModel(part, target);
  // Few texts have what becomes a control token, so it is looked for at the end.
  const size_t from = target.ids.size();
  part.guarded = false;
  const absl::Status status = EncodeByModel(part, target);
  if (!status.ok() || !HasGuarded(std::span(target.ids).subspan(from))) return status;
  target.ids.resize(from);
  part.guarded = true;
  return EncodeByModel(part, target);
}

absl::Status Tokenizer::EncodeByModel(const PlainText& part, const Target& target) const {
  if (pipeline_.has_value()) return EncodeByPipeline(part, target);
  if (characters_.has_value()) return EncodeCharacters(part, target);
  bool fits = true;
  const absl::Status split =
      pretokenizer_->Split(part.text, [&, guarded = part.guarded](std::string_view piece) {
        return fits = EncodePiece(piece, guarded, target);
      });
  return fits ? split : TooMany(target.max_tokens);
}

absl::Status Tokenizer::EncodePlain(PlainText part, std::span<const TextRun> runs,
                                    const Target& target) const {
  if (target.ids.size() > target.max_tokens) return TooMany(target.max_tokens);
  std::string normal;
  if (normalizes_ && pipeline_.has_value()) {
    normal = part.text;
    bool keeps_begin = true;
    const absl::Status status = pipeline_->normalizer().Apply(normal, keeps_begin);
    if (!status.ok()) return status;
    part.first = part.first && keeps_begin;
    part.text = normal;
  } else if (normalizes_) {
    const absl::Status status = Normalize(part.text, target.max_tokens - target.ids.size(), normal);
    if (!status.ok()) return TooMany(target.max_tokens);
    part.text = normal;
  }
  if (in_normal_text_.empty()) return EncodeNormal(part, target);
  const TextRun whole{part.text.size(), !part.has_user_text};
  return in_normal_text_.Split(
      part.text, normalizes_ ? std::span(&whole, 1) : runs,
      [&](size_t begin, size_t end) {
        PlainText rest = part;
        rest.text = part.text.substr(begin, end - begin);
        rest.first = part.first && begin == 0;
        return EncodeNormal(rest, target);
      },
      [&](TokenId id) {
        target.ids.push_back(id);
        return absl::OkStatus();
      });
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodeRuns(std::string_view text,
                                                           std::span<const TextRun> runs,
                                                           const EncodeOptions& options) const {
  const size_t max_tokens = options.max_tokens;
  const bool too_long = pipeline_.has_value() ? false
                        : normalizes_         ? bound_.NormalizedExceeds(text, max_tokens)
                                              : bound_.Exceeds(text, max_tokens);
  if (too_long) return TooMany(max_tokens);
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return InvalidArgument("the text is not UTF-8 at byte ", bad);
  }
  const PieceCaches::Lease lease(piece_caches_.get());
  std::vector<TokenId> ids;
  const Target target{ids, max_tokens, lease.get()};
  if (options.add_special && add_bos_) ids.push_back(bos_id_);
  if (options.add_special) ids.insert(ids.end(), prefix_.begin(), prefix_.end());
  const bool has_user_text =
      std::ranges::any_of(runs, [](const TextRun& run) { return !run.special_allowed; });
  const AddedTokens& added = has_user_text && normalizes_ ? in_guarded_text_ : in_text_;
  std::vector<TextRun> own;  // of a part
  size_t first_run = 0;
  absl::Status status = added.Split(
      text, runs,
      [&](size_t begin, size_t end) {
        PlainText part{.text = text.substr(begin, end - begin),
                       .first = begin == 0,
                       .has_user_text = has_user_text};
        own.clear();
        if (has_user_text && !(guarded_.empty() && in_normal_text_.empty())) {
          while (runs[first_run].end <= begin) ++first_run;
          for (const TextRun& run : runs.subspan(first_run)) {
            own.push_back({std::min(run.end, end) - begin, run.special_allowed});
            part.guarded = part.guarded || (!guarded_.empty() && !run.special_allowed);
            if (run.end >= end) break;
          }
        } else {
          own.push_back({end - begin, !has_user_text});
        }
        return EncodePlain(part, own, target);
      },
      [&](TokenId id) {
        ids.push_back(id);
        return ids.size() > max_tokens ? TooMany(max_tokens) : absl::OkStatus();
      });
  if (!status.ok()) return status;
  if (options.add_special) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  if (options.add_special && add_eos_) ids.push_back(eos_id_);
  if (ids.size() > max_tokens) return TooMany(max_tokens);
  return ids;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  const TextRun run{text.size(), options.parse_special};
  return EncodeRuns(text, {&run, 1}, options);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodePieces(std::span<const TextPiece> pieces,
                                                             const EncodeOptions& options) const {
  std::string text;
  std::vector<TextRun> runs;
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
