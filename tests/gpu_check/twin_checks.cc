#include "tests/gpu_check/twin_checks.h"

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/kernels/cuda/simulated_memory.h"
#include "tests/support/random.h"

namespace flotilla::kernels::cuda {
namespace {

using testing::Random;

constexpr int kLanes = 32;

constexpr std::array<std::string_view, kTwins> kNames = {"ShuffleXor",
                                                         "ShuffleDown",
                                                         "MultiplyS8",
                                                         "MultiplyU8",
                                                         "BytePermute",
                                                         "std::fma",
                                                         "a + b",
                                                         "a * b",
                                                         "a / b",
                                                         "std::sqrt",
                                                         "std::nearbyint",
                                                         "int32 to float",
                                                         "float to int32",
                                                         "Exp",
                                                         "Log",
                                                         "Tanh",
                                                         "Erf",
                                                         "FloatToBf16",
                                                         "Bf16ToFloat",
                                                         "FloatToHalf",
                                                         "HalfToFloat",
                                                         "GumbelNoise",
                                                         "NoiseHash",
                                                         "Mix64"};

constexpr bool GivesFloat(Twin twin) {
  return (twin >= Twin::kFma && twin <= Twin::kErf && twin != Twin::kFloatToInt) ||
         twin == Twin::kBf16ToFloat || twin == Twin::kHalfToFloat || twin == Twin::kGumbelNoise;
}

uint32_t AnyBits(Random& random) { return static_cast<uint32_t>(random.Next() >> 32); }

// Bits of a float with any exponent: one in eight is zero or denormal, and one is infinite or NaN.
uint32_t AnyPattern(Random& random) {
  const uint32_t bits = AnyBits(random);
  switch (random.Below(8)) {
    case 0:
      return bits & 0x807FFFFF & ~(AnyBits(random) & AnyBits(random));
    case 1:
      return (bits & 0x80000000) | 0x7F800000 | (random.OneIn(2) ? 0 : bits & 0x7FFFFF);
    default:
      return bits;
  }
}

// Bits of a number as activations and logits are: 2^-12 to 2^7, and rarely an integer or its half.
uint32_t TypicalNumber(Random& random) {
  const uint32_t bits = AnyBits(random);
  if (random.OneIn(16)) return FloatBits(static_cast<float>(static_cast<int8_t>(bits)) * 0.5f);
  return (bits & 0x807FFFFF) | (127 - 12 + random.Below(20)) << 23;
}

// a, b and c of a formula of floats.
void FloatOperands(Random& random, uint32_t* out) {
  const auto nearly = [&random](uint32_t bits) {
    return bits ^ AnyBits(random) >> (17 + random.Below(15));
  };
  switch (random.Below(4)) {
    case 0:
      for (int i = 0; i < 3; ++i) out[i] = AnyPattern(random);
      return;
    case 1:
      for (int i = 0; i < 3; ++i) out[i] = TypicalNumber(random);
      return;
    case 2: {
      // Sums that cancel.
      out[0] = random.OneIn(2) ? AnyPattern(random) : TypicalNumber(random);
      out[1] = nearly(out[0] ^ 0x80000000);
      const float product = BitsFloat(out[0]) * BitsFloat(out[1]);
      out[2] = nearly(FloatBits(product) ^ 0x80000000);
      return;
    }
    default: {
      // Products and quotients around the least numbers and the largest one.
      out[0] = AnyPattern(random);
      const int exponent = static_cast<int>(out[0] >> 23 & 0xFF);
      const int edge = random.OneIn(2) ? static_cast<int>(random.Below(32)) - 28
                                       : 254 - static_cast<int>(random.Below(4));
      const int of_product = 127 + edge - exponent, of_quotient = exponent - edge + 127;
      const int of_other = random.OneIn(2) ? of_product : of_quotient;
      const int fits = of_other < 0 ? 0 : of_other > 254 ? 254 : of_other;
      out[1] = (AnyBits(random) & 0x807FFFFF) | static_cast<uint32_t>(fits) << 23;
      out[2] = AnyBits(random) & 0x83FFFFFF;
      return;
    }
  }
}

// Four bytes, which are often the extremes.
uint32_t FourBytes(Random& random) {
  constexpr uint8_t kExtremes[] = {0x00, 0x01, 0x7F, 0x80, 0x81, 0xFF};
  uint32_t bytes = AnyBits(random);
  if (!random.OneIn(3)) return bytes;
  for (int i = 0; i < 4; ++i) {
    bytes = bytes << 8 | kExtremes[random.Below(sizeof kExtremes)];
  }
  return bytes;
}

// The operands of thread i.
void MakeOperands(Twin twin, int64_t i, Random& random, uint32_t* out) {
  const int count = OperandsOf(twin);
  if (twin == Twin::kMultiplyS8 || twin == Twin::kMultiplyU8) {
    for (int j = 0; j < 6; ++j) out[j] = FourBytes(random);
    // Sums that wrap are one in four.
    const uint32_t kept = random.OneIn(2) ? 0xFFFFFFFF : 0x000FFFFF;
    for (int j = 6; j < count; ++j) out[j] = AnyBits(random) & kept;
    return;
  }
  if (!IsWord(twin) && twin < Twin::kGumbelNoise) {
    FloatOperands(random, out);
    // These have so few operands that all are tried.
    if (twin == Twin::kBf16ToFloat || twin == Twin::kHalfToFloat) out[0] = static_cast<uint32_t>(i);
    return;
  }
  for (int j = 0; j < count; ++j) out[j] = AnyBits(random);
}

// The definition of a word, for the operands of all lanes of a warp.
void DefineShuffle(Twin twin, const uint32_t* in, uint64_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int by = 0; by < kLanes; ++by) {
      int from = twin == Twin::kShuffleXor ? lane ^ by : lane + by;
      if (from >= kLanes) from = lane;
      out[lane * kLanes + by] = in[from];
    }
  }
}

