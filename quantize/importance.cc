#include "quantize/importance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "common/types/weight_panel.h"

namespace flotilla::quantize {
namespace {

using kernels::kBlockK;
using kernels::kPanelColumns;
using kernels::PackedMatrix;

// Rows that are multiplied in fp32 before their sums are added in double.
constexpr int64_t kRowsInFp32 = 512;
// Outputs of a product that are held at a time.
constexpr int64_t kOutputs = 64;

int64_t Whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

// Packs a matrix in fp32 whose weight of output `column` and input k is at(column, k).
template <class At>
absl::StatusOr<PackedMatrix> PackFp32(int64_t columns, int64_t k, const At& at,
                                      ParallelItems parallel) {
  auto matrix = PackedMatrix::Create({}, columns, Whole(k, kBlockK));
  if (!matrix.ok()) return matrix.status();
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  std::vector<absl::Status> results(static_cast<size_t>(panels));
  parallel(panels, [&](int64_t i) {
    const auto panel = std::make_unique<WeightPanel>();
    const int64_t first = i * kPanelColumns;
    panel->encoding = {};
    panel->outputs = static_cast<int>(std::min<int64_t>(kPanelColumns, columns - first));
    panel->begin = 0;
    for (int64_t begin = 0; begin < k; begin += kPanelWindow) {
      const int64_t count = std::min<int64_t>(kPanelWindow, k - begin);
      panel->end = static_cast<int>(Whole(count, kBlockK));
      for (int c = 0; c < panel->outputs; ++c) {
        for (int64_t j = 0; j < panel->end; ++j) {
          const float weight = j < count ? at(first + c, begin + j) : 0;
          std::memcpy(panel->rows[c].numbers + j * 4, &weight, sizeof weight);
        }
      }
      results[static_cast<size_t>(i)].Update(matrix->PackPanel(*panel, first, begin));
    }
  });
  for (const absl::Status& result : results) {
    if (!result.ok()) return result;
  }
  return matrix;
}

}  // namespace

Importance::Importance(int64_t inputs, const kernels::Ops& ops)
    : inputs_(inputs),
      ops_(ops),
      hessian_(static_cast<size_t>(inputs * inputs)),
      sizes_(static_cast<size_t>(inputs)),
      largest_(static_cast<size_t>(inputs)) {}

absl::Status Importance::Add(const float* x, int64_t rows, int64_t stride, ParallelItems parallel) {
  for (int64_t row = 0; row < rows; row += kRowsInFp32) {
    absl::Status status =
        AddSome(x + row * stride, std::min(kRowsInFp32, rows - row), stride, parallel);
    if (!status.ok()) return status;
  }
  rows_ += rows;
  return absl::OkStatus();
}

absl::Status Importance::AddSome(const float* x, int64_t rows, int64_t stride,
                                 ParallelItems parallel) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < inputs_; ++i) {
      const float size = std::fabs(x[row * stride + i]);
      sizes_[static_cast<size_t>(i)] += size;
      largest_[static_cast<size_t>(i)] = std::max(largest_[static_cast<size_t>(i)], size);
    }
  }
  // X^T X as a product of X^T with itself: its k are the rows of X.
  const auto packed = PackFp32(
      inputs_, rows, [&](int64_t i, int64_t row) { return x[row * stride + i]; }, parallel);
  if (!packed.ok()) return packed.status();
  const int64_t k = packed->k();
  const int64_t blocks = (inputs_ + kOutputs - 1) / kOutputs;
  parallel(blocks, [&](int64_t block) {
    const int64_t first = block * kOutputs, count = std::min(kOutputs, inputs_ - first);
    std::vector<float> transposed(static_cast<size_t>(count * k));
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t row = 0; row < rows; ++row) {
        transposed[static_cast<size_t>(i * k + row)] = x[row * stride + first + i];
      }
    }
    std::vector<float> sums(static_cast<size_t>(count * inputs_));
    ops_.matmul_f32({.weights = packed->view(),
                     .x = transposed.data(),
                     .x_stride = k,
                     .rows = static_cast<int>(count),
                     .out = sums.data(),
                     .out_stride = inputs_},
                    0, packed->view().panels());
    double* const to = hessian_.data() + first * inputs_;
    for (int64_t i = 0; i < count * inputs_; ++i) to[i] += sums[static_cast<size_t>(i)];
  });
  return absl::OkStatus();
}

absl::StatusOr<OutputError> OutputError::Create(const Importance& importance,
                                                const kernels::Ops& ops, ParallelItems parallel) {
  const int64_t n = importance.inputs();
  auto packed = PackFp32(
      n, n,
      [&](int64_t i, int64_t j) {
        return static_cast<float>(importance.hessian()[static_cast<size_t>(i * n + j)]);
      },
      parallel);
  if (!packed.ok()) return packed.status();
  return OutputError(*std::move(packed), ops, n);
}

double OutputError::Of(std::span<const float> errors, int64_t rows, ParallelItems parallel) const {
  const int64_t blocks = (rows + kOutputs - 1) / kOutputs, k = matrix_.k();
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel(blocks, [&](int64_t block) {
    const int64_t first = block * kOutputs, count = std::min(kOutputs, rows - first);
    const float* const from = errors.data() + first * inputs_;
    // Inputs are filled up with zeros to whole blocks.
    std::vector<float> x(static_cast<size_t>(count * k));
    for (int64_t r = 0; r < count; ++r) {
      std::copy_n(from + r * inputs_, inputs_, x.data() + r * k);
    }
    std::vector<float> out(static_cast<size_t>(count * inputs_));
    ops_->matmul_f32({.weights = matrix_.view(),
                      .x = x.data(),
                      .x_stride = k,
                      .rows = static_cast<int>(count),
                      .out = out.data(),
                      .out_stride = inputs_},
                     0, matrix_.view().panels());
    double sum = 0;
    for (int64_t i = 0; i < count * inputs_; ++i) {
      sum += static_cast<double>(out[static_cast<size_t>(i)]) * from[i];
    }
    sums[static_cast<size_t>(block)] = sum;
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace flotilla::quantize
