#include "worker/compute/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/noise.h"
#include "tests/worker/compute/whole_row.h"

namespace flotilla::worker {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomRow(int n, std::mt19937& random, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& logit : row) logit = normal(random);
  return row;
}

std::uint32_t Size(const std::vector<float>& row) { return static_cast<std::uint32_t>(row.size()); }

// The kept tokens by the definition, with all tokens sorted and sums in double.
struct Naive {
  std::vector<TokenId> kept;
  double margin = 1;  // distance of the filters' numbers from the nearest boundary
};

// XTC of llama.cpp's sampler, which counts the tokens from the best one on that are likely enough,
// and takes away all of them but the last; here also not the last one's ties.
void NaiveXtc(const std::vector<float>& row, const SamplingParams& p, Naive& naive) {
  std::vector<TokenId>& kept = naive.kept;
  std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) { return row[a] > row[b]; });
  double total = 0;
  for (TokenId token : kept) total += std::exp(double{row[token]} / p.temperature);
  std::size_t last = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const double share = std::exp(double{row[kept[i]]} / p.temperature) / total;
    naive.margin = std::min(naive.margin, std::abs(share - double{p.xtc_threshold}));
    if (share >= p.xtc_threshold) last = i;
  }
  const float least = row[kept[last]];
  std::erase_if(kept, [&](TokenId token) { return row[token] > least; });
}

// TypicalLogitsWarper of transformers 4.46, line by line, in double.
void NaiveTypical(const std::vector<float>& row, const SamplingParams& p, Naive& naive) {
  double total = 0, entropy = 0, sum = 0;
  for (TokenId token : naive.kept) total += std::exp(double{row[token]} / p.temperature);
  const auto normalized = [&](TokenId token) {
    return double{row[token]} / p.temperature - std::log(total);
  };
  for (TokenId token : naive.kept) entropy -= normalized(token) * std::exp(normalized(token));
  std::vector<std::pair<double, TokenId>> sorted;
  for (TokenId token : naive.kept) {
    sorted.emplace_back(std::abs(-normalized(token) - entropy), token);
  }
  std::sort(sorted.begin(), sorted.end());
  std::size_t last = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    sum += std::exp(normalized(sorted[i].second));
    naive.margin = std::min(naive.margin, std::abs(sum - double{p.typical_p}));
    last += sum < p.typical_p;
  }
  const auto [farthest, at] = sorted[std::min(last, sorted.size() - 1)];
  naive.kept.clear();
  for (const auto& [distance, token] : sorted) {
    // The sampler's sums are of floats.
    const bool tie = row[token] == row[at];
    if (!tie) naive.margin = std::min(naive.margin, std::abs(distance - farthest) / 30);
    if (tie || distance <= farthest) naive.kept.push_back(token);
  }
}

Naive NaiveKept(const std::vector<float>& row, const SamplingParams& p) {
  Naive naive;
  std::vector<TokenId> order(row.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  if (p.top_n_sigma > 0) {
    double sum = 0, squares = 0;
    for (const float logit : row) sum += logit;
    const double mean = sum / static_cast<double>(row.size());
    for (const float logit : row) squares += std::pow(logit - mean, 2);
    const double sigma = std::sqrt(squares / static_cast<double>(row.size()));
    const double least = row[order[0]] - p.top_n_sigma * sigma;
    for (const float logit : row) naive.margin = std::min(naive.margin, std::abs(logit - least));
    while (row[order.back()] < least) order.pop_back();
  }
  if (p.min_p > 0) {
    const double least = row[order[0]] + std::log(double{p.min_p}) * p.temperature;
    while (row[order.back()] < least) {
      naive.margin = std::min(naive.margin, least - row[order.back()]);
      order.pop_back();
    }
    naive.margin = std::min(naive.margin, row[order.back()] - least);
  }
  if (p.top_k > 0 && p.top_k < static_cast<int>(order.size())) {
    const float kth = row[order[p.top_k - 1]];
    while (row[order.back()] < kth) order.pop_back();
  }
  double total = 0;
  std::vector<double> mass;
  for (TokenId token : order) {
    mass.push_back(std::exp((double{row[token]} - row[order[0]]) / p.temperature));
    total += mass.back();
  }
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    naive.kept.push_back(order[i]);
    sum += mass[i] / total;
    if (p.top_p >= 1) continue;
    naive.margin = std::min(naive.margin, std::abs(sum - double{p.top_p}));
    if (sum >= p.top_p) break;
  }
  if (p.typical_p < 1) NaiveTypical(row, p, naive);
  if (p.xtc_probability == 1) NaiveXtc(row, p, naive);
  return naive;
}

