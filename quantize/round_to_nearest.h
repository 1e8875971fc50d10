// Round to nearest (RTN): each weight goes to the code nearest to it.
#pragma once

#include <span>

#include "absl/functional/function_ref.h"
#include "quantize/integer_matrix.h"

namespace flotilla::quantize {

// Calls fn(i) for every i below `count`, in any order and on any threads.
using ParallelItems = absl::FunctionRef<void(int64_t count, absl::FunctionRef<void(int64_t)> fn)>;

// `weights` are [rows, inputs]. The result does not depend on threads.
IntegerMatrix RoundToNearest(std::span<const float> weights, int64_t rows, int64_t inputs,
                             const Grid& grid, int64_t group, ParallelItems parallel);

}  // namespace flotilla::quantize
