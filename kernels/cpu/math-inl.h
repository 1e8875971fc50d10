// Exp, Log, Tanh, Erf and Gumbel noise on 16 lanes: the operations of scalar_math.h and
// noise.h, in the same order, on each lane.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/noise.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {

template <class S>
FLOTILLA_INLINE typename S::F VExp(typename S::F x) {
  using C = MathConstants;
  using F = typename S::F;
  const F c = S::Min(S::Set1(C::kExpHigh), S::Max(S::Set1(C::kExpLow), x));
  const F t = S::Fma(c, S::Set1(C::kLog2E), S::Set1(C::kRound));
  const F n = S::Sub(t, S::Set1(C::kRound));
  F r = S::Fma(n, S::Set1(-C::kLn2High), c);
  r = S::Fma(n, S::Set1(-C::kLn2Low), r);
  F p = S::Set1(C::kExp[0]);
  FLOTILLA_UNROLL
  for (int i = 1; i < 6; ++i) p = S::Fma(p, r, S::Set1(C::kExp[i]));
  p = S::Add(S::Fma(p, S::Mul(r, r), r), S::Set1(1.0f));
  const auto bias = S::ISet1(static_cast<int32_t>(127u - C::kRoundBits));
  const F scale = S::FromBits(S::template Shl<23>(S::IAdd(S::Bits(t), bias)));
  return S::Select(S::Gt(S::Set1(C::kExpLow), x), S::Zero(), S::Mul(p, scale));
}

template <class S>
FLOTILLA_INLINE typename S::F VLog(typename S::F x) {
  using C = MathConstants;
  using F = typename S::F;
  const auto base = S::ISet1(C::kSqrtHalfBits);
  const auto shifted = S::ISub(S::Bits(x), base);
  const F e = S::ToFloat(S::template Sar<23>(shifted));
  const auto mantissa = S::IAdd(S::IAnd(shifted, S::ISet1(0x007FFFFF)), base);
  const F f = S::Sub(S::FromBits(mantissa), S::Set1(1.0f));
  const F z = S::Mul(f, f);
  F p = S::Set1(C::kLog[0]);
  FLOTILLA_UNROLL
  for (int i = 1; i < 9; ++i) p = S::Fma(p, f, S::Set1(C::kLog[i]));
  p = S::Mul(S::Mul(p, f), z);
  p = S::Fma(e, S::Set1(C::kLn2Low), p);
  p = S::Fma(S::Set1(-0.5f), z, p);
  return S::Fma(e, S::Set1(C::kLn2High), S::Add(f, p));
}

template <class S>
FLOTILLA_INLINE typename S::F VMagnitude(typename S::F x) {
  return S::FromBits(S::IAnd(S::Bits(x), S::ISet1(INT32_MAX)));
}

// `magnitude` with the sign of x.
template <class S>
FLOTILLA_INLINE typename S::F VWithSign(typename S::F magnitude, typename S::F x) {
  const auto sign = S::IAnd(S::Bits(x), S::ISet1(INT32_MIN));
  return S::FromBits(S::IOr(S::Bits(magnitude), sign));
}

template <class S, int n>
FLOTILLA_INLINE typename S::F VPolynomial(const float (&c)[n], typename S::F x) {
  auto p = S::Set1(c[0]);
  FLOTILLA_UNROLL
  for (int i = 1; i < n; ++i) p = S::Fma(p, x, S::Set1(c[i]));
  return p;
}

template <class S>
FLOTILLA_INLINE typename S::F VTanh(typename S::F x) {
  using C = MathConstants;
  using F = typename S::F;
  const F magnitude = VMagnitude<S>(x);
  const F square = S::Mul(x, x);
  const F small = S::Fma(S::Mul(VPolynomial<S>(C::kTanh, square), square), x, x);
  const F one = S::Set1(1.0f);
  const F denominator = S::Add(VExp<S>(S::Add(magnitude, magnitude)), one);
  const F far = S::Sub(one, S::Div(S::Set1(2.0f), denominator));
  return S::Select(S::Gt(S::Set1(C::kTanhSmall), magnitude), small, VWithSign<S>(far, x));
}

template <class S>
FLOTILLA_INLINE typename S::F VErf(typename S::F x) {
  using C = MathConstants;
  using F = typename S::F;
  const F one = S::Set1(1.0f);
  const F magnitude = VMagnitude<S>(x);
  const F square = S::Mul(x, x);
  const F small = S::Mul(x, VPolynomial<S>(C::kErf, square));
  const F q = S::Div(one, magnitude);
  const F y = S::Mul(q, q);
  const F p = S::Select(S::Gt(S::Set1(2.0f), magnitude), VPolynomial<S>(C::kErfNear, y),
                        VPolynomial<S>(C::kErfFar, y));
  const F negative = S::FromBits(S::IXor(S::Bits(square), S::ISet1(INT32_MIN)));
  const F far = S::Sub(one, S::Mul(S::Mul(VExp<S>(negative), q), p));
  return S::Select(S::Gt(one, magnitude), small, VWithSign<S>(far, x));
}

template <class S>
FLOTILLA_INLINE typename S::I VMix32(typename S::I h) {
  h = S::IMul(S::IXor(h, S::template Shr<16>(h)), S::ISet1(static_cast<int32_t>(0x85EBCA6Bu)));
  h = S::IMul(S::IXor(h, S::template Shr<13>(h)), S::ISet1(static_cast<int32_t>(0xC2B2AE35u)));
  return S::IXor(h, S::template Shr<16>(h));
}

template <class S>
FLOTILLA_INLINE typename S::F VGumbelNoise(NoiseKey key, typename S::I token) {
  auto h = S::IMul(token, S::ISet1(static_cast<int32_t>(0x9E3779B1u)));
  h = VMix32<S>(S::IXor(h, S::ISet1(static_cast<int32_t>(key.low))));
  h = VMix32<S>(S::IXor(h, S::ISet1(static_cast<int32_t>(key.high))));
  const auto odd = S::IOr(S::template Shr<8>(h), S::ISet1(1));
  const auto uniform = S::Mul(S::ToFloat(odd), S::Set1(0x1p-24f));
  const auto sign = S::ISet1(INT32_MIN);
  const auto exponential = S::FromBits(S::IXor(S::Bits(VLog<S>(uniform)), sign));
  return S::FromBits(S::IXor(S::Bits(VLog<S>(exponential)), sign));
}

}  // namespace flotilla::kernels