TokenId NaiveDraw(const std::vector<float>& row, const std::vector<TokenId>& kept,
                  const SamplingParams& p, TokenPosition position) {
  const kernels::NoiseKey key =
      kernels::MakeNoiseKey(SequenceSeed(p.seed, position.sequence), position.output_index);
  TokenId best = -1;
  float best_score = 0;
  for (TokenId token : kept) {
    const float score = std::fma(row[token], 1.0f / p.temperature,
                                 kernels::GumbelNoise(key, static_cast<std::uint32_t>(token)));
    if (best < 0 || score > best_score || (score == best_score && token < best)) {
      best = token;
      best_score = score;
    }
  }
  return best;
}

// The tests run on every instruction path of this machine.
class SamplerTest : public ::testing::TestWithParam<kernels::Isa> {
 protected:
  SampledToken Sample(const std::vector<float>& row, const SamplingParams& sampling,
                      LogprobSpec logprobs = {}, TokenPosition position = {}) {
    const auto token =
        SampleRow(ops_, row, Size(row), MakeDraw(sampling, position), logprobs.output_top);
    EXPECT_TRUE(token.ok()) << token.status();
    return token.value_or(SampledToken{.token = -1});
  }

  // Returns how often each token is drawn at `draws` positions.
  std::map<TokenId, int> Count(const std::vector<float>& row, const SamplingParams& sampling,
                               int draws) {
    std::map<TokenId, int> counts;
    for (int i = 0; i < draws; ++i) {
      ++counts[Sample(row, sampling, {}, {SequenceIndex(1), static_cast<std::uint32_t>(i)}).token];
    }
    return counts;
  }

  const kernels::Ops& ops_ = kernels::GetOps(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Isas, SamplerTest, ::testing::ValuesIn(kernels::DetectIsas()),
                         [](const auto& info) {
                           return std::string(kernels::GetOps(info.param).name);
                         });

TEST_P(SamplerTest, GreedyTakesTheLowestOfTheBest) {
  SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(Sample({1, 3, 2, 3}, greedy).token, 1);
  EXPECT_EQ(Sample({-kInf, -5, -kInf}, greedy).token, 1);
  // A temperature that is too small to divide by is greedy, whatever the other parameters are.
  EXPECT_EQ(Sample({1, 3, 2, 3}, {.temperature = 1e-7f, .top_k = 3, .top_p = 0.5f}).token, 1);
}

// A request with a sequence's seed gives the tokens of that sequence.
TEST_P(SamplerTest, SequenceSeedGivesTheSequencesTokens) {
  EXPECT_EQ(SequenceSeed(1234567, SequenceIndex(0)), 1234567u);
  EXPECT_EQ(SequenceSeed(1234567, SequenceIndex(1)), 6457827717110365317u);  // published vectors
  EXPECT_EQ(SequenceSeed(1234567, SequenceIndex(2)), 3203168211198807973u);
  std::mt19937 random(5);
  const std::vector<float> row = RandomRow(1000, random, 1.0f);
  std::set<TokenId> tokens;
  for (std::uint32_t sequence = 0; sequence < 8; ++sequence) {
    const SequenceIndex index(sequence);
    const TokenId token = Sample(row, {.seed = 77}, {}, {index, 3}).token;
    EXPECT_EQ(token,
              Sample(row, {.seed = SequenceSeed(77, index)}, {}, {SequenceIndex(0), 3}).token);
    tokens.insert(token);
  }
  EXPECT_GT(tokens.size(), 4u);
}

TEST_P(SamplerTest, EqualsTheNaiveReference) {
  const unsigned seed = 11;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int compared = 0;
  for (const int n : {1, 2, 7, 64, 1000, 1025, 5000}) {
    for (int round = 0; round < 60; ++round) {
      std::vector<float> row = RandomRow(n, random, 1.0f + static_cast<float>(round % 5));
      if (round % 3 == 0) {  // many ties
        for (float& logit : row) logit = std::round(logit);
      }
      SamplingParams p;
      p.temperature = std::vector<float>{0.2f, 0.7f, 1.0f, 2.0f}[random() % 4];
      p.top_k = std::vector<std::int32_t>{0, 1, 5, 40, 64, 65, 500, 100000}[random() % 8];
      p.top_p = std::vector<float>{1.0f, 0.01f, 0.5f, 0.9f, 0.999f}[random() % 5];
      p.min_p = std::vector<float>{0, 0, 0.05f, 0.3f, 0.9f}[random() % 5];
      p.typical_p = std::vector<float>{1, 1, 0.1f, 0.5f, 0.95f}[random() % 5];
      p.top_n_sigma = std::vector<float>{0, 0, 0.3f, 1, 2.5f}[random() % 5];
      p.xtc_probability = random() % 2 ? 1 : 0;
      p.xtc_threshold = std::vector<float>{0.01f, 0.1f, 0.3f, 0.6f}[random() % 4];
      p.seed = random();
      const TokenPosition position{SequenceIndex(random() % 4),
                                   static_cast<std::uint32_t>(random() % 99)};
      const Naive naive = NaiveKept(row, p);
      if (naive.margin < 1e-6) continue;  // where rounding may decide
      ++compared;
      ASSERT_EQ(Sample(row, p, {}, position).token, NaiveDraw(row, naive.kept, p, position))
          << "n " << n << " T " << p.temperature << " k " << p.top_k << " p " << p.top_p;
    }
  }
  EXPECT_GT(compared, 350);
}

// The logits by the definition of each field, token by token.
std::vector<float> NaiveChanged(std::vector<float> row, const SamplingParams& p,
                                const std::vector<TokenId>& prompt,
                                const std::vector<TokenId>& output) {
  for (const LogitBias& entry : p.logit_bias) row[entry.token] += entry.bias;
  for (TokenId token = 0; token < static_cast<TokenId>(row.size()); ++token) {
    const auto times = std::count(output.begin(), output.end(), token);
    const bool seen = times > 0 || std::count(prompt.begin(), prompt.end(), token) > 0;
    float& logit = row[token];
    if (seen) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (times == 0) continue;
    logit -= p.frequency_penalty * static_cast<float>(times);
    logit -= p.presence_penalty;
  }
  return row;
}

std::vector<TokenId> RandomTokens(int count, int vocab, std::mt19937& random) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
  return tokens;
}

