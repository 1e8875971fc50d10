#include "tests/support/encode_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "common/types/weight_panel.h"
#include "tests/support/put_bytes.h"

namespace flotilla::testing {
namespace {

float Largest(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// A block of 32 as model/weights/q8_0.cc reads it.
void EncodeQ8_0(std::span<const float> values, std::vector<std::byte>& out) {
  const float scale = Largest(values) / 127;
  Put(out, model::FloatToHalf(scale));
  for (const float v : values) Put(out, static_cast<int8_t>(scale > 0 ? std::round(v / scale) : 0));
}

// A block of 32 as model/weights/q4_0.cc reads it: the number of the largest size is -8.
void EncodeQ4_0(std::span<const float> values, std::vector<std::byte>& out) {
  const float most = *std::max_element(
      values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const float scale = most / -8;
  const auto code = [&](size_t j) {
    return scale != 0 ? std::clamp(std::lround(values[j] / scale) + 8, 0l, 15l) : 8l;
  };
  Put(out, model::FloatToHalf(scale));
  for (size_t j = 0; j < 16; ++j) Put(out, static_cast<uint8_t>(code(j) | code(j + 16) << 4));
}

// A block of 32 as model/weights/q4_1.cc reads it.
void EncodeQ4_1(std::span<const float> values, std::vector<std::byte>& out) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float least = *low, scale = (*high - *low) / 15;
  const auto code = [&](size_t j) {
    return scale > 0 ? std::clamp(std::lround((values[j] - least) / scale), 0l, 15l) : 0l;
  };
  Put(out, model::FloatToHalf(scale));
  Put(out, model::FloatToHalf(least));
  for (size_t j = 0; j < 16; ++j) Put(out, static_cast<uint8_t>(code(j) | code(j + 16) << 4));
}

// The codes of a block of 32 with five bits: the fifth bits, then nibbles.
template <typename CodeOf>
void PutFiveBits(const CodeOf& code, std::vector<std::byte>& out) {
  uint32_t fifth = 0;
  for (size_t j = 0; j < 32; ++j) fifth |= static_cast<uint32_t>(code(j) >> 4) << j;
  Put(out, fifth);
  for (size_t j = 0; j < 16; ++j) {
    Put(out, static_cast<uint8_t>((code(j) & 15) | (code(j + 16) & 15) << 4));
  }
}

// A block of 32 as model/weights/q5_0.cc reads it.
void EncodeQ5_0(std::span<const float> values, std::vector<std::byte>& out) {
  const float scale = Largest(values) / 15;
  Put(out, model::FloatToHalf(scale));
  PutFiveBits([&](size_t j) { return scale > 0 ? std::lround(values[j] / scale) + 16 : 16l; }, out);
}

// A block of 32 as model/weights/q5_1.cc reads it.
void EncodeQ5_1(std::span<const float> values, std::vector<std::byte>& out) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float least = *low, scale = (*high - *low) / 31;
  Put(out, model::FloatToHalf(scale));
  Put(out, model::FloatToHalf(least));
  PutFiveBits(
      [&](size_t j) {
        return scale > 0 ? std::clamp(std::lround((values[j] - least) / scale), 0l, 31l) : 0l;
      },
      out);
}

// A block of 256 as model/weights/q6_k.cc reads it.
void EncodeQ6_K(std::span<const float> values, std::vector<std::byte>& out) {
  constexpr size_t kGroups = 16;
  float largest[kGroups] = {};
  for (size_t i = 0; i < values.size(); ++i) {
    largest[i / 16] = std::max(largest[i / 16], std::fabs(values[i]));
  }
  // The largest code is 31, and the largest factor 127.
  const uint16_t half =
      model::FloatToHalf(*std::max_element(largest, largest + kGroups) / (31 * 127));
  const float d = model::HalfToFloat(half);
  uint8_t nibbles[128] = {}, pairs[64] = {};
  int8_t factors[kGroups];
  for (size_t g = 0; g < kGroups; ++g) {
    factors[g] =
        static_cast<int8_t>(d > 0 ? std::clamp(std::lround(largest[g] / (31 * d)), 1l, 127l) : 0);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const float scale = d * static_cast<float>(factors[i / 16]);
    const long code = scale > 0 ? std::clamp(std::lround(values[i] / scale), -32l, 31l) + 32 : 32;
    const size_t part = i / 128, quarter = i % 128 / 32, l = i % 32;
    nibbles[part * 64 + quarter % 2 * 32 + l] |=
        static_cast<uint8_t>((code & 15) << quarter / 2 * 4);
    pairs[part * 32 + l] |= static_cast<uint8_t>(code >> 4 << quarter * 2);
  }
  Append(out, nibbles, sizeof nibbles);
  Append(out, pairs, sizeof pairs);
  Append(out, factors, sizeof factors);
  Put(out, half);
}

// A block of 256 as model/weights/q4_k.cc and q5_k.cc read it.
void EncodeKQuant(int bits, std::span<const float> values, std::vector<std::byte>& out) {
  const int most = (1 << bits) - 1;
  float scales[8], minimums[8];  // of each 32; a minimum is at most 0
  for (size_t g = 0; g < 8; ++g) {
    const auto [low, high] =
        std::minmax_element(values.begin() + g * 32, values.begin() + g * 32 + 32);
    minimums[g] = std::min(*low, 0.0f);
    scales[g] = (std::max(*high, 0.0f) - minimums[g]) / static_cast<float>(most);
  }
  const uint16_t half_d = model::FloatToHalf(*std::max_element(scales, scales + 8) / 63);
  const uint16_t half_m = model::FloatToHalf(-*std::min_element(minimums, minimums + 8) / 63);
  const float d = model::HalfToFloat(half_d), m = model::HalfToFloat(half_m);
  uint8_t factors[8], minimum_factors[8], nibbles[128] = {}, fifths[32] = {};
  for (size_t g = 0; g < 8; ++g) {
    const auto factor = [](float value, float unit) {
      return static_cast<uint8_t>(unit > 0 ? std::clamp(std::lround(value / unit), 0l, 63l) : 0);
    };
    factors[g] = factor(scales[g], d);
    minimum_factors[g] = factor(-minimums[g], m);
    const float scale = d * static_cast<float>(factors[g]);
    for (size_t l = 0; l < 32; ++l) {
      const float above = values[g * 32 + l] + m * static_cast<float>(minimum_factors[g]);
      const long code = scale > 0 ? std::clamp<long>(std::lround(above / scale), 0, most) : 0;
      nibbles[g / 2 * 32 + l] |= static_cast<uint8_t>((code & 15) << g % 2 * 4);
      fifths[l] |= static_cast<uint8_t>((code >> 4) << g);
    }
  }
  uint8_t packed[12] = {};
  for (size_t g = 0; g < 4; ++g) {
    packed[g] = static_cast<uint8_t>(factors[g] | (factors[g + 4] >> 4) << 6);
    packed[g + 4] = static_cast<uint8_t>(minimum_factors[g] | (minimum_factors[g + 4] >> 4) << 6);
    packed[g + 8] =
        static_cast<uint8_t>((factors[g + 4] & 15) | (minimum_factors[g + 4] & 15) << 4);
  }
  Put(out, half_d);
  Put(out, half_m);
  Append(out, packed, sizeof packed);
  if (bits == 5) Append(out, fifths, sizeof fifths);
  Append(out, nibbles, sizeof nibbles);
}

// A block of 256 as model/weights/q3_k.cc reads it.
void EncodeQ3_K(std::span<const float> values, std::vector<std::byte>& out) {
  constexpr size_t kGroups = 16;
  float scales[kGroups] = {};  // of each 16
  for (size_t i = 0; i < values.size(); ++i) {
    scales[i / 16] = std::max(scales[i / 16], std::fabs(values[i]) / 4);
  }
  const uint16_t half = model::FloatToHalf(*std::max_element(scales, scales + kGroups) / 31);
  const float d = model::HalfToFloat(half);
  uint8_t thirds[32] = {}, pairs[64] = {}, factors[12] = {};
  for (size_t g = 0; g < kGroups; ++g) {
    const long factor = d > 0 ? std::clamp(std::lround(scales[g] / d), 0l, 31l) : 0;
    const size_t stored = static_cast<size_t>(factor) + 32;
    factors[g % 8] |= static_cast<uint8_t>((stored & 15) << g / 8 * 4);
    factors[8 + g % 4] |= static_cast<uint8_t>((stored >> 4) << g / 4 * 2);
    const float scale = d * static_cast<float>(factor);
    for (size_t i = g * 16; i < g * 16 + 16; ++i) {
      const long code = scale > 0 ? std::clamp(std::lround(values[i] / scale), -4l, 3l) + 4 : 4;
      pairs[i / 128 * 32 + i % 32] |= static_cast<uint8_t>((code & 3) << i % 128 / 32 * 2);
      thirds[i % 32] |= static_cast<uint8_t>((code >> 2) << i / 32);
    }
  }
  Append(out, thirds, sizeof thirds);
  Append(out, pairs, sizeof pairs);
  Append(out, factors, sizeof factors);
  Put(out, half);
}

// A block of 256 as model/weights/q2_k.cc reads it.
void EncodeQ2_K(std::span<const float> values, std::vector<std::byte>& out) {
  float scales[16], minimums[16];  // of each 16; a minimum is at most 0
  for (size_t g = 0; g < 16; ++g) {
    const auto group = values.subspan(g * 16, 16);
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    minimums[g] = std::min(*low, 0.0f);
    scales[g] = (std::max(*high, 0.0f) - minimums[g]) / 3;
  }
  const uint16_t half_d = model::FloatToHalf(*std::max_element(scales, scales + 16) / 15);
  const uint16_t half_m = model::FloatToHalf(-*std::min_element(minimums, minimums + 16) / 15);
  const float d = model::HalfToFloat(half_d), m = model::HalfToFloat(half_m);
  uint8_t factors[16], pairs[64] = {};
  for (size_t g = 0; g < 16; ++g) {
    const auto factor = [](float value, float unit) {
      return unit > 0 ? std::clamp(std::lround(value / unit), 0l, 15l) : 0l;
    };
    const long f = factor(scales[g], d), least = factor(-minimums[g], m);
    factors[g] = static_cast<uint8_t>(f | least << 4);
    const float scale = d * static_cast<float>(f);
    for (size_t i = g * 16; i < g * 16 + 16; ++i) {
      const float above = values[i] + m * static_cast<float>(least);
      const long code = scale > 0 ? std::clamp(std::lround(above / scale), 0l, 3l) : 0;
      pairs[i / 128 * 32 + i % 32] |= static_cast<uint8_t>(code << i % 128 / 32 * 2);
    }
  }
  Append(out, factors, sizeof factors);
  Append(out, pairs, sizeof pairs);
  Put(out, half_d);
  Put(out, half_m);
}

// The place in a table of the code that times `scale` is nearest to the value.
size_t NearestPlace(const int8_t (&table)[16], float scale, float value) {
  size_t best = 0;
  const auto distance = [&](size_t place) {
    return std::fabs(scale * static_cast<float>(table[place]) - value);
  };
  for (size_t place = 1; place < 16; ++place) {
    if (distance(place) < distance(best)) best = place;
  }
  return best;
}

// Nibbles of a table: those of the first half of the values are the low ones.
void PutPlaces(const int8_t (&table)[16], float scale, std::span<const float> values,
               std::vector<std::byte>& out) {
  const size_t half = values.size() / 2;
  for (size_t j = 0; j < half; ++j) {
    Put(out, static_cast<uint8_t>(NearestPlace(table, scale, values[j]) |
                                  NearestPlace(table, scale, values[j + half]) << 4));
  }
}

// A block of 32 as model/weights/iq4_nl.cc reads it.
void EncodeIq4Nl(std::span<const float> values, std::vector<std::byte>& out) {
  const uint16_t half = model::FloatToHalf(Largest(values) / 120);
  Put(out, half);
  PutPlaces(kIq4Values, model::HalfToFloat(half), values, out);
}

// A block of 256 as model/weights/iq4_xs.cc reads it.
void EncodeIq4Xs(std::span<const float> values, std::vector<std::byte>& out) {
  const uint16_t half = model::FloatToHalf(Largest(values) / (120 * 31));
  const float d = model::HalfToFloat(half);
  uint16_t high = 0;
  uint8_t low[4] = {};
  float scales[8];
  for (size_t g = 0; g < 8; ++g) {
    const float wanted = Largest(values.subspan(g * 32, 32)) / 120;
    const long factor = d > 0 ? std::clamp(std::lround(wanted / d), -32l, 31l) : 0;
    const size_t stored = static_cast<size_t>(factor + 32);
    low[g / 2] |= static_cast<uint8_t>((stored & 15) << g % 2 * 4);
    high |= static_cast<uint16_t>((stored >> 4) << g * 2);
    scales[g] = d * static_cast<float>(factor);
  }
  Put(out, half);
  Put(out, high);
  Append(out, low, sizeof low);
  for (size_t g = 0; g < 8; ++g) PutPlaces(kIq4Values, scales[g], values.subspan(g * 32, 32), out);
}

// A block of 32 as model/weights/mxfp4.cc reads it.
void EncodeMxfp4(std::span<const float> values, std::vector<std::byte>& out) {
  int exponent = 0;
  std::frexp(Largest(values) / 12, &exponent);
  Put(out, static_cast<uint8_t>(std::clamp(exponent + 128, 0, 252)));
  PutPlaces(kFp4Values, std::ldexp(1.0f, exponent), values, out);
}

// A block of 64 as model/weights/nvfp4.cc reads it.
void EncodeNvfp4(std::span<const float> values, std::vector<std::byte>& out) {
  float scales[4];
  for (size_t g = 0; g < 4; ++g) {
    const float wanted = Largest(values.subspan(g * 16, 16)) / 12;
    uint8_t bits = 0;
    scales[g] = 0;
    while (scales[g] < wanted && bits < 126) {
      ++bits;
      scales[g] = bits < 8 ? std::ldexp(static_cast<float>(bits), -10)
                           : std::ldexp(static_cast<float>(8 + bits % 8), bits / 8 - 11);
    }
    Put(out, bits);
  }
  for (size_t g = 0; g < 4; ++g) PutPlaces(kFp4Values, scales[g], values.subspan(g * 16, 16), out);
}

struct Encoder {
  model::GgmlType type;
  size_t block;  // elements
  void (*encode)(std::span<const float> values, std::vector<std::byte>& out);
};
constexpr Encoder kEncoders[] = {
    {model::GgmlType::kF32, 1, [](auto values, auto& out) { Put(out, values[0]); }},
    {model::GgmlType::kF16, 1,
     [](auto values, auto& out) { Put(out, model::FloatToHalf(values[0])); }},
    {model::GgmlType::kBF16, 1,
     [](auto values, auto& out) {
       Put(out, static_cast<uint16_t>(std::bit_cast<uint32_t>(values[0]) >> 16));
     }},
    {model::GgmlType::kQ4_0, 32, EncodeQ4_0},
    {model::GgmlType::kQ4_1, 32, EncodeQ4_1},
    {model::GgmlType::kQ5_0, 32, EncodeQ5_0},
    {model::GgmlType::kQ5_1, 32, EncodeQ5_1},
    {model::GgmlType::kQ8_0, 32, EncodeQ8_0},
    {model::GgmlType::kQ2_K, 256, EncodeQ2_K},
    {model::GgmlType::kQ3_K, 256, EncodeQ3_K},
    {model::GgmlType::kQ4_K, 256, [](auto values, auto& out) { EncodeKQuant(4, values, out); }},
    {model::GgmlType::kQ5_K, 256, [](auto values, auto& out) { EncodeKQuant(5, values, out); }},
    {model::GgmlType::kQ6_K, 256, EncodeQ6_K},
    {model::GgmlType::kIQ4_NL, 32, EncodeIq4Nl},
    {model::GgmlType::kIQ4_XS, 256, EncodeIq4Xs},
    {model::GgmlType::kMXFP4, 32, EncodeMxfp4},
    {model::GgmlType::kNVFP4, 64, EncodeNvfp4},
};

}  // namespace

std::vector<std::byte> EncodeTensor(model::GgmlType type, std::span<const float> values) {
  const auto* encoder = std::ranges::find(kEncoders, type, &Encoder::type);
  if (encoder == std::end(kEncoders) || values.size() % encoder->block != 0) {
    std::fprintf(stderr, "EncodeTensor: a type without an encoder, or a part of a block\n");
    std::abort();
  }
  std::vector<std::byte> out;
  for (size_t i = 0; i < values.size(); i += encoder->block) {
    encoder->encode(values.subspan(i, encoder->block), out);
  }
  return out;
}

}  // namespace flotilla::testing
