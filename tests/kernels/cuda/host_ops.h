// The ops for GPUs as loops over the ops of CPUs, on memory of the host: the same bits as the
// kernels, much sooner than fibers give them. Tests of what is above the ops use them.
#pragma once

#include "kernels/cuda/ops.h"

namespace flotilla::kernels::cuda {

// Streams mean nothing to them: they compute at once.
const Ops& HostOps();

}  // namespace flotilla::kernels::cuda
