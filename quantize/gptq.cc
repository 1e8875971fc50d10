#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/types/text.h"

namespace flotilla::quantize {
namespace {

constexpr int64_t kRows = kGptqRows;

// One build for each width of vectors. None contracts a product and a sum, so all have one result.
#if defined(__SANITIZE_THREAD__)
#define FLOTILLA_EACH_WIDTH  // what chooses the build would run before the sanitizer is there
#else
#define FLOTILLA_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

// y -= factor * x.
FLOTILLA_EACH_WIDTH __attribute__((optimize("O3"))) void Subtract(double factor, const double* x,
                                                                  int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] -= factor * x[i];
}

FLOTILLA_EACH_WIDTH __attribute__((optimize("O3"))) void Spread(const double* u, int64_t begin,
                                                                int64_t end,
                                                                const double (&errors)[kRows],
                                                                double (*w)[kRows]) {
  for (int64_t j = begin; j < end; ++j) {
    const double factor = u[j];
    for (int64_t r = 0; r < kRows; ++r) w[j][r] -= errors[r] * factor;
  }
}

// Turns a symmetric matrix into the upper triangular R with R R^T = a, in place, from the last
// column to the first. False: it is not positive definite.
bool FactorUpper(int64_t n, std::vector<double>& a) {
  const auto at = [&](int64_t i, int64_t j) -> double& {
    return a[static_cast<size_t>(i * n + j)];
  };
  std::vector<double> column(static_cast<size_t>(n));
  for (int64_t k = n - 1; k >= 0; --k) {
    const double pivot = at(k, k);
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const double root = std::sqrt(pivot);
    for (int64_t i = 0; i < k; ++i) column[static_cast<size_t>(i)] = at(k, i) / root;
    for (int64_t i = 0; i < k; ++i) {
      // The lower triangle has what is left of the matrix, row by row.
      Subtract(column[static_cast<size_t>(i)], column.data(), i + 1, &at(i, 0));
    }
    at(k, k) = root;
    for (int64_t i = 0; i < k; ++i) at(i, k) = column[static_cast<size_t>(i)];
  }
  return true;
}

// The inverse of an upper triangular matrix, in place of it.
void InvertUpper(int64_t n, std::vector<double>& r) {
  const auto row = [&](int64_t i) { return r.data() + i * n; };
  std::vector<double> sum(static_cast<size_t>(n));
  // Row i of the inverse: (e_i - sum over j > i of R_ij row j) / R_ii.
  for (int64_t i = n - 1; i >= 0; --i) {
    const double pivot = row(i)[i];
    std::fill(sum.begin() + i, sum.end(), 0.0);
    for (int64_t j = i + 1; j < n; ++j) Subtract(row(i)[j], row(j) + j, n - j, sum.data() + j);
    row(i)[i] = 1 / pivot;
    for (int64_t j = i + 1; j < n; ++j) row(i)[j] = sum[static_cast<size_t>(j)] / pivot;
  }
}

// Up to kRows rows of a matrix.
class RowBlock {
 public:
  RowBlock(std::span<const float> weights, int64_t first, int64_t count, const GptqFactor& factor,
           IntegerMatrix& out)
      : factor_(factor), out_(out), first_(first), count_(count), n_(factor.inputs()) {
    w_ = std::vector<double>(static_cast<size_t>(n_ * kRows));
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t input = factor.order()[static_cast<size_t>(i)];
      if (factor.dead(input)) continue;
      for (int64_t r = 0; r < count; ++r) {
        w_[static_cast<size_t>(i * kRows + r)] =
            weights[static_cast<size_t>((first + r) * n_ + input)];
      }
    }
    if (!factor.by_importance()) return;
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t begin = 0; begin < n_; begin += out.group) {
        const int64_t end = std::min(begin + out.group, n_);
        std::vector<float> group;
        for (int64_t k = begin; k < end; ++k) {
          group.push_back(factor.dead(k) ? 0 : weights[static_cast<size_t>((first + r) * n_ + k)]);
        }
        Scale(r, begin) = FitGroup(group, out.grid);
      }
    }
  }

  void Round() {
    auto* const w = reinterpret_cast<double(*)[kRows]>(w_.data());
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t input = factor_.order()[static_cast<size_t>(i)];
      if (!factor_.by_importance() && i % out_.group == 0) FitGroupAt(i);
      const std::span<const double> u = factor_.row(i);
      double errors[kRows] = {};
      for (int64_t r = 0; r < count_; ++r) {
        const GroupScale& scale = Scale(r, input);
        const int code = CodeOf(w[i][r], scale, out_.grid);
        out_.codes[static_cast<size_t>((first_ + r) * n_ + input)] = static_cast<int8_t>(code);
        errors[r] = (w[i][r] - WeightOf(code, scale)) / u[static_cast<size_t>(i)];
      }
      Spread(u.data(), i + 1, n_, errors, w);
    }
  }

 private:
  GroupScale& Scale(int64_t r, int64_t input) {
    return out_.scales[static_cast<size_t>((first_ + r) * out_.groups() + input / out_.group)];
  }

  // From what the weights have become.
  void FitGroupAt(int64_t begin) {
    const int64_t end = std::min(begin + out_.group, n_);
    for (int64_t r = 0; r < count_; ++r) {
      std::vector<float> group;
      for (int64_t k = begin; k < end; ++k) {
        group.push_back(static_cast<float>(w_[static_cast<size_t>(k * kRows + r)]));
      }
      Scale(r, begin) = FitGroup(group, out_.grid);
    }
  }

  const GptqFactor& factor_;
  IntegerMatrix& out_;
  const int64_t first_, count_, n_;
  std::vector<double> w_;  // [inputs by the order][kRows]
};

}  // namespace