// Penalties and bias work as if the model had given the changed logits. Drafts count as output.
// Log-probabilities stay those of the model.
TEST_P(SamplerTest, ChangedLogitsEqualTheNaiveReference) {
  const unsigned seed = 13;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int changed = 0;
  for (int round = 0; round < 300; ++round) {
    const int vocab = std::vector<int>{7, 100, 1025}[round % 3];
    const std::vector<float> row = RandomRow(vocab, random, 2);
    SamplingParams p{.temperature = round % 2 ? 0.7f : 0.0f};
    p.top_p = round % 5 ? 1.0f : 0.9f;
    p.seed = random();
    const SamplingParams plain = p;
    p.repetition_penalty = std::vector<float>{1, 1.3f, 0.5f, 100}[random() % 4];
    p.frequency_penalty = std::vector<float>{0, 0.4f, -2, 2}[random() % 4];
    p.presence_penalty = std::vector<float>{0, 0.7f, -1.5f, 2}[random() % 4];
    if (random() % 2) p.logit_bias = {{1, -100.0f}, {4, 1.5f}, {6, 0.25f}};
    const std::vector<TokenId> prompt = RandomTokens(random() % 20, vocab, random);
    std::vector<TokenId> output = RandomTokens(random() % 20, vocab, random);
    const std::vector<TokenId> drafts = RandomTokens(random() % 4, vocab, random);
    const TokenPosition position{.sequence = SequenceIndex(random() % 3),
                                 .output_index = static_cast<std::uint32_t>(output.size()),
                                 .prompt = prompt,
                                 .output = output,
                                 .drafts = drafts};
    const SampledToken sampled = Sample(row, p, {.output_top = 2}, position);
    std::vector<TokenId> all = output;
    all.insert(all.end(), drafts.begin(), drafts.end());
    const TokenPosition bare{position.sequence, position.output_index};
    const SampledToken expected =
        Sample(NaiveChanged(row, p, prompt, all), plain, {.output_top = 2}, bare);
    ASSERT_EQ(sampled.token, expected.token) << "round " << round;
    ASSERT_EQ(sampled.top, Sample(row, plain, {.output_top = 2}, bare).top);
    const auto known = RowLogprobs(ops_, row, Size(row), sampled.token, 2);
    ASSERT_EQ(sampled, *known);
    changed += sampled.token != Sample(row, plain, {}, bare).token;
  }
  EXPECT_GT(changed, 50);
}

TEST_P(SamplerTest, StopTokensThatMayNotComeAreNeverDrawn) {
  const std::vector<TokenId> stops = {-1, 1, 3, 4, 1 << 30};  // of four tokens
  TokenPosition position;
  position.banned = stops;
  EXPECT_EQ(Sample({1, 3, 2, 3}, {.temperature = 0}, {}, position).token, 2);
  // A bias does not make them possible.
  const SamplingParams biased{.temperature = 0, .logit_bias = {{1, 100.0f}}};
  EXPECT_EQ(Sample({1, 3, 2, 3}, biased, {}, position).token, 2);
  for (std::uint32_t i = 0; i < 100; ++i) {
    position.output_index = i;
    EXPECT_EQ(Sample({1, 3, 2, 3}, {.top_k = 1, .seed = 8}, {}, position).token, 2);
  }
}

