// Row-wise ops: quantisation, norm, RoPE, activation, sums. A row is read while it
// is in L1; none of these is more than a few per cent of a step.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace flotilla::kernels {

// Calls body(offset, count) for n elements, 16 at a time; the last call may have fewer.
template <class Body>
FLOTILLA_INLINE void ForVectors(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, 16);
  if (i < n) body(i, static_cast<int>(n - i));
}

// LoadN and StoreN that cost a plain access for whole vectors.
template <class S>
FLOTILLA_INLINE typename S::F LoadUpTo(const float* p, int n) {
  return n == 16 ? S::Load(p) : S::LoadN(p, n);
}
template <class S>
FLOTILLA_INLINE void StoreUpTo(float* p, int n, typename S::F x) {
  if (n == 16) {
    S::Store(p, x);
  } else {
    S::StoreN(p, n, x);
  }
}

inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

// The largest magnitude of x[0, n), by the order of bits: a NaN is above infinity.
template <class S>
FLOTILLA_INLINE float LargestMagnitude(const float* x, int n) {
  const auto magnitude = S::ISet1(INT32_MAX);
  auto largest = S::IZero();
  for (int i = 0; i < n; i += 16) {
    largest = S::IMax(largest, S::IAnd(S::Bits(S::Load(x + i)), magnitude));
  }
  const int32_t max_bits = S::IMaxLane(largest);
  float max;
  __builtin_memcpy(&max, &max_bits, sizeof max);
  return max;
}

// Quantises one split, x[0, n): writes values and block sums, returns the scale.
template <class S>
FLOTILLA_INLINE float QuantizeSplit(const float* x, int n, int16_t* values, float* sums) {
  using I = typename S::I;
  const float max = LargestMagnitude<S>(x, n);
  const bool finite = max <= kLargestFloat;
  if (!finite || max < 1e-30f) {
    for (int i = 0; i < n; i += 16) S::StoreInt16(values + i, S::IZero());
    for (int b = 0; b < n / kSumSpan; ++b) sums[b] = 0.0f;
    return finite ? 0.0f : __builtin_nanf("");
  }
  const auto inverse = S::Set1(32767.0f / max);
  for (int i = 0; i < n; i += kActivationGroup) {
    const I low = S::ToInt(S::Mul(S::Load(x + i), inverse));
    const I high = S::ToInt(S::Mul(S::Load(x + i + 16), inverse));
    S::StoreInt16(values + i, low);
    S::StoreInt16(values + i + 16, high);
    int32_t first, second;
    S::ISums(low, high, first, second);
    sums[i / kSumSpan] = static_cast<float>(first + second);
    sums[i / kSumSpan + 1] = static_cast<float>(first);
  }
  return max / 32767.0f;
}

// The same with activations of 8 bits: writes n values and their sum.
template <class S>
FLOTILLA_INLINE float QuantizeSplitToBytes(const ActivationScheme& scheme, const float* x, int n,
                                           int8_t* values, float* sum) {
  using I = typename S::I;
  const float max = LargestMagnitude<S>(x, n);
  const bool finite = max <= kLargestFloat;
  const bool fixed = scheme.kind == ActivationScheme::Kind::kStatic;
  if (!finite || (!fixed && max < 1e-30f)) {
    for (int i = 0; i < n; i += 16) S::StoreBytes(values + i, S::IZero());
    *sum = 0.0f;
    return finite ? 0.0f : __builtin_nanf("");
  }
  const auto inverse = S::Set1(127.0f / max), scale = S::Set1(scheme.scale);
  const auto zero = S::Set1(static_cast<float>(scheme.zero));
  const auto low = S::Set1(-128.0f), high = S::Set1(127.0f);
  I sums = S::IZero();
  for (int i = 0; i < n; i += 16) {
    const auto from = S::Load(x + i);
    const I value = S::ToInt(fixed ? S::Min(S::Max(S::Add(S::Div(from, scale), zero), low), high)
                                   : S::Mul(from, inverse));
    sums = S::IAdd(sums, value);
    S::StoreBytes(values + i, S::IAnd(value, S::ISet1(255)));
  }
  int32_t total, none;
  S::ISums(sums, S::IZero(), total, none);
  *sum = static_cast<float>(total);
  return fixed ? scheme.scale : max / 127.0f;
}

