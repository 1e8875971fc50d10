// Which packed weights GPUs multiply.
#pragma once

#include <optional>

#include "kernels/cuda/ops.h"
#include "kernels/packed_matrix.h"

namespace flotilla::kernels::cuda {

// The kind as the ops here name it. Empty: they do not multiply such weights.
std::optional<WeightKind> WeightKindOf(PackedKind kind);

}  // namespace flotilla::kernels::cuda