TEST_P(SamplerTest, MinPKeepsWhatIsLikelyEnough) {
  const std::vector<float> row = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  EXPECT_EQ(Count(row, {.min_p = 0.2f}, 500).size(), 4u);
  EXPECT_EQ(Count(row, {.min_p = 0.3f}, 500).size(), 3u);
  EXPECT_EQ(Count(row, {.min_p = 0.6f}, 500).size(), 2u);
  EXPECT_EQ(Count({1, 2, 2, 0}, {.min_p = 1}, 500).size(), 2u);
  // At half the temperature the shares are the squares: 0.16 to 0.09, 0.04 and 0.01.
  EXPECT_EQ(Count(row, {.temperature = 0.5f, .min_p = 0.3f}, 500).size(), 2u);
  // The mass of top-p is taken over the tokens that min-p kept. Of 0.4 and 0.3 the first has 0.57.
  EXPECT_EQ(Count(row, {.top_p = 0.55f, .min_p = 0.6f}, 200).size(), 1u);
  EXPECT_EQ(Count(row, {.top_p = 0.6f, .min_p = 0.6f}, 200).size(), 2u);
}

// What transformers 4.46.3 (torch 1.12.1) keeps: its warpers for temperature, top_k, top_p or
// min_p, then TypicalLogitsWarper(typical_p).
TEST_P(SamplerTest, TypicalPKeepsWhatTransformersKeeps) {
  struct Recorded {
    std::vector<float> row;
    SamplingParams sampling;
    std::set<TokenId> kept;
  };
  const std::vector<Recorded> recorded = {
      {{0.375, 0.125, 0, 0.25, -0.25, -0.125, -0.75, 0.25, -0.5, -0.25, -0.5, 0},
       {.typical_p = 0.2f},
       {2, 5, 11}},
      {{1, -1, 4, 6, 1, -2, -2, 1, 0, -6, 2, 0},
       {.temperature = 2, .typical_p = 0.8f},
       {0, 2, 3, 4, 7, 10}},
      {{2.875, -0.875, -2.75, 0.875, 1, 2.375, -2.25, 3.125, -2.375, 1.625, 1, -2.875},
       {.typical_p = 0.95f},
       {0, 4, 5, 7, 9, 10}},
      {{-0.25, 0.375, -0.25, -0.375, -0.875, 0.5, 0, -0.375, 0.125, -0.625, 0.25, -0.125},
       {.typical_p = 0.05f},
       {6}},
      {{1, 1, 1, -1, 0, 0, -1, 0, 0, -1, 0, 0},
       {.top_k = 6, .typical_p = 0.95f},
       {0, 1, 2, 4, 5, 7, 8, 10, 11}},
      {{0.125, 2.125, -1, -0.75, 0.25, 1.125, -1.25, -2.25, 0.375, 0.25, -0.375, 0.25},
       {.temperature = 0.5f, .top_p = 0.875f, .typical_p = 0.95f},
       {1, 5}},
      {{0, 0, 4, -1, -1, 3, -2, 2, -3, -2, 4, -5},  // the best are not typical
       {.temperature = 2, .min_p = 0.0625f, .typical_p = 0.05f},
       {5}},
      {{2.375, 1.375, 3.875, -1.75, 0.5, -0.75, -0.875, 4.625, 2.25, 0.25, 4.75, -1},
       {.temperature = 2, .min_p = 0.0625f, .typical_p = 0.95f},
       {0, 1, 2, 4, 7, 8, 10}}};
  for (const Recorded& one : recorded) {
    std::set<TokenId> drawn;
    for (const auto& [token, count] : Count(one.row, one.sampling, 2000)) drawn.insert(token);
    EXPECT_EQ(drawn, one.kept) << &one - recorded.data();
    EXPECT_TRUE(NeedsFullRow(one.sampling));
  }
}

// By a twin in numpy:
//   kept = x >= x.max() - n * x.std()
TEST_P(SamplerTest, TopNSigmaKeepsWhatIsNearTheBest) {
  const std::vector<float> row = {0.5, 2, -1, 3.5, 3, -4, 1, 2.5};  // std 2.31
  const auto kept = [&](float n) {
    std::set<TokenId> drawn;
    for (const auto& [token, count] : Count(row, {.temperature = 2, .top_n_sigma = n}, 2000)) {
      drawn.insert(token);
    }
    return drawn;
  };
  EXPECT_EQ(kept(0.1f), (std::set<TokenId>{3}));
  EXPECT_EQ(kept(0.5f), (std::set<TokenId>{3, 4, 7}));
  EXPECT_EQ(kept(1), (std::set<TokenId>{1, 3, 4, 7}));
  EXPECT_EQ(kept(2), (std::set<TokenId>{0, 1, 2, 3, 4, 6, 7}));
  EXPECT_EQ(kept(0).size(), 8u);
  // Tokens without a logit have no part in the deviation.
  const std::vector<float> more = {0.5, 2, -1, 3.5, -kInf, 3, -4, 1, 2.5, -kInf};
  EXPECT_EQ(Count(more, {.temperature = 2, .top_n_sigma = 1}, 2000).size(), 4u);
  EXPECT_TRUE(NeedsFullRow({.top_n_sigma = 1}));
}