template <class S>
void QuantizeRows(const QuantizeArgs& args, int row_begin, int row_end) {
  const bool to_bytes = args.activations.kind != ActivationScheme::Kind::kNone;
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    int16_t* values = args.out.values + static_cast<int64_t>(row) * args.k;
    float* sums = args.out.group_sums + static_cast<int64_t>(row) * (args.k / kSumSpan);
    float* scales = args.out.scales + static_cast<int64_t>(row) * args.split_count;
    int begin = 0;
    for (int split = 0; split < args.split_count; ++split) {
      const int end = args.split_ends[split];
      float* const split_sums = sums + begin / kSumSpan;
      scales[split] = to_bytes
                          ? QuantizeSplitToBytes<S>(args.activations, x + begin, end - begin,
                                                    args.out.bytes(row, args.k) + begin, split_sums)
                          : QuantizeSplit<S>(x + begin, end - begin, values + begin, split_sums);
      begin = end;
    }
  }
}

// Sums n elements in 64 lanes and returns the tree of the lanes. add(offset, count, lanes) returns
// the sums of 16 lanes with `count` more elements.
template <class S, class Body>
FLOTILLA_INLINE float SumIn64Lanes(int n, Body add) {
  auto s0 = S::Zero(), s1 = s0, s2 = s0, s3 = s0;  // lanes 0-15, 16-31, 32-47 and 48-63
  const auto step = [&](int i, typename S::F& sum) FLOTILLA_INLINE_LAMBDA {
    if (i < n) sum = add(i, std::min(n - i, 16), sum);
  };
  for (int i = 0; i < n; i += 64) {
    step(i, s0);
    step(i + 16, s1);
    step(i + 32, s2);
    step(i + 48, s3);
  }
  return S::LaneTree(S::Add(S::Add(s0, s2), S::Add(s1, s3)));
}

template <class S>
void RmsNorm(const RmsNormArgs& args, int row_begin, int row_end) {
  using F = typename S::F;
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    const float squares =
        SumIn64Lanes<S>(args.n, [&](int i, int count, F lanes) FLOTILLA_INLINE_LAMBDA {
          const F v = LoadUpTo<S>(x + i, count);
          return S::Fma(v, v, lanes);
        });
    const float mean = squares / static_cast<float>(args.n);
    const F inverse = S::Div(S::Set1(1.0f), S::Sqrt(S::Set1(mean + args.eps)));
    ForVectors(args.n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
      const F v = S::Mul(LoadUpTo<S>(x + i, count), inverse);
      StoreUpTo<S>(out + i, count, S::Mul(v, LoadUpTo<S>(args.weight + i, count)));
    });
  }
}

template <class S>
void LayerNorm(const LayerNormArgs& args, int row_begin, int row_end) {
  using F = typename S::F;
  const auto n = static_cast<float>(args.n);
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    const float sum =
        SumIn64Lanes<S>(args.n, [&](int i, int count, F lanes) FLOTILLA_INLINE_LAMBDA {
          return S::Add(lanes, LoadUpTo<S>(x + i, count));
        });
    const F mean = S::Set1(sum / n);
    const float squares =
        SumIn64Lanes<S>(args.n, [&](int i, int count, F lanes) FLOTILLA_INLINE_LAMBDA {
          const F d = S::Sub(LoadUpTo<S>(x + i, count), mean);
          const F sum = S::Fma(d, d, lanes);
          return count == 16 ? sum : S::Select(S::FirstN(count), sum, lanes);
        });
    const F inverse = S::Div(S::Set1(1.0f), S::Sqrt(S::Set1(squares / n + args.eps)));
    ForVectors(args.n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
      const F normed = S::Mul(S::Sub(LoadUpTo<S>(x + i, count), mean), inverse);
      const F weight = LoadUpTo<S>(args.weight + i, count);
      StoreUpTo<S>(out + i, count,
                   args.bias == nullptr
                       ? S::Mul(normed, weight)
                       : S::Fma(normed, weight, LoadUpTo<S>(args.bias + i, count)));
    });
  }
}

template <class S>
void Rope(const RopeArgs& args, int token_begin, int token_end) {
  for (int token = token_begin; token < token_end; ++token) {
    const float* cosines = args.table + static_cast<int64_t>(args.positions[token]) * args.dim;
    const float* sines = cosines + args.dim / 2;
    float* x = args.x + token * args.token_stride;
    for (int i = 0; i < args.dim; i += 16) {
      const auto cosine = S::LoadTwice(cosines + i / 2);
      const auto sine = S::NegateEven(S::LoadTwice(sines + i / 2));
      for (int head = 0; head < args.heads; ++head) {
        float* p = x + head * args.head_stride + i;
        const auto v = S::Load(p);
        S::Store(p, S::Fma(v, cosine, S::Mul(S::SwapPairs(v), sine)));
      }
    }
  }
}

