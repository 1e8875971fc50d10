#include "worker/compute/dry.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "common/types/sampling.h"
#include "tests/worker/compute/breakers_of.h"
#include "worker/compute/sampler.h"

namespace flotilla::worker {
namespace {

using Penalties = std::map<TokenId, float>;

// What the logits of tokens are lowered by.
Penalties PenaltiesAt(const SamplingParams& sampling, const TokenPosition& position) {
  std::vector<LogitEdit> edits;
  if (UsesDry(sampling)) AddDry(sampling, position, edits);
  Penalties penalties;
  for (const LogitEdit& edit : edits) {
    EXPECT_EQ(edit.kind, LogitEdit::Kind::kAdd);
    EXPECT_TRUE(penalties.emplace(edit.token, -edit.value).second) << "twice " << edit.token;
  }
  return penalties;
}

Penalties PenaltiesAfter(const SamplingParams& sampling, const std::vector<TokenId>& tokens) {
  return PenaltiesAt(sampling, {.prompt = tokens});
}

// The definition in SamplingParams, place by place. A breaker is looked for as llama.cpp does it:
// the last head at which one is whole counts, with its longest tail.
Penalties NaivePenalties(const SamplingParams& p, std::vector<TokenId> tokens,
                         const std::set<Breaker>& breakers) {
  const auto last_n = static_cast<std::size_t>(p.dry_penalty_last_n);
  if (p.dry_penalty_last_n >= 0 && tokens.size() > last_n) {
    tokens.erase(tokens.begin(), tokens.end() - p.dry_penalty_last_n);
  }
  const int size = static_cast<int>(tokens.size());
  int begin = 0;  // of what counts
  for (int head = size - 1; head >= 0 && begin == 0; --head) {
    for (const Breaker& breaker : breakers) {
      const int end = head + static_cast<int>(breaker.size());
      if (end <= size && std::equal(breaker.begin(), breaker.end(), tokens.begin() + head)) {
        begin = std::max(begin, end);
      }
    }
  }
  std::map<TokenId, int> longest;
  for (int place = 1; place < size; ++place) {
    int n = 0;
    while (n < size - begin && n < place && tokens[place - 1 - n] == tokens[size - 1 - n]) ++n;
    if (n >= p.dry_allowed_length) longest[tokens[place]] = std::max(longest[tokens[place]], n);
  }
  Penalties penalties;
  for (const auto& [token, n] : longest) {
    if (breakers.contains({token})) continue;
    penalties[token] = static_cast<float>(std::min(
        kMaxDryPenalty,
        double{p.dry_multiplier} * std::pow(double{p.dry_base}, n - p.dry_allowed_length)));
  }
  return penalties;
}

void ExpectNear(const Penalties& actual, const Penalties& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [token, penalty] : expected) {
    ASSERT_TRUE(actual.contains(token)) << token;
    ASSERT_NEAR(actual.at(token) / penalty, 1, 1e-6) << token;
  }
}

// test_dry of llama.cpp's tests/test-sampling.cpp. Its shares are those of these penalties.
TEST(Dry, GivesThePenaltiesOfLlamaCpp) {
  const auto after = [](const std::vector<TokenId>& tokens, float multiplier, int allowed, int last,
                        const std::set<Breaker>& breakers = {}) {
    return PenaltiesAfter({.dry_multiplier = multiplier,
                           .dry_base = 1.1f,
                           .dry_allowed_length = allowed,
                           .dry_penalty_last_n = last,
                           .dry_breakers = BreakersOf(breakers)},
                          tokens);
  };
  EXPECT_EQ(after({0, 1}, 1, 2, 4), Penalties());
  // 0.109232 of 0.296923 is e^-1.
  EXPECT_EQ(after({0, 1, 2, 0, 1}, 1, 2, 5), (Penalties{{2, 1.0f}}));
  EXPECT_EQ(after({0, 1, 3, 4, 0, 1}, 1, 2, 6, {{3}}), Penalties());
  EXPECT_EQ(after({0, 1, 2, 0, 1}, 2, 2, 5), (Penalties{{2, 2.0f}}));
  EXPECT_EQ(after({0, 1, 2, 3, 4, 0, 1}, 1, 4, 7), Penalties());
}

// By a twin in numpy, with z[k] the length of the common beginning of x[::-1] and x[::-1][k:]:
//   n = np.array([z[k] for k in range(1, len(x)) if x[::-1][k - 1] == token]).max()
//   np.float32(0.8) * np.float64(1.75) ** (n - 2)
TEST(Dry, LowersTheTokenThatFollowedTheLongestRepeat) {
  const std::vector<TokenId> tokens = {5, 1, 2, 3, 4, 9, 2, 3, 8, 7, 1, 2, 3};
  const Penalties penalties = PenaltiesAfter({.dry_multiplier = 0.8f}, tokens);
  EXPECT_EQ(penalties, (Penalties{{4, 1.4f}, {8, 0.8f}}));
  // Of a token that repeats itself the longest repeat overlaps with the end.
  EXPECT_EQ(PenaltiesAfter({.dry_multiplier = 0.8f}, {6, 6, 6, 6, 6, 6}),
            (Penalties{{6, 4.2875f}}));  // n = 5
  // Only what is looked at counts.
  EXPECT_EQ(PenaltiesAfter({.dry_multiplier = 0.8f, .dry_penalty_last_n = 8}, tokens),
            (Penalties{{8, 0.8f}}));
  EXPECT_EQ(PenaltiesAfter({.dry_multiplier = 0.8f, .dry_penalty_last_n = 0}, tokens), Penalties());
  EXPECT_EQ(PenaltiesAfter({.dry_multiplier = 0}, tokens), Penalties());
  // Every token that has come is lowered if no repetition is allowed.
  EXPECT_EQ(PenaltiesAfter({.dry_multiplier = 0.5f, .dry_base = 2, .dry_allowed_length = 0},
                           {1, 2, 3, 1}),
            (Penalties{{1, 0.5f}, {2, 1.0f}, {3, 0.5f}}));
}

TEST(Dry, CountsFromTheLastBreakerOn) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 9, 1, 2, 3, 4};
  const auto after = [&](const std::set<Breaker>& breakers) {
    return PenaltiesAfter(
        {.dry_multiplier = 1, .dry_base = 2, .dry_breakers = BreakersOf(breakers)}, tokens);
  };
  EXPECT_EQ(after({}), (Penalties{{5, 4.0f}}));  // n = 4
  EXPECT_EQ(after({{9}}), (Penalties{{5, 4.0f}}));
  EXPECT_EQ(after({{1}}), (Penalties{{5, 2.0f}}));
  EXPECT_EQ(after({{1, 2}}), (Penalties{{5, 1.0f}}));
  EXPECT_EQ(after({{1, 2, 3}}), Penalties());
  EXPECT_EQ(after({{1, 7}, {1, 2, 7}}), (Penalties{{5, 4.0f}})) << "only whole breakers count";
  EXPECT_EQ(after({{4, 1}}), (Penalties{{5, 4.0f}})) << "the end of the text does not go on";
  EXPECT_EQ(after({{5}}), Penalties()) << "a breaker is never lowered";
  EXPECT_EQ(after({{5, 9}}), (Penalties{{5, 4.0f}})) << "one of two tokens is no breaker";
}

