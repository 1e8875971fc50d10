// What a check runs on: a GPU, or the simulation of one. And what it finds.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/ops.h"
#include "tests/gpu_check/twins.h"
#include "tests/kernels/cuda/op_cases.h"
#include "tests/kernels/cuda/simulated_memory.h"

namespace flotilla::kernels::cuda {

struct Target {
  const Ops* ops = nullptr;
  int (*run_twin)(Twin, const TwinArgs&, Stream) = nullptr;
  DeviceMemory* memory = nullptr;
  SimulatedMemory* simulation = nullptr;  // `memory`, where this is the simulation
};

// What models run on, which is compared with the CPU.
enum class ModelTarget : uint8_t {
  kGpu,     // GPU number 0; over NCCL, one GPU for each rank
  kFibers,  // a simulation with the kernels themselves: a few tiny models
  kQueues,  // a simulation with loops in place of kernels, for tests of the checks
};

// `cases` are those that ran: a check stops at its first difference.
struct CheckResult {
  std::string name;
  int64_t cases = 0;
  bool passed = false;
  std::string difference;
};

}  // namespace flotilla::kernels::cuda
