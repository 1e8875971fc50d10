// The shards of a row together give the same results as the whole row, bit for bit.
#include "worker/compute/row_partials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/compute/whole_row.h"
#include "worker/compute/sampler.h"

namespace flotilla::worker {
namespace {

constexpr float kLargest = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kChunk = kernels::kVocabularyChunk;
constexpr int kRounds = 60;

using Random = std::mt19937;

int Int(Random& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}

// Few values, so that there are ties within shards and between them.
std::vector<float> CoarseRow(int n, Random& random) {
  std::vector<float> row(n);
  for (float& logit : row) logit = static_cast<float>(Int(random, -40, 40)) / 8;
  for (int i = 0; i < n / 20; ++i) row[Int(random, 0, n - 1)] = -kLargest;
  return row;
}

std::vector<TokenId> RandomTokens(int vocab, Random& random) {
  std::vector<TokenId> tokens(Int(random, 0, 600));
  for (TokenId& token : tokens) token = Int(random, 0, vocab - 1);
  // Some tokens occur often.
  for (std::size_t i = 3; i < tokens.size(); i += 3) tokens[i] = tokens[i - 1];
  return tokens;
}

// Returns 2 to 6 shards of at least one chunk each.
std::vector<IndexRange> RandomShards(std::uint32_t vocab, Random& random) {
  const std::uint32_t chunks = (vocab + kChunk - 1) / kChunk;
  std::vector<std::uint32_t> cuts(chunks - 1);
  for (std::uint32_t i = 0; i < cuts.size(); ++i) cuts[i] = i + 1;
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(std::min<std::size_t>(cuts.size(), Int(random, 1, 5)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<IndexRange> shards;
  std::uint32_t begin = 0;
  for (const std::uint32_t vocabulary : cuts) {
    shards.push_back({begin, vocabulary * kChunk});
    begin = vocabulary * kChunk;
  }
  shards.push_back({begin, vocab});
  return shards;
}

// A request to draw a token from the shards of a row.
RowRequest RequestOf(const TokenDraw& draw, std::int32_t top) {
  RowRequest request;
  request.top = top;
  request.pick = draw.greedy() ? RowRequest::Pick::kGreedy : RowRequest::Pick::kGumbel;
  if (!draw.greedy()) request.inverse_temperature = 1.0f / draw.temperature;
  request.noise = draw.noise;
  return request;
}

class RowPartialsTest : public ::testing::TestWithParam<kernels::Isa> {
 protected:
  // Calls part(shard, its logits) for each shard and joins the results.
  template <class Part>
  static RowPartial Gather(const std::vector<float>& row, const std::vector<IndexRange>& shards,
                           const VocabularyShards& vocabulary, Part part) {
    RowPartial all;
    for (std::uint32_t i = 0; i < vocabulary.size(); ++i) {
      const auto logits = absl::MakeConstSpan(row).subspan(shards[i].begin, shards[i].size());
      Append(part(vocabulary.shard(i), logits), all);
    }
    return all;
  }

  template <class T>
  static void ExpectEqual(const absl::StatusOr<T>& expected, const absl::StatusOr<T>& actual) {
    ASSERT_EQ(expected.status().code(), actual.status().code());
    if (!expected.ok()) return;
    EXPECT_EQ(*expected, *actual);
  }

  const kernels::Ops& ops_ = kernels::GetOps(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Isas, RowPartialsTest, ::testing::ValuesIn(kernels::DetectIsas()),
                         [](const auto& info) {
                           return std::string(kernels::GetOps(info.param).name);
                         });

TEST_P(RowPartialsTest, SayWhatTheWholeRowSays) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", round));
    Random random(round);
    const int vocab = Int(random, kChunk + 1, 12 * kChunk);
    std::vector<float> row = CoarseRow(vocab, random);
    // Some rows have a shard of -infinity only. Some have no softmax.
    if (round % 6 == 1) std::fill(row.begin(), row.begin() + kChunk, -kLargest);
    if (round % 6 == 3) row[Int(random, 0, vocab - 1)] = kNan;
    if (round % 6 == 5) row[Int(random, 0, vocab - 1)] = kLargest;
    const auto shards = RandomShards(static_cast<std::uint32_t>(vocab), random);
    // In a third of the rows the last logits belong to no token; these may be whole shards.
    const int tokens = round % 3 == 2 ? Int(random, 1, vocab) : vocab;
    const VocabularyShards vocabulary(shards, tokens);
    ASSERT_EQ(vocabulary.size(), shards.size());

    for (int draw = 0; draw < 12; ++draw) {
      SamplingParams sampling;
      sampling.temperature = draw % 2 == 0 ? 0.0f : 0.25f * static_cast<float>(draw);
      sampling.seed = random();
      const auto known = RandomTokens(tokens, random), drafts = RandomTokens(tokens, random);
      TokenPosition position{.sequence = SequenceIndex(draw), .output_index = std::uint32_t(round)};
      if (draw >= 4) {
        const std::size_t prompt = known.size() / 2;
        position.prompt = absl::MakeConstSpan(known).first(prompt);
        position.output = absl::MakeConstSpan(known).subspan(prompt);
        position.drafts = drafts;
        sampling.repetition_penalty = draw % 4 == 0 ? 1.5f : 1.0f;
        sampling.frequency_penalty = draw % 4 == 1 ? 0.75f : 0.0f;
        sampling.presence_penalty = draw % 4 == 1 ? -0.5f : 0.0f;
        for (int i = 0; draw % 4 == 2 && i < 300; ++i) {
          sampling.logit_bias.push_back({Int(random, 0, tokens - 1), 9.0f});
        }
        if (draw % 4 == 3) {
          position.banned = drafts;
          sampling.dry_multiplier = 2;
          sampling.dry_allowed_length = 0;
        }
      }
      ASSERT_FALSE(NeedsFullRow(sampling));
      const LogprobSpec logprobs{.output_top = draw % 3 == 0 ? LogprobSpec::kOff : 5 * (draw % 5)};
      const TokenDraw token_draw = MakeDraw(sampling, position);
      const RowPartial sample =
          Gather(row, shards, vocabulary, [&](const auto& shard, auto logits) {
            return ReduceRow(ops_, shard, logits, RequestOf(token_draw, logprobs.output_top),
                             token_draw.edits);
          });
      ExpectEqual(SampleRow(ops_, row, tokens, token_draw, logprobs.output_top),
                  ConcludeToken(sample, vocabulary, logprobs.output_top));

      const TokenId token = Int(random, 0, tokens - 1);
      const std::int32_t top = Int(random, -1, LogprobSpec::kMaxTop);
      const RowPartial known_token =
          Gather(row, shards, vocabulary, [&](const auto& shard, auto logits) {
            RowRequest request{.top = top, .pick = RowRequest::Pick::kKnown, .token = token};
            return ReduceRow(ops_, shard, logits, request, {});
          });
      ExpectEqual(RowLogprobs(ops_, row, tokens, token, top),
                  ConcludeToken(known_token, vocabulary, top));

      const auto count = static_cast<std::uint32_t>(Int(random, 1, BeamOptions::kMaxCandidates));
      const RowPartial candidates =
          Gather(row, shards, vocabulary, [&](const auto& shard, auto logits) {
            return ReduceRow(ops_, shard, logits, {.top = static_cast<std::int32_t>(count)}, {});
          });
      ExpectEqual(RowCandidates(ops_, row, tokens, count),
                  ConcludeCandidates(candidates, vocabulary, count));
    }
  }
}

TEST(RowPartialsOfOneRowTest, OfEqualLogitsTheLowestIdWins) {
  const kernels::Ops& ops = kernels::GetOps(kernels::Isa::kReference);
  std::vector<float> row(3 * kChunk, -1.0f);
  row[2 * kChunk + 1] = row[kChunk + 7] = 2.0f;
  const VocabularyShards vocabulary({{0, kChunk}, {kChunk, 2 * kChunk}, {2 * kChunk, 3 * kChunk}},
                                    3 * kChunk);
  RowPartial all;
  for (std::uint32_t i = 0; i < vocabulary.size(); ++i) {
    const auto logits = absl::MakeConstSpan(row).subspan(i * kChunk, kChunk);
    SamplingParams greedy;
    greedy.temperature = 0;
    const TokenDraw draw = MakeDraw(greedy, {});
    Append(ReduceRow(ops, vocabulary.shard(i), logits, RequestOf(draw, 3), draw.edits), all);
  }
  const auto token = ConcludeToken(all, vocabulary, 3);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->token, static_cast<TokenId>(kChunk + 7));
  ASSERT_EQ(token->top.size(), 3u);
  EXPECT_EQ(token->top[0].token, static_cast<TokenId>(kChunk + 7));
  EXPECT_EQ(token->top[1].token, static_cast<TokenId>(2 * kChunk + 1));
  EXPECT_EQ(token->top[2].token, 0);
}

// If all tokens of a shard are banned, another shard gives the token. If all tokens of the row are
// banned, the draw fails.
TEST(RowPartialsOfOneRowTest, WhereAllIsBannedNothingIsDrawn) {
  const kernels::Ops& ops = kernels::GetOps(kernels::Isa::kReference);
  const std::vector<float> row(kChunk + 2, 1.0f);
  const VocabularyShards vocabulary({{0, kChunk}, {kChunk, kChunk + 2}}, kChunk + 2);
  std::vector<TokenId> banned(kChunk + 2);
  for (std::size_t i = 0; i < banned.size(); ++i) banned[i] = static_cast<TokenId>(i);
  const auto draw = [&](absl::Span<const TokenId> all_but) {
    RowPartial all;
    for (std::uint32_t i = 0; i < vocabulary.size(); ++i) {
      const auto logits = absl::MakeConstSpan(row).subspan(i * kChunk, i == 0 ? kChunk : 2);
      const TokenDraw token = MakeDraw({.temperature = 1}, {.banned = all_but});
      Append(ReduceRow(ops, vocabulary.shard(i), logits, RequestOf(token, 0), token.edits), all);
    }
    return ConcludeToken(all, vocabulary, 0);
  };
  const auto last = draw(absl::MakeConstSpan(banned).first(kChunk + 1));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->token, static_cast<TokenId>(kChunk + 1));
  EXPECT_EQ(draw(banned).status().code(), absl::StatusCode::kInternal);
}

// top-k, top-p and min-p need the whole row, because the tokens that they keep depend on all of it.
TEST(RowPartialsOfOneRowTest, WhatChoosesAmongTheBestNeedsTheWholeRow) {
  const auto needs = [](SamplingParams sampling) {
    sampling.temperature = 1;
    const bool drawn = NeedsFullRow(sampling);
    sampling.temperature = 0;
    return std::pair(drawn, NeedsFullRow(sampling));
  };
  EXPECT_EQ(needs({}), std::pair(false, false));
  // A greedy draw does not, because the best token is always kept.
  EXPECT_EQ(needs({.top_k = 4}), std::pair(true, false));
  EXPECT_EQ(needs({.top_p = 0.5f}), std::pair(true, false));
  EXPECT_EQ(needs({.min_p = 0.5f}), std::pair(true, false));
  EXPECT_EQ(needs({.repetition_penalty = 1.5f}), std::pair(false, false));
}

}  // namespace
}  // namespace flotilla::worker
