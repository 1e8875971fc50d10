// One workload per op with the shapes of SmolLM2-135M (hidden 576, FFN 1,536, 9
// query and 3 KV heads of 64, vocabulary 49,152): shared by the tests of speed and
// the benchmark.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/ggml_type.h"

namespace flotilla::kernels {

// Times mean something only in plain release builds.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kTimed = false;
#else
inline constexpr bool kTimed = true;
#endif

struct Workload {
  std::string name;
  double operations;  // per call
  double bytes;       // read per call
  // Allocates the inputs and returns the call; the call keeps them alive.
  std::function<std::function<void(const Ops&)>()> make;
};

std::vector<Workload> Workloads();

// out[rows, columns] = x[rows, k] W with integer activations.
Workload IntegerProduct(model::GgmlType format, int rows, int columns, int k);

}  // namespace flotilla::kernels
