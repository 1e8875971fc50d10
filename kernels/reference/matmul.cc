// Activation quantisation and matrix products, one output at a time.
#include <cmath>

#include "kernels/packing/kinds.h"
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

// Calls visit(k of the block, outlier) for the outliers of a column in a block, in the order of k.
template <typename Visit>
void ForEachOutlier(const MatrixView& w, int column, int block, const Visit& visit) {
  const int lane = column % kPanelColumns;
  w.ForEachOutlier(column / kPanelColumns, block, lane / 16, 1, [&](uint32_t word) {
    if (OutlierColumn(word) == lane) visit(OutlierK(word), HalfToFloat(OutlierValue(word)));
  });
}

template <class Kind>
float ProductI16(const MatMulI16Args& args, int row, int column) {
  const MatrixView& w = args.weights;
  const int16_t* x = args.x.values + static_cast<int64_t>(row) * w.k;
  const float* sums = args.x.group_sums + static_cast<int64_t>(row) * (w.k / kSumSpan);
  const float* scales = args.x.scales + static_cast<int64_t>(row) * w.split_count;
  float partials[kMaxSplits];
  int k = 0;
  for (int split = 0; split < w.split_count; ++split) {
    float acc = 0;
    const int begin = k / kBlockK;
    for (; k < w.split_ends[split]; k += kBlockK) {
      const auto record = RecordOf<Kind>(w, column / kPanelColumns, k / kBlockK);
      acc = Kind::AddBlock(record, column % kPanelColumns, x + k, sums + k / kSumSpan, acc);
    }
    for (int block = begin; kHasOutliersOf<Kind> && block < k / kBlockK; ++block) {
      ForEachOutlier(w, column, block, [&](int i, float outlier) {
        acc = std::fma(outlier, static_cast<float>(x[block * kBlockK + i]), acc);
      });
    }
    partials[split] = scales[split] * acc;
  }
  return SplitTree(partials, w.split_count);
}

template <class Kind>
float ProductI8(const MatMulI8Args& args, int row, int column) {
  const MatrixView& w = args.weights;
  const int8_t* x = args.x.bytes(row, w.k);
  const float* scales = args.x.scales + static_cast<int64_t>(row) * w.split_count;
  const int lane = column % kPanelColumns;
  float partials[kMaxSplits];
  int k = 0;
  for (int split = 0; split < w.split_count; ++split) {
    int32_t dot = 0;
    float scale = 0;
    for (; k < w.split_ends[split]; ++k) {
      const auto record = RecordOf<Kind>(w, column / kPanelColumns, k / kBlockK);
      scale = Kind::Scale(record, lane);
      dot += (x[k] - w.activations.zero) * Kind::Integer(record, lane, k % kBlockK);
    }
    partials[split] = scales[split] * (scale * static_cast<float>(dot));
  }
  return SplitTree(partials, w.split_count);
}