// As if the row had no other tokens; what else changes logits acts on these.
TEST_P(SamplerTest, OnlyAllowedTokensAreDrawn) {
  const std::vector<float> row = {5, 1, 4, 2, -kInf, 3};
  const SamplingParams greedy{.temperature = 0, .allowed_tokens = {1, 3, 5}};
  EXPECT_EQ(Sample(row, greedy).token, 5);
  EXPECT_TRUE(NeedsFullRow(greedy));
  // Log-probabilities and alternatives are the model's.
  const SampledToken token = Sample(row, greedy, {.output_top = 1});
  EXPECT_EQ(token.top.at(0).token, 0);
  EXPECT_EQ(token.logprob,
            Sample({5, 1, 4, 2, -kInf, 3}, {.temperature = 0, .logit_bias = {{5, 90}}}).logprob);
  SamplingParams biased = greedy;
  biased.logit_bias = {{0, 100}, {3, 2}};
  EXPECT_EQ(Sample(row, biased).token, 3);
  std::map<TokenId, int> drawn = Count(row, {.temperature = 2, .allowed_tokens = {1, 3}}, 2000);
  EXPECT_EQ(drawn.size(), 2u);
  EXPECT_NEAR(drawn[3], 2000 / (1 + std::exp(-0.5)), 120);
  // They win over words that may not come, if these leave none of them.
  EXPECT_EQ(Sample(row, {.temperature = 0, .allowed_tokens = {1, 3}, .bad_words = {{3}}}).token, 1);
  EXPECT_EQ(
      Sample(row, {.temperature = 0, .allowed_tokens = {1, 3}, .bad_words = {{3}, {1}}}).token, 3);
  EXPECT_EQ(Sample(row, {.temperature = 0,
                         .logit_bias = {{3, -100}},
                         .allowed_tokens = {1, 3},
                         .bad_words = {{3}, {1}}})
                .token,
            1);
  // Nothing is left: the row fails, and only it.
  const auto none = SampleRow(ops_, row, Size(row), MakeDraw({.allowed_tokens = {4}}, {}), 0);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInternal);
}

// Only where the tokens before are its own, and only of the output. Drafts are output.
TEST_P(SamplerTest, NoTokenCompletesABadWord) {
  const std::vector<float> row = {1, 5, 4, 3, 2};
  const SamplingParams sampling{.temperature = 0, .bad_words = {{2, 3, 1}, {1, 1, 1, 1}, {0}}};
  const auto drawn = [&](std::vector<TokenId> prompt, std::vector<TokenId> output,
                         std::vector<TokenId> drafts) {
    return Sample(row, sampling, {}, {.prompt = prompt, .output = output, .drafts = drafts}).token;
  };
  EXPECT_EQ(drawn({}, {}, {}), 1);
  EXPECT_EQ(drawn({2, 3}, {}, {}), 1);
  EXPECT_EQ(drawn({}, {2, 3}, {}), 2);
  EXPECT_EQ(drawn({}, {4, 4, 2}, {3}), 2);
  EXPECT_EQ(drawn({}, {4}, {2, 3}), 2);
  EXPECT_EQ(drawn({2}, {3}, {}), 1);
  EXPECT_EQ(drawn({}, {3}, {}), 1);
  EXPECT_EQ(drawn({}, {2, 3, 0}, {}), 1);
  EXPECT_EQ(drawn({}, {1, 1}, {1}), 2);
  EXPECT_EQ(drawn({}, {1, 1}, {}), 1);
  // A word of one token never comes.
  EXPECT_EQ(Sample({9, 1}, sampling).token, 1);
  EXPECT_FALSE(NeedsFullRow(sampling));
}

