// Times of every op on a GPU, with shapes of a model of 8 billion parameters. They are for
// information: no check stands on them.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/gpu_check/gpu.h"

namespace flotilla::kernels::cuda {

// {"copy, GB/s": the measured rate of copies, "times": [{"op", "shape", "microseconds", "GB/s",
// "of copy"}]}. An op's "GB/s" are the bytes that it reads and writes at least once; they are left
// out where they say nothing. "error", if a call failed.
nlohmann::json MeasureOps(Gpu& gpu);

}  // namespace flotilla::kernels::cuda