template <class S>
FLOTILLA_INLINE typename S::F Negative(typename S::F x) {
  return S::FromBits(S::IXor(S::Bits(x), S::ISet1(INT32_MIN)));
}

template <class S, Activation kActivation>
FLOTILLA_INLINE typename S::F Activated(typename S::F x) {
  const auto one = S::Set1(1.0f);
  if constexpr (kActivation == Activation::kSilu) {
    return S::Div(x, S::Add(one, VExp<S>(Negative<S>(x))));
  } else if constexpr (kActivation == Activation::kGelu) {
    return S::Mul(S::Add(one, VErf<S>(S::Mul(x, S::Set1(kSqrtHalf)))), S::Mul(x, S::Set1(0.5f)));
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const auto slope = S::Fma(S::Mul(x, x), S::Set1(kGeluCubic), S::Set1(kGeluLinear));
    return S::Div(x, S::Add(one, VExp<S>(S::Mul(x, slope))));
  } else {
    static_assert(kActivation == Activation::kRelu);
    return S::Max(S::Zero(), x);  // x where it is a NaN
  }
}

template <class S>
FLOTILLA_INLINE typename S::F ClippedSwiglu(typename S::F gate, typename S::F up) {
  const auto one = S::Set1(1.0f), limit = S::Set1(kSwigluLimit);
  const auto g = S::Min(limit, gate);
  const auto u = S::Min(limit, S::Max(S::Set1(-kSwigluLimit), up));
  const auto silu = S::Div(g, S::Add(one, VExp<S>(S::Mul(S::Set1(-kSwigluSlope), g))));
  return S::Mul(silu, S::Add(u, one));
}

template <class S, Activation kActivation>
void ActivateRows(const ActivateArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* gates = args.gate + row * args.in_stride;
    const float* ups = args.up == nullptr ? nullptr : args.up + row * args.in_stride;
    float* out = args.out + row * args.out_stride;
    ForVectors(args.n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
      const auto gate = LoadUpTo<S>(gates + i, count);
      if constexpr (kActivation == Activation::kClippedSwiglu) {
        StoreUpTo<S>(out + i, count, ClippedSwiglu<S>(gate, LoadUpTo<S>(ups + i, count)));
      } else {
        const auto activated = Activated<S, kActivation>(gate);
        StoreUpTo<S>(out + i, count,
                     ups == nullptr ? activated : S::Mul(activated, LoadUpTo<S>(ups + i, count)));
      }
    });
  }
}

template <class S>
void Activate(const ActivateArgs& args, int row_begin, int row_end) {
  switch (args.activation) {
    case Activation::kSilu:
      return ActivateRows<S, Activation::kSilu>(args, row_begin, row_end);
    case Activation::kGelu:
      return ActivateRows<S, Activation::kGelu>(args, row_begin, row_end);
    case Activation::kGeluTanh:
      return ActivateRows<S, Activation::kGeluTanh>(args, row_begin, row_end);
    case Activation::kRelu:
      return ActivateRows<S, Activation::kRelu>(args, row_begin, row_end);
    case Activation::kClippedSwiglu:
      return ActivateRows<S, Activation::kClippedSwiglu>(args, row_begin, row_end);
  }
}

template <class S>
void Add(const float* x, float* y, int64_t n) {
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    StoreUpTo<S>(y + i, count, S::Add(LoadUpTo<S>(y + i, count), LoadUpTo<S>(x + i, count)));
  });
}

template <class S>
void AddScaled(const float* x, float factor, float* y, int64_t n) {
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    StoreUpTo<S>(y + i, count,
                 S::Fma(S::Set1(factor), LoadUpTo<S>(x + i, count), LoadUpTo<S>(y + i, count)));
  });
}

template <class S>
void Scale(float* x, float factor, int64_t n) {
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    StoreUpTo<S>(x + i, count, S::Mul(LoadUpTo<S>(x + i, count), S::Set1(factor)));
  });
}

template <class S>
void Softcap(float* x, float cap, int64_t n) {
  const auto caps = S::Set1(cap);
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    StoreUpTo<S>(x + i, count, S::Mul(caps, VTanh<S>(S::Div(LoadUpTo<S>(x + i, count), caps))));
  });
}

}  // namespace flotilla::kernels