int ByteOf(const uint32_t* words, int i, bool is_signed) {
  const auto byte = static_cast<uint8_t>(words[i / 4] >> i % 4 * 8);
  return is_signed ? static_cast<int8_t>(byte) : byte;
}

// From the fragments of all lanes to matrices, their product, and back ("Matrix Fragments for
// mma.m16n8k32" of the PTX ISA).
void DefineProduct(Twin twin, const uint32_t* in, uint64_t* out) {
  const bool is_signed = twin == Twin::kMultiplyS8;
  int a[16][32], b[32][8];
  uint32_t d[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t* const own = in + lane * OperandsOf(twin);
    const int group = lane / 4, in_group = lane % 4;
    for (int i = 0; i < 16; ++i) {  // bytes of a
      const int row = i < 4 || (i >= 8 && i < 12) ? group : group + 8;
      a[row][in_group * 4 + (i & 3) + (i < 8 ? 0 : 16)] = ByteOf(own, i, is_signed);
    }
    for (int i = 0; i < 8; ++i) {  // bytes of b
      b[in_group * 4 + (i & 3) + (i < 4 ? 0 : 16)][group] = ByteOf(own + 4, i, true);
    }
    for (int i = 0; i < 4; ++i) d[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = own[6 + i];
  }
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      for (int k = 0; k < 32; ++k)
        d[row][column] += static_cast<uint32_t>(a[row][k] * b[k][column]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      out[lane * 4 + i] = d[i < 2 ? lane / 4 : lane / 4 + 8][lane % 4 * 2 + (i & 1)];
    }
  }
}

uint64_t DefinePermute(const uint32_t* in) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(ByteOf(in, i, false));
  uint64_t result = 0;
  for (int i = 0; i < 4; ++i) result |= uint64_t{bytes[in[2] >> 4 * i & 7]} << 8 * i;
  return result;
}

// The formula on the CPU that is number `kTwin` or a later one.
template <int kTwin = static_cast<int>(Twin::kFma)>
void EvaluateAll(Twin twin, const std::vector<uint32_t>& in, std::vector<uint64_t>& out) {
  if constexpr (kTwin < kTwins) {
    if (static_cast<int>(twin) != kTwin) return EvaluateAll<kTwin + 1>(twin, in, out);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = Evaluate<Twin{kTwin}>(in[i * 3], in[i * 3 + 1], in[i * 3 + 2]);
    }
  }
}

