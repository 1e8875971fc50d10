// How kernels read packed weights: the kinds of kernels/packing/ that GPUs multiply.
#pragma once

#include "kernels/cuda/simt.h"
#include "kernels/packing/bf16.h"
#include "kernels/packing/bytes.h"
#include "kernels/packing/floats.h"
#include "kernels/packing/fp16.h"
#include "kernels/packing/nibbles.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {

template <class Kind>
FLOTILLA_DEVICE const std::byte* RecordOf(const Matrix& matrix, int panel, int block) {
  return matrix.panels + panel * matrix.panel_bytes + int64_t{block} * Kind::kRecordBytes;
}

// Calls visitor.operator()<Kind>() for the kind, and returns what it does.
template <class Visitor>
int VisitKind(WeightKind kind, const Visitor& visitor) {
  switch (kind) {
    case WeightKind::kFloats:
      return visitor.template operator()<Floats>();
    case WeightKind::kFp16:
      return visitor.template operator()<Fp16>();
    case WeightKind::kBf16:
      return visitor.template operator()<Bf16>();
    case WeightKind::kNibbles:
      return visitor.template operator()<Nibbles>();
    case WeightKind::kBytes:
      return visitor.template operator()<Bytes>();
  }
  return 0;
}

// The splits of a product, added in their tree as they come: level i holds the sum of 2^i splits
// that lie side by side (kernels/packed_matrix.h).
inline constexpr int kMostLevels = 9;  // of up to 256 splits
template <int kOutputs, int kLevels>
class SplitTree {
 public:
  FLOTILLA_DEVICE void Add(const float (&partial)[kOutputs]) {
    float sum[kOutputs];
    for (int i = 0; i < kOutputs; ++i) sum[i] = partial[i];
    bool placed = false;
    FLOTILLA_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      const bool full = count_ >> level & 1;
      FLOTILLA_UNROLL
      for (int i = 0; i < kOutputs; ++i) {
        if (!placed && full) sum[i] = levels_[level][i] + sum[i];
        if (!placed && !full) levels_[level][i] = sum[i];
      }
      placed = placed || !full;
    }
    ++count_;
  }

  // The sum of all: what has no partner moves up unchanged.
  FLOTILLA_DEVICE void Total(float (&out)[kOutputs]) const {
    bool begun = false;
    FLOTILLA_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if ((count_ >> level & 1) == 0) continue;
      FLOTILLA_UNROLL
      for (int i = 0; i < kOutputs; ++i) {
        out[i] = begun ? levels_[level][i] + out[i] : levels_[level][i];
      }
      begun = true;
    }
  }

 private:
  float levels_[kLevels][kOutputs] = {};
  int count_ = 0;
};

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
