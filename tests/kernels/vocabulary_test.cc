// Passes over logits: arg max, top N, log-sum-exp, Gumbel sampling.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class VocabularyTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(VocabularyTest);

// Random logits, some of them equal, some masked.
std::vector<float> Logits(testing::Random& random, int n) {
  std::vector<float> logits = random.Floats(n, 12.0f);
  for (int i = 0; i < n / 10; ++i) logits[random.Int(0, n - 1)] = logits[random.Int(0, n - 1)];
  for (int i = 0; i < n / 20; ++i) logits[random.Int(0, n - 1)] = -kInfinity;
  return logits;
}

constexpr int kSizes[] = {1, 2, 15, 16, 17, 100, 1023, 1024, 1025, 2500, 5120, 49152};

TEST_P(VocabularyTest, SameBitsAsReference) {
  for (const int n : kSizes) {
    testing::Random random(n);
    const std::vector<float> logits = Logits(random, n);
    SCOPED_TRACE(absl::StrCat("n ", n));
    const TokenScore expected = reference().argmax(logits.data(), n);
    const TokenScore actual = ops().argmax(logits.data(), n);
    EXPECT_EQ(expected.token, actual.token);
    EXPECT_EQ(expected.score, actual.score);

    const SoftmaxStats expected_stats = reference().softmax_stats(logits.data(), n);
    const SoftmaxStats stats = ops().softmax_stats(logits.data(), n);
    EXPECT_EQ(FloatBits(expected_stats.max), FloatBits(stats.max));
    EXPECT_EQ(FloatBits(expected_stats.sum), FloatBits(stats.sum));

    const int count = std::min(n, 21);
    std::vector<TokenScore> expected_top(count), top(count);
    reference().top_n(logits.data(), n, count, expected_top.data());
    ops().top_n(logits.data(), n, count, top.data());
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(expected_top[i].token, top[i].token);
      EXPECT_EQ(expected_top[i].score, top[i].score);
    }

    for (int draw = 0; draw < 20; ++draw) {
      GumbelArgs args{.inverse_temperature = 0.5f + draw * 0.1f,
                      .key = MakeNoiseKey(random.Int(0, 1000), draw)};
      if (draw % 2 == 1) args.cutoff = top[random.Int(0, count - 1)];
      const TokenScore expected_draw = reference().gumbel_argmax(logits.data(), n, args);
      const TokenScore drawn = ops().gumbel_argmax(logits.data(), n, args);
      EXPECT_EQ(expected_draw.token, drawn.token);
      EXPECT_EQ(FloatBits(expected_draw.score), FloatBits(drawn.score));
    }
  }
}

TEST_P(VocabularyTest, TopIsASortedPrefix) {
  testing::Random random(8);
  const std::vector<float> logits = Logits(random, 3000);
  std::vector<TokenScore> sorted;
  for (int i = 0; i < 3000; ++i) sorted.push_back({i, logits[i]});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TokenScore& a, const TokenScore& b) { return a.score > b.score; });
  for (const int count : {1, 2, 21, 64}) {
    std::vector<TokenScore> top(count);
    ops().top_n(logits.data(), 3000, count, top.data());
    for (int i = 0; i < count; ++i) EXPECT_EQ(top[i].token, sorted[i].token);
  }
}

TEST_P(VocabularyTest, TiesTakeTheLowestId) {
  for (const int n : {20, 1000, 4096}) {
    std::vector<float> logits(n, -1.0f);
    logits[n - 1] = 5.0f;
    logits[n / 2 + 3] = 5.0f;
    logits[n / 2] = 5.0f;
    EXPECT_EQ(ops().argmax(logits.data(), n).token, n / 2);
    TokenScore top[3];
    ops().top_n(logits.data(), n, 3, top);
    EXPECT_EQ(top[0].token, n / 2);
    EXPECT_EQ(top[1].token, n / 2 + 3);
    EXPECT_EQ(top[2].token, n - 1);
  }
}

