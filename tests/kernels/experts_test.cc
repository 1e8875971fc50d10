// choose_experts against a search in double precision that is written the other way round: it
// sorts.
#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

class ExpertsTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(ExpertsTest);

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice Choose(const Ops& op, ChooseExpertsArgs args, const std::vector<float>& logits) {
  const auto rows = static_cast<int>(logits.size() / args.experts);
  Choice choice{std::vector<int32_t>(rows * args.chosen), std::vector<float>(rows * args.chosen)};
  args.logits = logits.data();
  args.stride = args.experts;
  args.ids = choice.ids.data();
  args.weights = choice.weights.data();
  op.choose_experts(args, 0, rows);
  return choice;
}

std::vector<double> SoftmaxOf(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> result;
  double sum = 0;
  for (const double value : x) sum += result.emplace_back(std::exp(value - max));
  for (double& value : result) value /= sum;
  return result;
}

// The ids of the `count` largest, ascending.
std::vector<int32_t> Largest(const std::vector<double>& values, int count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

Choice Expected(const ChooseExpertsArgs& args, const float* logits) {
  std::vector<double> scores(logits, logits + args.experts);
  if (args.scores == ExpertScores::kSoftmax) scores = SoftmaxOf(scores);
  if (args.scores == ExpertScores::kSigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
  }
  std::vector<double> merits = scores;
  for (int i = 0; args.bias != nullptr && i < args.experts; ++i) merits[i] += args.bias[i];
  if (args.groups > 1) {
    const int size = args.experts / args.groups;
    std::vector<double> groups;
    for (int g = 0; g < args.groups; ++g) {
      std::vector<double> group(merits.begin() + g * size, merits.begin() + (g + 1) * size);
      std::sort(group.rbegin(), group.rend());
      groups.push_back(group[0] + (args.group_pairs ? group[1] : 0));
    }
    const std::vector<int32_t> kept = Largest(groups, args.kept_groups);
    for (int i = 0; i < args.experts; ++i) {
      if (!std::binary_search(kept.begin(), kept.end(), i / size)) merits[i] = 0;
    }
  }
  Choice choice{.ids = Largest(merits, args.chosen), .weights = {}};
  std::vector<double> weights;
  for (const int32_t id : choice.ids) weights.push_back(scores[id]);
  if (args.scores == ExpertScores::kChosenSoftmax) weights = SoftmaxOf(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    choice.weights.push_back(
        static_cast<float>((args.normalised ? weight / sum : weight) * args.factor));
  }
  return choice;
}

TEST_P(ExpertsTest, ChoosesAsASortInDoublePrecisionDoes) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    testing::Random random(seed);
    constexpr ExpertScores kScores[] = {ExpertScores::kSoftmax, ExpertScores::kSigmoid,
                                        ExpertScores::kChosenSoftmax};
    ChooseExpertsArgs args{.scores = kScores[random.Int(0, 2)],
                           .normalised = random.Int(0, 1) == 1,
                           .factor = random.Int(0, 1) == 1 ? 2.5f : 1.0f};
    args.groups = args.scores == ExpertScores::kChosenSoftmax ? 1 : random.Int(1, 4);
    args.experts = args.groups * random.Int(2, 40);
    args.kept_groups = random.Int(1, args.groups);
    args.group_pairs = random.Int(0, 1) == 1;
    args.chosen = random.Int(1, std::min(8, args.kept_groups * args.experts / args.groups));
    const std::vector<float> bias = random.Floats(args.experts, 0.1f);
    if (args.scores == ExpertScores::kSigmoid && random.Int(0, 1) == 1) args.bias = bias.data();
    const std::vector<float> logits = random.Floats(5 * args.experts, 4.0f);
    const Choice choice = Choose(ops(), args, logits);
    const Choice slow = Choose(reference(), args, logits);
    ASSERT_EQ(choice.ids, slow.ids);
    ASSERT_TRUE(SameBits(choice.weights, slow.weights));
    for (int row = 0; row < 5; ++row) {
      const Choice expected = Expected(args, logits.data() + row * args.experts);
      for (int i = 0; i < args.chosen; ++i) {
        ASSERT_EQ(choice.ids[row * args.chosen + i], expected.ids[i]);
        ASSERT_NEAR(choice.weights[row * args.chosen + i], expected.weights[i],
                    expected.weights[i] * 2e-6);
      }
    }
  }
}

TEST_P(ExpertsTest, OfEqualOnesTheLowerIdsWinAndNaNNeverDoes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const ChooseExpertsArgs args{.experts = 6, .chosen = 2, .scores = ExpertScores::kChosenSoftmax};
  EXPECT_EQ(Choose(ops(), args, {1, 3, 2, 3, 3, 1}).ids, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(Choose(ops(), args, {nan, 1, nan, 0, nan, 0}).ids, (std::vector<int32_t>{1, 3}));
  // A row of NaNs has experts, too, and its weights are NaN.
  const Choice none = Choose(ops(), args, std::vector<float>(6, nan));
  EXPECT_EQ(none.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(std::isnan(none.weights[0]));
}

}  // namespace
}  // namespace flotilla::kernels
