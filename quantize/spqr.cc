#include "quantize/spqr.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>

#include "kernels/scalar_math.h"

namespace flotilla::quantize {
namespace {

constexpr int64_t kGroup = SpqrMatrix::kGroup;
constexpr int kHigh = (1 << SpqrMatrix::kBits) - 1;
static_assert(kTileOutputs == kGroup && kGptqRows == kGroup);

// How often all weights are rounded to find the threshold that makes the wanted share outliers, and
// the part of the share that it may miss.
constexpr int kThresholdRounds = 4;
constexpr double kMostShareError = 0.05;

// weight = scale (code - zero).
struct Span {
  double scale = 0, zero = 0;

  double CodeFor(double weight) const {
    if (!(scale > 0)) return 0;
    return std::clamp(std::nearbyint(weight / scale + zero), 0.0, double{kHigh});
  }
  double Error(double weight) const { return scale * (CodeFor(weight) - zero) - weight; }
};

// The span of the values from the least to the greatest.
Span SpanOf(double least, double greatest) {
  if (!(greatest > least)) {
    // All are the same: code 0 of a zero of -1.
    return {.scale = least, .zero = -1};
  }
  const double scale = (greatest - least) / kHigh;
  return {.scale = scale, .zero = -least / scale};
}

// The weights of a row in a group, and how much the squares of their errors count.
struct GroupRow {
  double weights[kGroup];
  double costs[kGroup];
};

// The errors of all but the `without`-th weight, with a scale that spans these.
double ErrorWithout(const GroupRow& row, int64_t without) {
  double least = std::numeric_limits<double>::infinity(), greatest = -least;
  for (int64_t j = 0; j < kGroup; ++j) {
    if (j == without) continue;
    least = std::min(least, row.weights[j]);
    greatest = std::max(greatest, row.weights[j]);
  }
  const Span span = SpanOf(least, greatest);
  double error = 0;
  for (int64_t j = 0; j < kGroup; ++j) {
    if (j == without) continue;
    const double own = span.scale > 0 ? span.Error(row.weights[j]) : row.weights[j] - least;
    error += own * own * row.costs[j];
  }
  return error;
}

// By how much the errors of a group become less without each of its weights.
void Sensitivities(const GroupRow& row, double (&out)[kGroup]) {
  const double all = ErrorWithout(row, -1);
  for (int64_t j = 0; j < kGroup; ++j) out[j] = all - ErrorWithout(row, j);
}

// What 16 scales, or zeros, become: step (code - zero) with codes of 3 bits.
struct Coded {
  uint16_t step = 0, zero = 0;
  uint8_t codes[kGroup] = {};
};
Coded Encode(const double (&values)[kGroup], int64_t count) {
  const auto [least, greatest] = std::minmax_element(values, values + count);
  const Span span = SpanOf(*least, *greatest);
  Coded coded;
  coded.step = kernels::FloatToHalf(static_cast<float>(span.scale));
  const double step = kernels::HalfToFloat(coded.step);
  constexpr double kMostZero = 2048;  // beyond it fp16 has steps of more than 1
  if (step == 0 || !(std::fabs(*least / step) < kMostZero)) {
    // They hardly differ: all become their middle.
    coded.step = kernels::FloatToHalf(static_cast<float>((*least + *greatest) / 2));
    coded.zero = kernels::FloatToHalf(-1);
    return coded;
  }
  const bool same = !(*greatest > *least);
  coded.zero = kernels::FloatToHalf(same ? -1.0f : static_cast<float>(-*least / step));
  for (int64_t r = 0; r < count && !same; ++r) {
    const double code = std::nearbyint(values[r] / step + kernels::HalfToFloat(coded.zero));
    coded.codes[r] = static_cast<uint8_t>(std::clamp(code, 0.0, double{kHigh}));
  }
  return coded;
}

float ScaleOf(const CodedScale& coded) {
  return kernels::HalfToFloat(coded.scale_step) *
         (static_cast<float>(coded.scale_code) - kernels::HalfToFloat(coded.scale_zero));
}
float ZeroOf(const CodedScale& coded) {
  return kernels::HalfToFloat(coded.zero_step) *
         (static_cast<float>(coded.zero_code) - kernels::HalfToFloat(coded.zero_zero));
}

// The rows of a tile, up to 16.
class TileRows {
 public:
  TileRows(std::span<const float> weights, int64_t first, int64_t count, const GptqFactor& factor)
      : factor_(factor), first_(first), count_(count), n_(factor.inputs()) {
    w_ = std::vector<double>(static_cast<size_t>(n_ * kGroup));
    for (int64_t i = 0; i < n_; ++i) {
      if (factor.dead(i)) continue;
      for (int64_t r = 0; r < count; ++r) {
        at(i, r) = weights[static_cast<size_t>((first + r) * n_ + i)];
      }
    }
  }

