// The choice of experts. Every instruction path uses it as it is: a row has few logits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float Number(float x) { return std::isnan(x) ? kNever : x; }

// e^(x - max) of `count` values, divided by their sum.
void Softmax(const float* x, int count, float* out) {
  float max = kNever, sum = 0;
  for (int i = 0; i < count; ++i) max = std::max(max, Number(x[i]));
  for (int i = 0; i < count; ++i) sum += out[i] = Exp(x[i] - max);
  for (int i = 0; i < count; ++i) out[i] /= sum;
}

// The largest of `count` merits, or of equal ones the first. A merit that was taken is NaN. -1: all
// were.
int Best(const float* merits, int count) {
  int best = -1;
  for (int i = 0; i < count; ++i) {
    if (!std::isnan(merits[i]) && (best < 0 || merits[i] > merits[best])) best = i;
  }
  return best;
}

void Take(float* merits, int index) { merits[index] = std::numeric_limits<float>::quiet_NaN(); }

// Merits of experts outside of the best groups become 0.
void KeepGroups(const ChooseExpertsArgs& args, float* merits) {
  const int size = args.experts / args.groups;
  float of_groups[kMostExperts];
  for (int g = 0; g < args.groups; ++g) {
    const float* const group = merits + g * size;
    const int best = Best(group, size);
    of_groups[g] = group[best];
    if (!args.group_pairs) continue;
    float second = kNever;
    for (int i = 0; i < size; ++i) second = i == best ? second : std::max(second, group[i]);
    of_groups[g] += second;
  }
  bool kept[kMostExperts] = {};
  for (int i = 0; i < args.kept_groups; ++i) {
    const int best = Best(of_groups, args.groups);
    if (best < 0) break;
    kept[best] = true;
    Take(of_groups, best);
  }
  for (int i = 0; i < args.experts; ++i) merits[i] = kept[i / size] ? merits[i] : 0;
}

}  // namespace

void ChooseExperts(const ChooseExpertsArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* const logits = args.logits + row * args.stride;
    int32_t* const ids = args.ids + int64_t{row} * args.chosen;
    float* const weights = args.weights + int64_t{row} * args.chosen;
    float scores[kMostExperts], merits[kMostExperts];
    if (args.scores == ExpertScores::kSoftmax) Softmax(logits, args.experts, scores);
    for (int i = 0; i < args.experts; ++i) {
      if (args.scores == ExpertScores::kSigmoid) scores[i] = 1.0f / (1.0f + Exp(-logits[i]));
      if (args.scores == ExpertScores::kChosenSoftmax) scores[i] = logits[i];
      merits[i] = Number(args.bias == nullptr ? scores[i] : scores[i] + args.bias[i]);
    }
    if (args.groups > 1) KeepGroups(args, merits);
    for (int i = 0; i < args.chosen; ++i) {
      ids[i] = Best(merits, args.experts);
      Take(merits, ids[i]);
    }
    std::sort(ids, ids + args.chosen);
    for (int i = 0; i < args.chosen; ++i) weights[i] = scores[ids[i]];
    if (args.scores == ExpertScores::kChosenSoftmax) Softmax(weights, args.chosen, weights);
    float sum = kLeastWeight;
    for (int i = 0; i < args.chosen; ++i) sum += weights[i];
    for (int i = 0; i < args.chosen; ++i) {
      if (args.normalised) weights[i] /= sum;
      weights[i] *= args.factor;
    }
  }
}

}  // namespace flotilla::kernels::reference
