// Row-wise ops: quantisation, norm, RoPE, activation, sums. A row is read while it
// is in L1; none of these is more than a few per cent of a step.
#pragma once

#include <algorithm>

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

// Quantises one split, x[0, n): writes values and block sums, returns the scale.
template <class S>
FLOTILLA_INLINE float QuantizeSplit(const float* x, int n, int16_t* values, float* sums) {
  using I = typename S::I;
  const I magnitude = S::ISet1(INT32_MAX);
  I largest = S::IZero();
  for (int i = 0; i < n; i += 16) {
    largest = S::IMax(largest, S::IAnd(S::Bits(S::Load(x + i)), magnitude));
  }
  const int32_t max_bits = S::IMaxLane(largest);
  float max;
  __builtin_memcpy(&max, &max_bits, sizeof max);
  const bool finite = max_bits < 0x7F800000;
  if (!finite || max < 1e-30f) {
    for (int i = 0; i < n; i += 16) S::StoreInt16(values + i, S::IZero());
    for (int b = 0; b < n / kActivationGroup; ++b) sums[b] = 0.0f;
    return finite ? 0.0f : __builtin_nanf("");
  }
  const auto inverse = S::Set1(32767.0f / max);
  for (int i = 0; i < n; i += kActivationGroup) {
    const I low = S::ToInt(S::Mul(S::Load(x + i), inverse));
    const I high = S::ToInt(S::Mul(S::Load(x + i + 16), inverse));
    S::StoreInt16(values + i, low);
    S::StoreInt16(values + i + 16, high);
    sums[i / kActivationGroup] = static_cast<float>(S::ISum(S::IAdd(low, high)));
  }
  return max / 32767.0f;
}

template <class S>
void QuantizeRows(const QuantizeArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    int16_t* values = args.out.values + static_cast<int64_t>(row) * args.k;
    float* sums = args.out.group_sums + static_cast<int64_t>(row) * (args.k / kActivationGroup);
    float* scales = args.out.scales + static_cast<int64_t>(row) * args.split_count;
    int begin = 0;
    for (int split = 0; split < args.split_count; ++split) {
      const int end = args.split_ends[split];
      scales[split] =
          QuantizeSplit<S>(x + begin, end - begin, values + begin, sums + begin / kActivationGroup);
      begin = end;
    }
  }
}

template <class S>
void RmsNorm(const RmsNormArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    auto s0 = S::Zero(), s1 = s0, s2 = s0, s3 = s0;  // lanes 0-15, 16-31, 32-47 and 48-63
    const auto add_squares = [&](int i, typename S::F& sum) FLOTILLA_INLINE_LAMBDA {
      if (i >= args.n) return;
      const auto v = LoadUpTo<S>(x + i, std::min(args.n - i, 16));
      sum = S::Fma(v, v, sum);
    };
    for (int i = 0; i < args.n; i += 64) {
      add_squares(i, s0);
      add_squares(i + 16, s1);
      add_squares(i + 32, s2);
      add_squares(i + 48, s3);
    }
    const auto squares = S::Add(S::Add(s0, s2), S::Add(s1, s3));
    const float mean = S::LaneTree(squares) / static_cast<float>(args.n);
    const auto root = S::Sqrt(S::Set1(mean + args.eps));
    const auto inverse = S::Div(S::Set1(1.0f), root);
    ForVectors(args.n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
      const auto v = S::Mul(LoadUpTo<S>(x + i, count), inverse);
      StoreUpTo<S>(out + i, count, S::Mul(v, LoadUpTo<S>(args.weight + i, count)));
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
        float* p = x + head * args.dim + i;
        const auto v = S::Load(p);
        S::Store(p, S::Fma(v, cosine, S::Mul(S::SwapPairs(v), sine)));
      }
    }
  }
}

template <class S>
void SiluMul(const SiluMulArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* gates = args.gate + row * args.in_stride;
    const float* ups = args.up + row * args.in_stride;
    float* out = args.out + row * args.out_stride;
    ForVectors(args.n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
      const auto gate = LoadUpTo<S>(gates + i, count);
      const auto negative = S::FromBits(S::IXor(S::Bits(gate), S::ISet1(INT32_MIN)));
      const auto silu = S::Div(gate, S::Add(S::Set1(1.0f), VExp<S>(negative)));
      StoreUpTo<S>(out + i, count, S::Mul(silu, LoadUpTo<S>(ups + i, count)));
    });
  }
}

template <class S>
void Add(const float* x, float* y, int64_t n) {
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    StoreUpTo<S>(y + i, count, S::Add(LoadUpTo<S>(y + i, count), LoadUpTo<S>(x + i, count)));
  });
}

}  // namespace flotilla::kernels