void SpreadErrors(const double* u, int64_t begin, int64_t end, const double (&errors)[kGptqRows],
                  double (*w)[kGptqRows]) {
  Spread(u, begin, end, errors, w);
}

std::vector<double> DividedHessian(std::span<const double> hessian,
                                   std::span<const float> factors) {
  std::vector<double> divided(hessian.begin(), hessian.end());
  const size_t inputs = factors.size();
  for (size_t i = 0; i < inputs; ++i) {
    for (size_t j = 0; j < inputs; ++j) {
      divided[i * inputs + j] /= double{factors[i]} * factors[j];
    }
  }
  return divided;
}

absl::StatusOr<GptqFactor> GptqFactor::Create(std::span<const double> hessian, int64_t inputs,
                                              double damp, bool by_importance) {
  GptqFactor factor;
  factor.inputs_ = inputs;
  factor.by_importance_ = by_importance;
  const auto diagonal = [&](int64_t i) { return hessian[static_cast<size_t>(i * inputs + i)]; };
  double mean = 0;
  for (int64_t i = 0; i < inputs; ++i) {
    factor.dead_.push_back(diagonal(i) == 0);
    mean += diagonal(i) / static_cast<double>(inputs);
  }
  factor.order_.resize(static_cast<size_t>(inputs));
  std::iota(factor.order_.begin(), factor.order_.end(), 0);
  if (by_importance) {
    std::ranges::stable_sort(factor.order_,
                             [&](int32_t a, int32_t b) { return diagonal(a) > diagonal(b); });
  }
  factor.upper_.resize(static_cast<size_t>(inputs * inputs));
  for (int64_t i = 0; i < inputs; ++i) {
    const int64_t from = factor.order_[static_cast<size_t>(i)];
    for (int64_t j = 0; j < inputs; ++j) {
      factor.upper_[static_cast<size_t>(i * inputs + j)] =
          hessian[static_cast<size_t>(from * inputs + factor.order_[static_cast<size_t>(j)])];
    }
    double& own = factor.upper_[static_cast<size_t>(i * inputs + i)];
    own = (factor.dead(from) ? 1 : own) + damp * mean;
  }
  // H = R R^T, so H^-1 = R^-T R^-1, and U = R^-1.
  if (!FactorUpper(inputs, factor.upper_)) {
    return InvalidArgument(
        "the inputs that calibration has seen have no positive definite matrix of ", inputs, " x ",
        inputs, "; more tokens or a larger --damp help");
  }
  InvertUpper(inputs, factor.upper_);
  return factor;
}

IntegerMatrix Gptq(std::span<const float> weights, int64_t rows, const GptqFactor& factor,
                   const Grid& grid, int64_t group, ParallelItems parallel) {
  IntegerMatrix out(grid, rows, factor.inputs(), group);
  parallel((rows + kRows - 1) / kRows, [&](int64_t i) {
    RowBlock(weights, i * kRows, std::min(kRows, rows - i * kRows), factor, out).Round();
  });
  return out;
}

}  // namespace flotilla::quantize