// It comes whatever else was asked for, and nothing else does.
TEST_P(SamplerTest, TheEndOfThoughtsIsForced) {
  const std::vector<float> row = {1, 5, 4, 3, 2};
  const SamplingParams sampling{.temperature = 0.9f,
                                .top_k = 1,
                                .logit_bias = {{3, -100}},
                                .allowed_tokens = {1, 2},
                                .bad_words = {{3}},
                                .thinking = {.end = 3, .forced = {3, 0}, .budget = 2}};
  const auto drawn = [&](std::vector<TokenId> output, std::vector<TokenId> drafts) {
    return Sample(row, sampling, {}, {.output = output, .drafts = drafts, .banned = {}}).token;
  };
  EXPECT_EQ(drawn({2}, {}), 1);
  EXPECT_EQ(drawn({2, 2}, {}), 3);
  EXPECT_EQ(drawn({2}, {2}), 3);
  EXPECT_EQ(drawn({2, 2}, {3}), 0);
  EXPECT_EQ(drawn({2, 2, 3, 0}, {}), 1);
  EXPECT_TRUE(NeedsFullRow({.temperature = 0, .thinking = sampling.thinking}));
  // A constraint that excludes it wins, and then what else was asked for counts.
  const std::uint32_t mask = 0b00110;
  const std::vector<TokenId> output = {2, 2};
  const auto masked = [&](const SamplingParams& asked) {
    const TokenDraw draw = MakeDraw(asked, {.output = output});
    return SampleRow(ops_, row, Size(row), draw, 0, absl::MakeConstSpan(&mask, 1))->token;
  };
  EXPECT_EQ(masked(sampling), 1);
  SamplingParams without = sampling;
  without.allowed_tokens = {2};
  EXPECT_EQ(masked(without), 2);
}

// XTC leaves the least likely of the likely tokens, as often as it is asked to.
TEST_P(SamplerTest, XtcExcludesTheTopChoices) {
  // Shares of 0.4, 0.3, 0.2 and 0.1.
  const std::vector<float> row = {std::log(0.3f), std::log(0.4f), std::log(0.1f), std::log(0.2f)};
  constexpr int kDraws = 4000;
  const auto count = [&](float probability, float threshold) {
    return Count(row, {.xtc_probability = probability, .xtc_threshold = threshold}, kDraws);
  };
  EXPECT_EQ(count(0, 0.15f).size(), 4u);
  std::map<TokenId, int> always = count(1, 0.15f);
  EXPECT_EQ(always.size(), 2u);  // 0.2 and 0.1
  EXPECT_NEAR(always[3], kDraws * 2 / 3, 150);
  EXPECT_EQ(count(1, 0.05f).size(), 1u);  // 0.1
  EXPECT_EQ(count(1, 0.35f).size(), 4u);  // one choice is not too many
  EXPECT_EQ(count(1, 0.45f).size(), 4u);  // none is
  std::map<TokenId, int> half = count(0.5f, 0.15f);
  EXPECT_NEAR(half[1], kDraws * 0.5 * 0.4, 150);
  EXPECT_NEAR(half[3], kDraws * (0.5 * 0.2 + 0.5 * 2 / 3), 150);
  // The filters before leave shares of 4/7 and 3/7.
  EXPECT_EQ(Count(row, {.top_k = 2, .xtc_probability = 1, .xtc_threshold = 0.42f}, kDraws).size(),
            1u);
  // Ties with the last stay.
  EXPECT_EQ(Count({2, 1, 1, -3}, {.xtc_probability = 1, .xtc_threshold = 0.2f}, kDraws).size(), 3u);
  EXPECT_TRUE(NeedsFullRow({.xtc_probability = 0.1f}));
  EXPECT_FALSE(NeedsFullRow({.temperature = 0, .xtc_probability = 1}));
}

TEST_P(SamplerTest, EveryPathGivesTheBitsOfTheReference) {
  const unsigned seed = 12;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const kernels::Ops& reference = kernels::GetOps(kernels::Isa::kReference);
  for (int round = 0; round < 40; ++round) {
    const std::vector<float> row = RandomRow(3001, random, 4);
    SamplingParams p{.temperature = 0.8f, .top_k = round % 2 ? 100 : 0, .top_p = 0.95f};
    p.seed = random();
    if (round % 4 == 1) p.min_p = 0.02f;
    if (round % 4 == 2) p.typical_p = 0.7f;
    if (round % 5 == 2) p.top_n_sigma = 1.5f;
    if (round % 5 == 3) p.xtc_probability = 0.6f;
    if (round % 4 == 3) {
      p.repetition_penalty = 1.1f;
      p.frequency_penalty = 0.3f;
    }
    const std::vector<TokenId> prompt = RandomTokens(50, 3001, random);
    const TokenPosition position{.prompt = prompt, .output = prompt};
    const LogprobSpec logprobs{.output_top = 20};
    const auto expected =
        SampleRow(reference, row, Size(row), MakeDraw(p, position), logprobs.output_top);
    ASSERT_TRUE(expected.ok());
    EXPECT_EQ(Sample(row, p, logprobs, position), *expected);
  }
}