std::vector<uint64_t> Expected(Twin twin, const std::vector<uint32_t>& operands, int64_t count) {
  std::vector<uint64_t> results(count * ResultsOf(twin));
  if (!IsWord(twin)) {
    EvaluateAll(twin, operands, results);
    return results;
  }
  for (int64_t i = 0; i < count; i += kLanes) {
    const uint32_t* const in = operands.data() + i * OperandsOf(twin);
    uint64_t* const out = results.data() + i * ResultsOf(twin);
    if (twin == Twin::kShuffleXor || twin == Twin::kShuffleDown) {
      DefineShuffle(twin, in, out);
    } else if (twin == Twin::kBytePermute) {
      for (int lane = 0; lane < kLanes; ++lane) out[lane] = DefinePermute(in + lane * 3);
    } else {
      DefineProduct(twin, in, out);
    }
  }
  return results;
}

bool IsNan(uint64_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

// What the target computes. Empty after an error.
std::vector<uint64_t> Computed(Twin twin, const std::vector<uint32_t>& operands, int64_t count,
                               const Target& target) {
  DeviceMemory& memory = *target.memory;
  std::vector<uint64_t> results(count * ResultsOf(twin));
  const size_t bytes = results.size() * sizeof results[0];
  void* const in = memory.Allocate(operands.size() * sizeof operands[0]);
  void* const out = memory.Allocate(bytes);
  const bool done = in != nullptr && out != nullptr &&
                    memory.Upload(in, operands.data(), operands.size() * sizeof operands[0]) == 0 &&
                    target.run_twin(twin,
                                    {.operands = static_cast<const uint32_t*>(in),
                                     .count = count,
                                     .results = static_cast<uint64_t*>(out)},
                                    memory.stream()) == 0 &&
                    memory.Download(results.data(), out, bytes) == 0;
  if (!done) results.clear();
  memory.FreeAll();
  return results;
}

// The first difference; empty if there is none.
std::string Compare(Twin twin, const std::vector<uint32_t>& operands,
                    const std::vector<uint64_t>& expected, int64_t count, const Target& target) {
  const std::string_view where = target.simulation != nullptr ? "the simulation" : "the GPU";
  const std::vector<uint64_t> computed = Computed(twin, operands, count, target);
  if (computed.empty()) return absl::StrFormat("%s: %s", where, target.memory->Error());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (computed[i] == expected[i]) continue;
    if (GivesFloat(twin) && IsNan(computed[i]) && IsNan(expected[i])) continue;
    const size_t thread = i / ResultsOf(twin);
    std::string text = absl::StrFormat(
        "%s gives %#x in place of %#x as result %d of thread %d, whose operands are", where,
        computed[i], expected[i], i % ResultsOf(twin), thread);
    for (int j = 0; j < OperandsOf(twin); ++j) {
      absl::StrAppendFormat(&text, " %#x", operands[thread * OperandsOf(twin) + j]);
    }
    return text;
  }
  return "";
}

}  // namespace

std::string_view NameOf(Twin twin) { return kNames[static_cast<size_t>(twin)]; }

CheckResult CheckTwin(Twin twin, uint64_t seed, int64_t results, const Target& target) {
  CheckResult result{.name = std::string(NameOf(twin))};
  const int64_t step = int64_t{kTwinThreads} * ResultsOf(twin);
  const int64_t count = (results + step - 1) / step * kTwinThreads;
  Random random(seed * kTwins + static_cast<uint64_t>(twin));
  std::vector<uint32_t> operands(count * OperandsOf(twin));
  for (int64_t i = 0; i < count; ++i) {
    MakeOperands(twin, i, random, operands.data() + i * OperandsOf(twin));
  }
  const std::vector<uint64_t> expected = Expected(twin, operands, count);
  result.cases = static_cast<int64_t>(expected.size());
  result.difference = Compare(twin, operands, expected, count, target);
  if (result.difference.empty() && IsWord(twin) && target.simulation == nullptr) {
    SimulatedMemory memory(seed);
    result.difference =
        Compare(twin, operands, expected, count,
                {.run_twin = &simulated::RunTwin, .memory = &memory, .simulation = &memory});
  }
  result.passed = result.difference.empty();
  return result;
}

}  // namespace flotilla::kernels::cuda