template <class Kind>
float ProductF32(const MatMulF32Args& args, int row, int column) {
  const MatrixView& w = args.weights;
  const float* x = args.x + row * args.x_stride;
  float partials[kMaxSplits];
  int k = 0;
  for (int split = 0; split < w.split_count; ++split) {
    float acc = 0;
    for (; k < w.split_ends[split]; k += kBlockK) {
      float weights[kBlockK];
      const auto record = RecordOf<Kind>(w, column / kPanelColumns, k / kBlockK);
      Kind::Decode(record, column % kPanelColumns, weights);
      if constexpr (kHasOutliersOf<Kind>) {
        ForEachOutlier(w, column, k / kBlockK,
                       [&](int i, float outlier) { weights[i] += outlier; });
      }
      for (int i = 0; i < kBlockK; ++i) acc = std::fma(x[k + i], weights[i], acc);
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

// The bits of |x| order like |x| itself, with NaN above infinity.
uint32_t LargestBits(const float* x, int begin, int end) {
  uint32_t largest = 0;
  for (int i = begin; i < end; ++i) {
    const uint32_t bits = FloatBits(x[i]) & 0x7FFFFFFFu;
    if (bits > largest) largest = bits;
  }
  return largest;
}

void QuantizeToBytes(const QuantizeArgs& args, int row) {
  const float* x = args.x + row * args.x_stride;
  const ActivationScheme& scheme = args.activations;
  const bool fixed = scheme.kind == ActivationScheme::Kind::kStatic;
  int8_t* values = args.out.bytes(row, args.k);
  int begin = 0;
  for (int split = 0; split < args.split_count; ++split) {
    const int end = args.split_ends[split];
    const uint32_t max_bits = LargestBits(x, begin, end);
    const float max = BitsFloat(max_bits);
    const bool finite = max_bits < 0x7F800000u;
    const bool zero = !finite || (!fixed && max < 1e-30f);
    const float inverse = zero || fixed ? 0.0f : 127.0f / max;
    int32_t sum = 0;
    for (int i = begin; i < end; ++i) {
      float value = 0;
      if (!zero && fixed) {
        value = x[i] / scheme.scale + static_cast<float>(scheme.zero);
        value = value < -128 ? -128.0f : value > 127 ? 127.0f : value;
      } else if (!zero) {
        value = x[i] * inverse;
      }
      values[i] = static_cast<int8_t>(std::nearbyint(value));
      sum += values[i];
    }
    args.out.group_sums[(static_cast<int64_t>(row) * args.k + begin) / kSumSpan] =
        static_cast<float>(sum);
    float* scale = args.out.scales + static_cast<int64_t>(row) * args.split_count + split;
    *scale = !finite ? BitsFloat(0x7FC00000u) : zero ? 0.0f : fixed ? scheme.scale : max / 127.0f;
    begin = end;
  }
}

}  // namespace

void QuantizeRows(const QuantizeArgs& args, int row_begin, int row_end) {
  if (args.activations.kind != ActivationScheme::Kind::kNone) {
    for (int row = row_begin; row < row_end; ++row) QuantizeToBytes(args, row);
    return;
  }
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    int16_t* values = args.out.values + static_cast<int64_t>(row) * args.k;
    float* sums = args.out.group_sums + static_cast<int64_t>(row) * (args.k / kSumSpan);
    int begin = 0;
    for (int split = 0; split < args.split_count; ++split) {
      const int end = args.split_ends[split];
      const uint32_t max_bits = LargestBits(x, begin, end);
      const float max = BitsFloat(max_bits);
      const bool finite = max_bits < 0x7F800000u;
      const bool zero = !finite || max < 1e-30f;
      const float inverse = zero ? 0.0f : 32767.0f / max;
      for (int i = begin; i < end; ++i) {
        values[i] = zero ? 0 : static_cast<int16_t>(std::nearbyint(x[i] * inverse));
      }
      for (int g = begin; g < end; g += kActivationGroup) {
        int32_t halves[2] = {};
        for (int i = 0; i < kActivationGroup; ++i) halves[i / kSumSpan] += values[g + i];
        sums[g / kSumSpan] = static_cast<float>(halves[0] + halves[1]);
        sums[g / kSumSpan + 1] = static_cast<float>(halves[0]);
      }
      float* scale = args.out.scales + static_cast<int64_t>(row) * args.split_count + split;
      *scale = !finite ? BitsFloat(0x7FC00000u) : zero ? 0.0f : max / 32767.0f;
      begin = end;
    }
  }
}

void MatMulI16(const MatMulI16Args& args, int panel_begin, int panel_end) {
  VisitKind(args.weights.kind, [&]<class Kind>() {
    if constexpr (Kind::kHasIntegerProduct) {
      ForEachOutput(args, panel_begin, panel_end, ProductI16<Kind>);
    }
  });
}

void MatMulI8(const MatMulI8Args& args, int panel_begin, int panel_end) {
  VisitKind(args.weights.kind, [&]<class Kind>() {
    if constexpr (kHasInt8ProductOf<Kind>) {
      ForEachOutput(args, panel_begin, panel_end, ProductI8<Kind>);
    }
  });
}

void MatMulF32(const MatMulF32Args& args, int panel_begin, int panel_end) {
  VisitKind(args.weights.kind,
            [&]<class Kind>() { ForEachOutput(args, panel_begin, panel_end, ProductF32<Kind>); });
}

}  // namespace flotilla::kernels::reference
