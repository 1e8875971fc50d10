// Activation quantisation and matrix products, one output at a time.
#include <cmath>

#include "kernels/reference/reference_ops.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::reference {
namespace {

// Adds split partials pairwise, (0,1), (2,3), ..., then pairs of pairs; an odd one
// carries up.
float SplitTree(float* partials, int count) {
  for (int stride = 1; stride < count; stride *= 2) {
    for (int i = 0; i + stride < count; i += 2 * stride) partials[i] += partials[i + stride];
  }
  return partials[0];
}

float ProductI16(const MatMulI16Args& args, int row, int column) {
  const MatrixView& w = args.weights;
  const int panel = column / kPanelColumns;
  const int lane = column % kPanelColumns;
  const int16_t* x = args.x.values + static_cast<int64_t>(row) * w.k;
  const float* sums = args.x.block_sums + static_cast<int64_t>(row) * w.blocks();
  const float* scales = args.x.scales + static_cast<int64_t>(row) * w.split_count;
  float partials[kMaxSplits];
  int block = 0;
  for (int split = 0; split < w.split_count; ++split) {
    float acc = 0;
    for (; block < w.split_ends[split] / kBlockK; ++block) {
      const std::byte* record = w.record(panel, block);
      int32_t dot = 0;
      for (int i = 0; i < kBlockK; ++i) {
        dot += x[block * kBlockK + i] * Quant(w.kind, record, lane, i);
      }
      const BlockScale scale = Scale(w.kind, record, lane);
      acc = std::fma(scale.d, static_cast<float>(dot), acc);
      if (w.kind == PackedKind::kNibbles) acc = std::fma(scale.m, sums[block], acc);
    }
    partials[split] = scales[split] * acc;
  }
  return SplitTree(partials, w.split_count);
}

float ProductF32(const MatMulF32Args& args, int row, int column) {
  const MatrixView& w = args.weights;
  const float* x = args.x + row * args.x_stride;
  float partials[kMaxSplits];
  int block = 0;
  for (int split = 0; split < w.split_count; ++split) {
    float acc = 0;
    for (; block < w.split_ends[split] / kBlockK; ++block) {
      float weights[kBlockK];
      UnpackBlock(w.kind, w.record(column / kPanelColumns, block), column % kPanelColumns, weights);
      for (int i = 0; i < kBlockK; ++i) acc = std::fma(x[block * kBlockK + i], weights[i], acc);
    }
    partials[split] = acc;
  }
  return SplitTree(partials, w.split_count);
}

// Applies `product` to every output of the panels.
template <typename Args, typename Product>
void ForEachOutput(const Args& args, int panel_begin, int panel_end, Product product) {
  const int last = panel_end * kPanelColumns;
  const int column_end = last < args.weights.columns ? last : args.weights.columns;
  for (int row = 0; row < args.rows; ++row) {
    for (int column = panel_begin * kPanelColumns; column < column_end; ++column) {
      float* out = args.out + row * args.out_stride + column;
      const float value = product(args, row, column);
      *out = args.accumulate ? *out + value : value;
    }
  }
}

}  // namespace

void QuantizeRows(const QuantizeArgs& args, int row_begin, int row_end) {
  const int blocks = args.k / kBlockK;
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    int16_t* values = args.out.values + static_cast<int64_t>(row) * args.k;
    float* sums = args.out.block_sums + static_cast<int64_t>(row) * blocks;
    int begin = 0;
    for (int split = 0; split < args.split_count; ++split) {
      const int end = args.split_ends[split];
      // The bits of |x| order like |x| itself, with NaN above infinity.
      uint32_t max_bits = 0;
      for (int i = begin; i < end; ++i) {
        const uint32_t bits = FloatBits(x[i]) & 0x7FFFFFFFu;
        if (bits > max_bits) max_bits = bits;
      }
      const float max = BitsFloat(max_bits);
      const bool finite = max_bits < 0x7F800000u;
      const bool zero = !finite || max < 1e-30f;
      const float inverse = zero ? 0.0f : 32767.0f / max;
      for (int i = begin; i < end; ++i) {
        values[i] = zero ? 0 : static_cast<int16_t>(std::nearbyint(x[i] * inverse));
      }
      for (int b = begin / kBlockK; b < end / kBlockK; ++b) {
        int32_t sum = 0;
        for (int i = 0; i < kBlockK; ++i) sum += values[b * kBlockK + i];
        sums[b] = static_cast<float>(sum);
      }
      float* scale = args.out.scales + static_cast<int64_t>(row) * args.split_count + split;
      *scale = !finite ? BitsFloat(0x7FC00000u) : zero ? 0.0f : max / 32767.0f;
      begin = end;
    }
  }
}

void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end) {
  ForEachOutput(args, panel_begin, panel_end, ProductI16);
}

void MatMulF32(const MatMulF32Args& args, int panel_begin, int panel_end) {
  ForEachOutput(args, panel_begin, panel_end, ProductF32);
}

}  // namespace flotilla::kernels::reference
