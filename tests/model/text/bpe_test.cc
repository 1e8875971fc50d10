#include "model/text/bpe.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::model {
namespace {

// The heap, the ranks and the scan must give the same result, in one part and in several. The rules
// are those of a trained vocabulary, or (for the heap) rules that no vocabulary has.
class Merging : public ::testing::TestWithParam<bool> {};

struct RandomRules {
  RandomRules(uint32_t count, bool shuffled, std::mt19937& random) {
    for (int b = 0; b < 5; ++b) merges.SetByteToken('a' + b, b);
    std::vector<uint32_t> ranks(count);
    std::iota(ranks.begin(), ranks.end(), 0);
    if (shuffled) std::ranges::shuffle(ranks, random);
    for (const uint32_t rank : ranks) {
      const TokenId left = Drawn(random), right = Drawn(random);
      merges.AddMerge(left, right, static_cast<TokenId>(bytes.size()), rank,
                      merges.SeamOf(bytes[left], bytes[right]));
      result_of[rank] = static_cast<TokenId>(bytes.size());
      bytes.push_back(bytes[left] + bytes[right]);
    }
  }

  // By definition the lowest-ranked rule applies, the leftmost on ties, until none applies.
  std::vector<TokenId> ByDefinition(std::string_view piece) const {
    std::vector<TokenId> ids;
    for (const char c : piece) ids.push_back(c - 'a');
    while (true) {
      uint32_t best = UINT32_MAX;
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto rank = merges.RankOf(ids[i], ids[i + 1]);
        if (rank && *rank < best) best = *rank, at = i;
      }
      if (best == UINT32_MAX) return ids;
      ids[at] = result_of.at(best);
      ids.erase(ids.begin() + static_cast<long>(at) + 1);
    }
  }

  // Any token but 'e', of which no rule is.
  TokenId Drawn(std::mt19937& random) const {
    const auto id = static_cast<TokenId>(random() % bytes.size());
    return id == 4 ? 0 : id;
  }

  BpeMerges merges;
  std::vector<std::string> bytes = {"a", "b", "c", "d", "e"};
  std::map<uint32_t, TokenId> result_of;
};

TEST_P(Merging, LongAndShortPiecesMergeAlike) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const RandomRules rules(round % 2 == 0 ? 6 : 60, GetParam(), random);
    for (const size_t size : {60, 100, 100, 100, 1000}) {
      std::string piece;
      while (piece.size() < size) {
        piece += static_cast<char>('a' + (random() % 30 == 0 ? 4 : random() % 4));
      }
      std::vector<TokenId> ids;
      rules.merges.Encode(piece, ids);
      ASSERT_EQ(ids, rules.ByDefinition(piece)) << round << " " << piece;
    }
  }
}

// A part of more than 4,096 symbols merges rank by rank.
TEST_P(Merging, LongPartsMergeAlike) {
  std::mt19937 random(12);
  for (int round = 0; round < 6; ++round) {
    RandomRules rules(60, GetParam(), random);
    // A rule of a token that never comes about: no place of the piece is without a seam of rules.
    for (const char* seam : {"aa", "ab", "ba", "bb"}) {
      rules.merges.AddMerge(1000, 1000, 1000, 1000, rules.merges.SeamOf({seam, 1}, {seam + 1, 1}));
    }
    std::string piece(4500, 'a');
    for (char& c : piece) c = random() % 20 == 0 ? 'b' : 'a';
    std::vector<TokenId> ids;
    rules.merges.Encode(piece, ids);
    ASSERT_EQ(ids, rules.ByDefinition(piece)) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Merging, ::testing::Bool());

}  // namespace
}  // namespace flotilla::model