TEST_P(SamplerTest, TopKKeepsTiesWithTheLast) {
  const std::vector<float> row = {0, 2, 1, 1, -1, 1};
  std::set<TokenId> seen;
  for (const auto& [token, count] : Count(row, {.top_k = 2, .seed = 5}, 500)) seen.insert(token);
  EXPECT_EQ(seen, (std::set<TokenId>{1, 2, 3, 5}));
}

TEST_P(SamplerTest, TopPTakesTiesByAscendingId) {
  std::set<TokenId> seen;
  for (const auto& [token, count] : Count({1, 1, 1, 1}, {.top_p = 0.5f, .seed = 5}, 500)) {
    seen.insert(token);
  }
  EXPECT_EQ(seen, (std::set<TokenId>{0, 1}));
  // The best token is kept even if top_p is smaller than its mass.
  EXPECT_EQ(Count({1, 2, 1}, {.top_p = 1e-6f}, 100), (std::map<TokenId, int>{{1, 100}}));
}

TEST_P(SamplerTest, MassIsOfWhatTopKKept) {
  // Of the best two, 0.4 and 0.3, the first has 0.57 of the mass. So a top-p of 0.6 needs both.
  const std::vector<float> row = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  EXPECT_EQ(Count(row, {.top_k = 2, .top_p = 0.55f}, 200).size(), 1u);
  EXPECT_EQ(Count(row, {.top_k = 2, .top_p = 0.6f}, 200).size(), 2u);
  EXPECT_EQ(Count(row, {.top_p = 0.75f}, 500).size(), 3u);
}

// Chi-square against softmax(logits / T) of the kept tokens. The bound is the
// 0.9999 quantile of 7 degrees of freedom; the seeds are fixed.
TEST_P(SamplerTest, DrawsFollowTheDistribution) {
  const std::vector<float> row = {0.1f,  -0.4f, 1.2f,  0.8f, -3.0f, 0.5f,
                                  -0.2f, 0.3f,  -9.0f, 0.9f, -8.0f, -kInf};
  constexpr int kDraws = 20000;
  for (const std::uint64_t seed : {1ull, 2ull, 0xfeedfacecafebeefull}) {
    const SamplingParams p{.temperature = 0.9f, .top_k = 8, .seed = seed};
    const std::vector<TokenId> kept = NaiveKept(row, p).kept;
    double total = 0;
    for (TokenId token : kept) total += std::exp(row[token] / p.temperature);
    std::map<TokenId, int> counts = Count(row, p, kDraws);
    double chi_square = 0;
    int counted = 0;
    for (TokenId token : kept) {
      const double expected = kDraws * std::exp(row[token] / p.temperature) / total;
      chi_square += std::pow(counts[token] - expected, 2) / expected;
      counted += counts[token];
    }
    EXPECT_EQ(counted, kDraws);
    EXPECT_LT(chi_square, 29.88) << "seed " << seed;
  }
}

// Neighbouring positions draw independently. The test compares the 3 x 3 table of consecutive
// tokens with equal shares. The bound is the 0.9999 quantile of 8 degrees of freedom.
TEST_P(SamplerTest, ConsecutiveTokensAreIndependent) {
  const std::vector<float> row(3, 0.0f);
  const SamplingParams p{.seed = 3};
  constexpr std::uint32_t kDraws = 18000;
  const auto draw = [&](std::uint32_t sequence, std::uint32_t index) {
    return Sample(row, p, {}, {SequenceIndex(sequence), index}).token;
  };
  int by_index[9] = {}, by_sequence[9] = {};
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    ++by_index[draw(0, 2 * i) * 3 + draw(0, 2 * i + 1)];
    ++by_sequence[draw(2 * i, 7) * 3 + draw(2 * i + 1, 7)];
  }
  for (const int* table : {by_index, by_sequence}) {
    double chi_square = 0;
    for (int cell = 0; cell < 9; ++cell) chi_square += std::pow(table[cell] - 2000.0, 2) / 2000.0;
    EXPECT_LT(chi_square, 31.83);
  }
}

TEST_P(SamplerTest, LogprobsAreOfTheRawLogits) {
  std::mt19937 random(4);
  const std::vector<float> row = RandomRow(2500, random, 3);
  double total = 0;
  for (float logit : row) total += std::exp(double{logit});
  const SampledToken sampled =
      Sample(row, {.temperature = 0.5f, .top_k = 3, .seed = 9}, {.output_top = 20});
  EXPECT_NEAR(sampled.logprob, row[sampled.token] - std::log(total), 2e-6);
  ASSERT_EQ(sampled.top.size(), 20u);
  std::vector<float> sorted = row;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(row[sampled.top[i].token], sorted[i]);
    EXPECT_NEAR(sampled.top[i].logprob, sorted[i] - std::log(total), 2e-6);
  }
  const auto known = RowLogprobs(ops_, row, Size(row), 17, 2);
  ASSERT_TRUE(known.ok());
  EXPECT_EQ(known->token, 17);
  EXPECT_NEAR(known->logprob, row[17] - std::log(total), 2e-6);
  EXPECT_EQ(known->top.size(), 2u);
  EXPECT_EQ(known->top[0], sampled.top[0]);
  EXPECT_TRUE(RowLogprobs(ops_, row, Size(row), 17, LogprobSpec::kOff)->top.empty());
}

