// The numeric recipes (docs/architecture.md).
#pragma once

#include <cstdint>
#include <string_view>

namespace flotilla::worker {

// How matrix products round.
enum class Recipe : std::uint8_t {
  kAccurate,  // 16-bit activations, one scale per row and split; exact weights
  kFp32,      // fp32 activations: the reference
  // As kAccurate, but W8A8 matrices are multiplied by activations of 8 bits as their checkpoint
  // says: with its static scale, or with one per row and split. Splits are those of the model and
  // not of the ranks; most products have one. A scale of a whole row, where ranks share its sums,
  // would need another exchange before each product, and loses more.
  kFast,
};

inline std::string_view RecipeName(Recipe recipe) {
  switch (recipe) {
    case Recipe::kFp32:
      return "fp32";
    case Recipe::kFast:
      return "fast";
    case Recipe::kAccurate:
      break;
  }
  return "accurate";
}

// The version of the numeric recipes. A change of any answer's bits needs another version:
// tests/data/answer_hashes.txt has the version beside hashes of bits, and answer_guard_test fails
// if one of them changes alone. 2: RMSNorm sums in 64 lanes. 3: splits of models with
// one KV head, and of narrow FFNs. 4: codes of 5 bits, and parts of a matrix that have several
// formats, are not fp32 any more.
inline constexpr int kRecipeVersion = 4;

// Whether a report has shown that GPUs of a compute capability (Device::capability) give the bits
// of CPUs: docs/reports/gpu-h100.md has, of 9.0. Without one, a group that computes on such GPUs
// has a numerics id of its own, so that no request moves between it and CPUs. Who changes what a
// kernel computes makes this false until there is another report.
constexpr bool CudaIsProven(int capability) { return capability == 90; }

// The same of groups whose GPUs exchange activations with NCCL. No report has shown one.
inline constexpr bool kNcclIsProven = false;

}  // namespace flotilla::worker