  // Puts the sensitivity of each weight into `out` [rows, inputs].
  void Measure(std::span<float> out) {
    for (int64_t begin = 0; begin < n_; begin += kGroup) {
      for (int64_t r = 0; r < count_; ++r) {
        double reductions[kGroup];
        Sensitivities(Group(r, begin), reductions);
        for (int64_t j = 0; j < kGroup; ++j) {
          out[static_cast<size_t>((first_ + r) * n_ + begin + j)] =
              static_cast<float>(reductions[j]);
        }
      }
    }
  }

  // Puts the sensitivity that each weight has when its turn comes into `met` [rows, inputs].
  void Round(double threshold, SpqrMatrix& out, std::span<float> met) {
    for (int64_t r = 0; r < count_; ++r) out.outliers[static_cast<size_t>(first_ + r)].clear();
    for (int64_t begin = 0; begin < n_; begin += kGroup) {
      bool outlier[kGroup][kGroup] = {};
      FitTile(begin, threshold, outlier, out, met);
      for (int64_t i = begin; i < begin + kGroup; ++i) RoundInput(i, outlier[i - begin], out);
    }
  }

 private:
  double& at(int64_t i, int64_t r) { return w_[static_cast<size_t>(i * kGroup + r)]; }
  double pivot(int64_t i) const { return factor_.row(i)[static_cast<size_t>(i)]; }

  GroupRow Group(int64_t r, int64_t begin) {
    GroupRow group;
    for (int64_t j = 0; j < kGroup; ++j) {
      group.weights[j] = at(begin + j, r);
      group.costs[j] = 1 / (pivot(begin + j) * pivot(begin + j));
    }
    return group;
  }

  // Finds the outliers [input][row] of a tile, and scales and zeros of the rest.
  void FitTile(int64_t begin, double threshold, bool (&outlier)[kGroup][kGroup], SpqrMatrix& out,
               std::span<float> met) {
    double scales[kGroup] = {}, zeros[kGroup] = {};
    for (int64_t r = 0; r < count_; ++r) {
      const GroupRow group = Group(r, begin);
      double reductions[kGroup];
      Sensitivities(group, reductions);
      double least = std::numeric_limits<double>::infinity(), greatest = -least;
      for (int64_t j = 0; j < kGroup; ++j) {
        met[static_cast<size_t>((first_ + r) * n_ + begin + j)] = static_cast<float>(reductions[j]);
        outlier[j][r] = reductions[j] > threshold;
        if (outlier[j][r]) continue;
        least = std::min(least, group.weights[j]);
        greatest = std::max(greatest, group.weights[j]);
      }
      if (least > greatest) least = greatest = 0;
      // A scale is not negative, so weights that are all the same may need a span to 0.
      const Span span = greatest > least ? SpanOf(least, greatest)
                                         : SpanOf(std::min(least, 0.0), std::max(greatest, 0.0));
      scales[r] = std::max(span.scale, 0.0);
      zeros[r] = span.zero;
    }
    const Coded scale = Encode(scales, count_), zero = Encode(zeros, count_);
    for (int64_t r = 0; r < count_; ++r) {
      out.scales[static_cast<size_t>((first_ + r) * out.groups() + begin / kGroup)] = {
          .scale_code = scale.codes[r],
          .zero_code = zero.codes[r],
          .scale_step = scale.step,
          .zero_step = zero.step,
          .scale_zero = scale.zero,
          .zero_zero = zero.zero};
    }
  }

