// Backends of GPUs without a GPU: CudaBackend over a SimulatedDevice.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/compute/backend.h"

namespace flotilla::testing {

enum class GpuMode : std::uint8_t {
  kQueues,  // the work of queues, with loops in place of kernels (tests/kernels/cuda/host_ops.h)
  kFibers,  // with the kernels themselves
};

struct SimulatedGpus {
  std::string name;  // e.g. "GpuQueues3": letters and digits
  GpuMode mode;
  std::uint64_t seed;
};

// What tests run on: queues in two orders, and with FLOTILLA_LONG=1 in five, and fibers, which are
// slow.
std::vector<SimulatedGpus> AllSimulatedGpus();

// The pieces of work until the GPUs of MakeSimulatedGpus that are made from now on fail (1: the
// first); 0: they do not.
using GpuFailure = std::shared_ptr<std::atomic<std::int64_t>>;

// Returns a maker whose backends each have an order of queues, and of threads, of their own.
worker::BackendMaker MakeSimulatedGpus(std::uint64_t seed, GpuMode mode = GpuMode::kQueues,
                                       GpuFailure failure = nullptr);
inline worker::BackendMaker MakeSimulatedGpus(const SimulatedGpus& gpus) {
  return MakeSimulatedGpus(gpus.seed, gpus.mode);
}

}  // namespace flotilla::testing
