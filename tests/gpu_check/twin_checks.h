// Compares every twin (twins.h) of a target with what it should be. Pure but for the target.
#pragma once

#include <cstdint>
#include <string_view>

#include "tests/gpu_check/target.h"

namespace flotilla::kernels::cuda {

std::string_view NameOf(Twin twin);

// Compares all bits of at least `results` results; any NaN equals any other. A word is compared
// with its definition in plain loops, on the target and in the simulation. A formula is compared
// with the same function on the CPU.
CheckResult CheckTwin(Twin twin, uint64_t seed, int64_t results, const Target& target);

}  // namespace flotilla::kernels::cuda
