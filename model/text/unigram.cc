#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "common/types/text.h"
#include "model/text/piece_model.h"
#include "model/text/trie.h"
#include "model/text/utf8.h"
#include "model/text/vocabulary_trie.h"

namespace flotilla::model {
namespace {

// What an unknown character costs beside the worst token, as SentencePiece and `tokenizers` have
// it.
constexpr double kUnknownPenalty = 10;

// Score is the type of sums.
template <class Score>
class Unigram final : public PieceModel {
 public:
  Unigram(Trie trie, const PieceVocabulary& vocabulary)
      : trie_(std::move(trie)),
        scores_(vocabulary.scores.begin(), vocabulary.scores.end()),
        bytes_(vocabulary.bytes),
        guarded_(vocabulary.guarded),
        unknown_(vocabulary.unknown) {
    Score worst = std::numeric_limits<Score>::infinity();
    for (const Score score : scores_) worst = std::min(worst, score);
    unknown_score_ = worst - static_cast<Score>(kUnknownPenalty);
  }

  void Encode(std::string_view piece, std::vector<TokenId>& out) const override {
    Cut</*kGuarded=*/false>(piece, out);
  }
  void EncodeGuarded(std::string_view piece, std::vector<TokenId>& out) const override {
    Cut</*kGuarded=*/true>(piece, out);
  }

 private:
  static constexpr TokenId kForeign = -1;
  static constexpr size_t kWindow = 2 * kMostTokenBytes;
  static constexpr size_t kLeastPart = 256;  // bytes; so that parts cost less than tokens
  struct Best {
    uint32_t bytes = 0;  // 0: there is no way yet
    TokenId id = kForeign;
  };

  // Neighbours of the kind become one token. The unknown token may be written out.
  bool IsForeign(TokenId id) const { return id == kForeign || id == unknown_; }

  template <bool kGuarded>
  void Cut(std::string_view piece, std::vector<TokenId>& out) const {
    // best[i]: the last token of the best way to cut piece[0, begin + i); sums[i % kWindow]: the
    // score of the best way to cut piece[0, i). No token is as long as the window.
    std::vector<Best> best(std::min(piece.size(), 2 * kLeastPart) + 1);
    std::array<Score, kWindow> sums;
    sums[0] = 0;
    size_t begin = 0, reach = 0;  // of the part; where the farthest of its tokens ends
    for (size_t at = 0, next; at < piece.size(); at = next) {
      // All ways meet where no token goes on. Foreign characters may go on, because neighbours
      // become one token.
      if (reach == at && at - begin >= kLeastPart && !IsForeign(best[at - begin].id)) {
        AppendTokens<kGuarded>(piece.substr(begin, at - begin), best, out);
        std::fill_n(best.begin(), at - begin + 1, Best());
        begin = at;
      }
      next = at + ReadUtf8(piece, at).bytes;
      const Score till_here = sums[at % kWindow];
      bool known = false;
      const auto offer = [&](size_t bytes, TokenId id, Score score) {
        const size_t end = at + bytes;
        if (best.size() <= end - begin) best.resize(2 * (end - begin));
        reach = std::max(reach, end);
        Best& there = best[end - begin];
        const Score sum = score + till_here;
        if (there.bytes != 0 && !(sum > sums[end % kWindow])) return;
        sums[end % kWindow] = sum;
        there = {static_cast<uint32_t>(bytes), id};
      };
      trie_.ForEachPrefix(piece.substr(at), [&](size_t bytes, TokenId id) {
        if constexpr (kGuarded) {
          if (guarded_[static_cast<size_t>(id)]) return;
        }
        offer(bytes, id, scores_[static_cast<size_t>(id)]);
        known = known || at + bytes == next;
      });
      if (!known) offer(next - at, kForeign, unknown_score_);
    }
    AppendTokens<kGuarded>(piece.substr(begin), best, out);
  }

  // Appends the tokens of a part, of which `best` has the best way.
  template <bool kGuarded>
  void AppendTokens(std::string_view part, const std::vector<Best>& best,
                    std::vector<TokenId>& out) const {
    const size_t begin = out.size();
    for (size_t end = part.size(); end > 0;) {
      const size_t last = end;
      TokenId id = best[end].id;
      end -= best[end].bytes;
      if (IsForeign(id)) {
        while (end > 0 && IsForeign(best[end].id)) end -= best[end].bytes;
        const std::string_view text = part.substr(end, last - end);
        id = trie_.Find(text);
        if (id < 0 || (kGuarded && guarded_[static_cast<size_t>(id)])) {
          AppendForeign(text, out);
          continue;
        }
      }
      out.push_back(id);
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end());
  }

  // Appends the tokens from the last to the first.
  void AppendForeign(std::string_view text, std::vector<TokenId>& out) const {
    const auto has_token = [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; };
    if (std::ranges::all_of(text, has_token)) {
      for (size_t at = text.size(); at > 0; --at) {
        out.push_back(bytes_[static_cast<uint8_t>(text[at - 1])]);
      }
    } else if (unknown_ >= 0) {
      out.push_back(unknown_);
    }
  }

  const Trie trie_;
  const std::vector<Score> scores_;
  const std::array<TokenId, 256> bytes_;
  const std::vector<bool> guarded_;
  const TokenId unknown_;
  Score unknown_score_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const PieceModel>> MakeUnigram(const PieceVocabulary& vocabulary) {
  if (vocabulary.scores.size() != vocabulary.texts.size()) {
    return InvalidArgument("tokenizer: ", vocabulary.texts.size(), " tokens and ",
                           vocabulary.scores.size(), " scores");
  }
  if (!std::ranges::all_of(vocabulary.scores, [](double s) { return std::isfinite(s); })) {
    return InvalidArgument("tokenizer: a score is not a finite number");
  }
  auto trie = VocabularyTrie(vocabulary.texts);
  if (!trie.ok()) return trie.status();
  if (vocabulary.single_precision) {
    return std::make_unique<Unigram<float>>(*std::move(trie), vocabulary);
  }
  return std::make_unique<Unigram<double>>(*std::move(trie), vocabulary);
}

}  // namespace flotilla::model