TEST_P(VocabularyTest, NanAndMaskedRows) {
  std::vector<float> logits(100, -kInfinity);
  EXPECT_EQ(ops().argmax(logits.data(), 100).token, 0);
  const SoftmaxStats none = ops().softmax_stats(logits.data(), 100);
  EXPECT_EQ(none.max, -kInfinity);
  EXPECT_EQ(none.sum, 0.0f);
  logits[70] = std::numeric_limits<float>::quiet_NaN();
  logits[80] = -3.0f;
  EXPECT_EQ(ops().argmax(logits.data(), 100).token, 80);
  EXPECT_EQ(ops().gumbel_argmax(logits.data(), 100, {}).token, 80);
}

TEST_P(VocabularyTest, LogSumExpNearDouble) {
  for (const int n : kSizes) {
    testing::Random random(n + 1);
    const std::vector<float> logits = random.Floats(n, 20.0f);
    double sum = 0;
    for (const float x : logits) sum += std::exp(double{x});
    EXPECT_NEAR(LogSumExp(ops().softmax_stats(logits.data(), n)), std::log(sum), 4e-6);
  }
}

TEST_P(VocabularyTest, CutoffKeepsAPrefixOfTheOrder) {
  // Only the first `kept` tokens of the sorted order are drawn, and each of them is drawn at times.
  testing::Random random(21);
  std::vector<float> logits(200, 0.25f);  // one large tie
  logits[7] = logits[9] = 1.0f;
  TokenScore top[12];
  ops().top_n(logits.data(), 200, 12, top);
  std::vector<int> drawn(200);
  for (int draw = 0; draw < 3000; ++draw) {
    GumbelArgs args{.key = MakeNoiseKey(5, draw), .cutoff = top[11]};
    ++drawn[ops().gumbel_argmax(logits.data(), 200, args).token];
  }
  int kept = 0;
  for (int i = 0; i < 200; ++i) {
    const bool expected =
        std::any_of(top, top + 12, [&](const TokenScore& t) { return t.token == i; });
    EXPECT_EQ(drawn[i] > 0, expected) << i;
    kept += expected;
  }
  EXPECT_EQ(kept, 12);
}

// A part of a row uses the ids of its tokens for the draw. The better result of two parts is the
// result of the row.
TEST_P(VocabularyTest, PartsOfARowDrawAsTheRow) {
  testing::Random random(33);
  for (int draw = 0; draw < 200; ++draw) {
    const int n = random.Int(2, 3000), cut = random.Int(1, n - 1);
    const std::vector<float> logits = Logits(random, n);
    GumbelArgs args{.inverse_temperature = 0.8f, .key = MakeNoiseKey(7, draw)};
    if (draw % 2 == 1) args.cutoff = {random.Int(0, n - 1), random.Floats(1, 12.0f)[0]};
    const TokenScore whole = ops().gumbel_argmax(logits.data(), n, args);
    TokenScore best = ops().gumbel_argmax(logits.data(), cut, args);
    args.first_token = cut;
    const TokenScore rest = ops().gumbel_argmax(logits.data() + cut, n - cut, args);
    if (rest.score > best.score) best = rest;
    EXPECT_EQ(best.token, whole.token) << "n " << n << ", cut " << cut;
    EXPECT_EQ(FloatBits(best.score), FloatBits(whole.score));
    EXPECT_GE(rest.token, cut);
  }
}

TEST_P(VocabularyTest, GumbelFollowsTheSoftmax) {
  const std::vector<float> logits = {2.0f, 1.0f, 0.0f, -1.0f};
  const float temperature = 0.7f;
  double weights[4];
  double total = 0;
  for (int i = 0; i < 4; ++i) total += weights[i] = std::exp(logits[i] / temperature);
  std::vector<int> drawn(4);
  const int draws = 20000;
  for (int i = 0; i < draws; ++i) {
    GumbelArgs args{.inverse_temperature = 1 / temperature, .key = MakeNoiseKey(99, i)};
    ++drawn[ops().gumbel_argmax(logits.data(), 4, args).token];
  }
  for (int i = 0; i < 4; ++i) {
    const double p = weights[i] / total;
    EXPECT_NEAR(drawn[i], draws * p, 4.5 * std::sqrt(draws * p * (1 - p))) << i;
  }
}

}  // namespace
}  // namespace flotilla::kernels