TEST(Dry, EqualsTheNaiveReference) {
  const unsigned seed = 17;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  int lowered = 0;
  for (int round = 0; round < 4000; ++round) {
    const TokenId vocab = 2 + static_cast<TokenId>(random() % 5);
    std::vector<TokenId> tokens(random() % 60);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
    std::set<Breaker> breakers;
    for (std::uint32_t i = random() % 4; i > 0; --i) {
      Breaker breaker(1 + random() % 4);
      for (TokenId& token : breaker) token = static_cast<TokenId>(random() % (vocab + 1));
      breakers.insert(breaker);
    }
    const SamplingParams p{.dry_multiplier = 0.25f + static_cast<float>(random() % 3),
                           .dry_base = std::vector<float>{1, 1.75f, 100}[random() % 3],
                           .dry_allowed_length = static_cast<std::int32_t>(random() % 5),
                           .dry_penalty_last_n = static_cast<std::int32_t>(random() % 70) - 1,
                           .dry_breakers = BreakersOf(breakers)};
    if (p.dry_penalty_last_n == 0) continue;
    const Penalties expected = NaivePenalties(p, tokens, breakers);
    lowered += static_cast<int>(expected.size());
    ExpectNear(PenaltiesAfter(p, tokens), expected);
    // It does not matter which of the tokens are prompt, output and drafts.
    const std::size_t prompt = random() % (tokens.size() + 1);
    const std::size_t output = random() % (tokens.size() - prompt + 1);
    const auto all = absl::MakeConstSpan(tokens);
    ASSERT_EQ(PenaltiesAt(p, {.prompt = all.first(prompt),
                              .output = all.subspan(prompt, output),
                              .drafts = all.subspan(prompt + output)}),
              PenaltiesAfter(p, tokens));
    if (HasFailure()) return;
  }
  EXPECT_GT(lowered, 3000);
}

