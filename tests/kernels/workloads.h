// One workload per op with the shapes of SmolLM2-135M (hidden 576, FFN 1,536, 9
// query and 3 KV heads of 64, vocabulary 49,152): shared by the speed test and
// the benchmark.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace flotilla::kernels {

struct Workload {
  std::string name;
  double operations;  // per call
  double bytes;       // read per call
  // Allocates the inputs and returns the call; the call keeps them alive.
  std::function<std::function<void(const Ops&)>()> make;
};

std::vector<Workload> Workloads();

}  // namespace flotilla::kernels