TEST_P(SamplerTest, ListsNoMoreThanThereIs) {
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(Sample({1, 2, 3}, greedy, {.output_top = 20}).top.size(), 3u);
  const SampledToken masked = Sample({1, -kInf, 3}, greedy, {.output_top = 20});
  ASSERT_EQ(masked.top.size(), 2u);
  EXPECT_EQ(masked.top[1].token, 0);
}

// The logits behind those of tokens count in log-probabilities, and in nothing else.
TEST_P(SamplerTest, LogitsWithoutATokenAreNeverDrawn) {
  const unsigned seed = 13;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    const std::vector<float> tokens = RandomRow(1500, random, 3);
    std::vector<float> row = tokens;
    for (const float logit : RandomRow(round < 20 ? 40 : 2000, random, 3)) {
      row.push_back(logit + 20);
    }
    SamplingParams p{.temperature = round % 4 == 0 ? 0.0f : 1.5f, .seed = random()};
    if (round % 8 == 1) p.top_k = 70;
    if (round % 8 == 2) p.top_p = 0.9f;
    if (round % 8 == 3) p.min_p = 0.1f;
    if (round % 8 == 5) p.typical_p = 0.8f;
    if (round % 8 == 6) p.repetition_penalty = 1.5f;
    const std::vector<TokenId> prompt = RandomTokens(50, 1500, random);
    const TokenPosition position{.prompt = prompt};
    const auto drawn = SampleRow(ops_, row, Size(tokens), MakeDraw(p, position), 20);
    ASSERT_TRUE(drawn.ok()) << drawn.status();
    const SampledToken expected = Sample(tokens, p, {.output_top = 20}, position);
    EXPECT_EQ(drawn->token, expected.token) << round;
    const int size = static_cast<int>(row.size());
    const float lse = *RowLogSumExp(ops_.softmax_stats(row.data(), size));
    EXPECT_EQ(drawn->logprob, row[drawn->token] - lse);
    ASSERT_EQ(drawn->top.size(), expected.top.size());
    for (std::size_t i = 0; i < drawn->top.size(); ++i) {
      EXPECT_EQ(drawn->top[i].token, expected.top[i].token);
      EXPECT_EQ(drawn->top[i].logprob, row[drawn->top[i].token] - lse);
    }
  }
}

TEST_P(SamplerTest, RowsWithoutASoftmaxFail) {
  for (const float bad : {kNotANumber, -kNotANumber, kInf}) {
    for (const int at : {0, 15, 1023, 1024, 1499}) {
      std::vector<float> row(1500, 0.5f);
      row[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        const auto token = SampleRow(ops_, row, Size(row),
                                     MakeDraw({.temperature = temperature, .top_p = 0.9f}, {}), 0);
        EXPECT_TRUE(absl::IsInternal(token.status())) << bad << " at " << at;
      }
      EXPECT_TRUE(absl::IsInternal(RowLogprobs(ops_, row, Size(row), 3, 0).status()));
    }
  }
  for (const float bad : {kNotANumber, -kInf}) {
    const std::vector<float> row(2000, bad);
    EXPECT_TRUE(absl::IsInternal(SampleRow(ops_, row, Size(row), MakeDraw({}, {}), 0).status()));
  }
}

TEST_P(SamplerTest, ExtremeParametersStayInTheVocabulary) {
  std::mt19937 random(6);
  const std::vector<float> row = RandomRow(1100, random, 5);
  for (const float temperature : {2e-6f, 1e30f, 3e38f}) {
    for (const float top_p : {1e-38f, 0.5f, std::nextafter(1.0f, 0.0f), 1.0f}) {
      for (const std::int32_t top_k : {0, 70, std::numeric_limits<std::int32_t>::max()}) {
        for (const float min_p : {0.0f, 1e-45f, std::nextafter(1.0f, 0.0f), 1.0f}) {
          const SamplingParams p{.temperature = temperature,
                                 .top_k = top_k,
                                 .top_p = top_p,
                                 .min_p = min_p,
                                 .typical_p = min_p > 0 ? min_p : 1,
                                 .xtc_probability = 1,
                                 .xtc_threshold = min_p};
          const TokenId token = Sample(row, p).token;
          EXPECT_GE(token, 0);
          EXPECT_LT(token, 1100);
        }
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::worker