// The time is in proportion to the tokens, also where everything repeats and where breakers are
// found almost everywhere, but for one of their tokens.
TEST(Dry, HostileHistoriesAreCheap) {
  constexpr std::size_t kTokens = 1 << 17;
  const unsigned seed = 23;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  // The best of several times, since others use the machine, too.
  const auto seconds = [](const std::set<Breaker>& breakers, const std::vector<TokenId>& tokens) {
    const SamplingParams p{
        .dry_multiplier = 1, .dry_base = 1.0000002f, .dry_breakers = BreakersOf(breakers)};
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const std::clock_t start = std::clock();
      EXPECT_TRUE(PenaltiesAfter(p, tokens).contains(1));
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  };
  std::set<Breaker> all_alike, nested;
  while (all_alike.size() < DryBreakers::kMaxTails) {
    Breaker breaker(1 + DryBreakers::kMaxTailTokens);
    for (TokenId& token : breaker) token = 1 + static_cast<TokenId>(random() % 2);
    breaker.back() = 3;
    all_alike.insert(breaker);
  }
  for (int i = 0; i < 1000; ++i) {
    Breaker breaker;
    const int length = 1 + i / 50;
    for (int at = 0; at < length; ++at) breaker.push_back(1 + (at + i) % 2);
    breaker.push_back(5 + i);
    nested.insert(breaker);
  }
  std::vector<TokenId> periodic(kTokens), twice(kTokens);
  for (std::size_t i = 0; i < kTokens; ++i) {
    periodic[i] = i % 1000 == 0 ? 0 : 1;
    twice[i] = i >= kTokens / 2 ? twice[i - kTokens / 2] : 1 + (i % 2 ^ (random() % 40 == 0));
  }
  for (const std::vector<TokenId>& tokens : {std::vector<TokenId>(kTokens, 1), periodic, twice}) {
    const double without = seconds({}, tokens);
    // It takes 0.3 to 0.5 ms. Comparing each place with the end would take 8 s.
    EXPECT_LT(without, 0.1);
    // Comparing each token with each token of the tails would take 15 to 30 times as long, some
    // 12 ms.
    const double most = std::max(8 * without, 0.008);
    EXPECT_LT(seconds(all_alike, tokens), most);
    EXPECT_LT(seconds(nested, tokens), most);
  }
}

// Its powers are larger than the largest penalty, and infinite.
TEST(Dry, PenaltiesGrowWithTheRepetition) {
  for (const float multiplier : {1e-40f, 0.01f, 0.8f, 1.0f, 100.0f}) {
    for (const float base : {1.0f, 1.0001f, 1.1f, 1.75f, 2.0f, 100.0f}) {
      float before = 0;
      for (std::size_t tokens = 3; tokens < 700; ++tokens) {
        const SamplingParams p{.dry_multiplier = multiplier, .dry_base = base};
        const float penalty = PenaltiesAfter(p, std::vector<TokenId>(tokens, 6)).at(6);
        ASSERT_GE(penalty, before) << multiplier << " * " << base << "^" << tokens - 3;
        ASSERT_LE(penalty, 1e30f) << "penalties stay finite";
        const double exact = double{multiplier} * std::pow(double{base}, tokens - 3);
        if (exact > 1e-37) {
          ASSERT_NEAR(penalty / std::min(exact, 1e30), 1, 1e-6);
        }
        before = penalty;
      }
    }
  }
  // The parts of a history that the largest penalty does not need count no breaker.
  const SamplingParams p{
      .dry_multiplier = 0.8f, .dry_base = 1.75f, .dry_breakers = BreakersOf({{5}})};
  for (const std::size_t tokens : {100, 126, 127, 128, 129, 200}) {
    std::vector<TokenId> history(2 * tokens, 6);
    history[tokens] = 5;
    EXPECT_EQ(PenaltiesAfter(p, history).at(6),
              static_cast<float>(std::min(1e30, double{0.8f} * std::pow(1.75, tokens - 3.0))));
  }
}

// DRY acts behind the other penalties, and the token is the best of the changed logits.
TEST(Dry, IsPartOfTheDraw) {
  const std::vector<TokenId> tokens = {1, 2, 3, 1, 2};
  const SamplingParams p{
      .temperature = 0, .frequency_penalty = 0.5f, .dry_multiplier = 1, .logit_bias = {{3, 4}}};
  EXPECT_TRUE(Penalises(p));
  EXPECT_FALSE(Penalises({.dry_multiplier = 1, .dry_penalty_last_n = 0}));
  EXPECT_FALSE(NeedsFullRow(p));
  const TokenDraw draw = MakeDraw(p, {.output = tokens});
  ASSERT_FALSE(draw.edits.empty());
  EXPECT_EQ(draw.edits.back().token, 3);
  EXPECT_EQ(draw.edits.back().value, -1);
  std::vector<float> logits = {0, 0, 0, 2};
  EditLogits(draw.edits, 0, absl::MakeSpan(logits));
  EXPECT_EQ(logits, (std::vector<float>{0, -1, -1, 4.5f}));

  // What the repetition penalty divides has not been lowered by DRY yet.
  logits = {0, 2, 2, 2};
  EditLogits(MakeDraw({.repetition_penalty = 2, .dry_multiplier = 1}, {.output = tokens}).edits, 0,
             absl::MakeSpan(logits));
  EXPECT_EQ(logits, (std::vector<float>{0, 1, 1, 0}));
}

}  // namespace
}  // namespace flotilla::worker
