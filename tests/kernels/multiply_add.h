// Measures the machine's own rate of 16-bit multiply-adds. A product of integers can reach at most
// this rate, if it does nothing but multiply and add in registers.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace flotilla::kernels {

// Returns the operations of one round of MultiplyAdds. A multiply-add is two operations.
int64_t MultiplyAddOperations(Isa isa);

// Runs the path's sequence `rounds` times, at least once: vpmaddwd and vpaddd (AVX2) or
// vpdpwssd (AVX-512), on as many independent sums as the latencies ask for. `isa` is
// supported here and not the reference.
void MultiplyAdds(Isa isa, int64_t rounds);

}  // namespace flotilla::kernels
