// The numerics id: groups with equal ids give equal bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kv_layout.h"
#include "model/checkpoint.h"
#include "worker/compute/kv_shape.h"
#include "worker/compute/recipe.h"

namespace flotilla::worker {

// All that the bits of a result depend on. Neither the instruction path nor the build matters:
// every one gives the bits that belong to the recipe's version.
struct Numerics {
  std::uint64_t model_hash = 0;  // of the file's metadata and tensors
  Recipe recipe = Recipe::kAccurate;
  int recipe_version = kRecipeVersion;
  KvFormats kv_format = kernels::KvFormat::kBf16;
  std::string constraint_engine;   // ConstraintEngineVersion()
  std::uint32_t tokens = 0;        // ModelSpec::tokens
  std::uint32_t vocab = 0;         // ModelSpec::vocab
  std::uint32_t rope_context = 0;  // ModelSpec::rope_context
  // ModelSpec::kv_scales; they count where K or V of the layer is FP8.
  std::vector<model::KvScales> kv_scales;
  bool cuda_is_unproven = false;  // it computes on GPUs that no report is about
  bool nccl_is_unproven = false;  // it exchanges sums over NCCL, likewise
};

// A hash of all of it.
std::uint64_t NumericsId(const Numerics& numerics);

}  // namespace flotilla::worker
