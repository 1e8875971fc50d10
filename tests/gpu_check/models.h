// Whole models on a GPU beside the CPU: the same seeded weights and tokens, and the same bits of
// logits and of what rows of logits are reduced to, however a sequence is computed: in one chunk or
// in many, in a batch, again in other blocks, swapped to the tiers, and on several ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu_check/target.h"

namespace flotilla::kernels::cuda {

struct ModelCheck {
  std::string name;
  std::function<CheckResult()> run;  // once
};

// The checks, one for each model. The weights of large models are made on other threads meanwhile.
// `few`: only a few tiny models; `only`: only the check of this name, unless it is empty.
std::vector<ModelCheck> ModelChecks(ModelTarget target, uint64_t seed, bool few,
                                    std::string_view only);

// What a step takes, on one GPU.
struct StepTime {
  std::string model, shape;
  double microseconds = 0;
  int64_t bytes = 0;  // that it reads at least: weights, K and V; 0: arithmetic takes longer
};

// Times of steps of the larger models.
absl::StatusOr<std::vector<StepTime>> MeasureSteps(ModelTarget target, uint64_t seed);

// The checks of ranks that have a GPU each and exchange over NCCL.
struct NcclChecks {
  int gpus = 0;
  std::string version;             // of NCCL
  std::vector<ModelCheck> checks;  // one for each model and layout that the GPUs are enough for
};

// A simulation has a fake NCCL. FAILED_PRECONDITION, NOT_FOUND: there are fewer than two GPUs, or
// no NCCL; the message says so in one line.
absl::StatusOr<NcclChecks> MakeNcclChecks(ModelTarget target, uint64_t seed, std::string_view only);

}  // namespace flotilla::kernels::cuda