  // Rounds the weights of an input, and spreads their errors.
  void RoundInput(int64_t i, const bool (&outlier)[kGroup], SpqrMatrix& out) {
    const std::span<const double> u = factor_.row(i);
    double errors[kGroup] = {};
    for (int64_t r = 0; r < count_; ++r) {
      const int64_t row = first_ + r;
      const CodedScale& coded = out.scales[static_cast<size_t>(row * out.groups() + i / kGroup)];
      const Span span{.scale = ScaleOf(coded), .zero = ZeroOf(coded)};
      const double weight = at(i, r);
      const auto code = static_cast<int8_t>(span.CodeFor(weight));
      out.codes[static_cast<size_t>(row * n_ + i)] = code;
      float made = ScaleOf(coded) * (static_cast<float>(code) - ZeroOf(coded));
      if (outlier[r]) {
        const uint16_t rest = kernels::FloatToHalf(static_cast<float>(weight - double{made}));
        if ((rest & 0x7FFF) != 0) {
          out.outliers[static_cast<size_t>(row)].push_back(
              {.input = static_cast<int32_t>(i), .value = rest});
          made += kernels::HalfToFloat(rest);
        }
      }
      errors[r] = (weight - double{made}) / u[static_cast<size_t>(i)];
    }
    SpreadErrors(u.data(), i + 1, n_, errors, reinterpret_cast<double(*)[kGroup]>(w_.data()));
  }

  const GptqFactor& factor_;
  const int64_t first_, count_, n_;
  std::vector<double> w_;  // [inputs][kGroup]
};

}  // namespace

int64_t SpqrMatrix::outlier_count() const {
  int64_t count = 0;
  for (const auto& row : outliers) count += static_cast<int64_t>(row.size());
  return count;
}

void SpqrMatrix::ReadRow(int64_t row, std::span<float> out) const {
  for (int64_t k = 0; k < inputs; ++k) {
    const CodedScale& coded = scales[static_cast<size_t>(row * groups() + k / kGroup)];
    const auto code = static_cast<float>(codes[static_cast<size_t>(row * inputs + k)]);
    out[static_cast<size_t>(k)] = ScaleOf(coded) * (code - ZeroOf(coded));
  }
  for (const Outlier& outlier : outliers[static_cast<size_t>(row)]) {
    out[static_cast<size_t>(outlier.input)] += kernels::HalfToFloat(outlier.value);
  }
}

double SpqrMatrix::bits_per_weight() const {
  const double weights = static_cast<double>(rows) * static_cast<double>(inputs);
  const double per_group = 2.0 * kBits + 64.0 / kTileOutputs;
  return kBits + per_group / static_cast<double>(kGroup) +
         32 * static_cast<double>(outlier_count() + rows + 1) / weights;
}

SpqrMatrix Spqr(std::span<const float> weights, int64_t rows, const GptqFactor& factor,
                double share, ParallelItems parallel) {
  SpqrMatrix out{
      .rows = rows, .inputs = factor.inputs(), .codes = {}, .scales = {}, .outliers = {}};
  out.codes.resize(weights.size());
  out.scales.resize(static_cast<size_t>(rows * out.groups()));
  out.outliers.resize(static_cast<size_t>(rows));
  const auto each_tile = [&](const std::function<void(TileRows&)>& visit) {
    parallel((rows + kGroup - 1) / kGroup, [&](int64_t tile) {
      TileRows some(weights, tile * kGroup, std::min(kGroup, rows - tile * kGroup), factor);
      visit(some);
    });
  };
  std::vector<float> sensitivities(weights.size());
  const auto wanted = static_cast<int64_t>(share * static_cast<double>(weights.size()));
  if (wanted > 0) each_tile([&](TileRows& some) { some.Measure(sensitivities); });
  for (int round = 0; round < kThresholdRounds; ++round) {
    double threshold = std::numeric_limits<double>::infinity();
    if (wanted > 0) {
      const auto place = sensitivities.begin() + (wanted - 1);
      std::nth_element(sensitivities.begin(), place, sensitivities.end(), std::greater<>());
      threshold = std::max(*place, 0.0f);
    }
    each_tile([&](TileRows& some) { some.Round(threshold, out, sensitivities); });
    const auto missed = static_cast<double>(std::abs(out.outlier_count() - wanted));
    if (threshold == 0 || missed <= std::max(1.0, kMostShareError * static_cast<double>(wanted))) {
      break;
    }
  }
  return out;
}

}  // namespace flotilla::quantize
