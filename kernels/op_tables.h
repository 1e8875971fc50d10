// The tables that the registry chooses from, one per instruction path; each is
// defined beside its implementation. Constant-initialised.
#pragma once

#include "kernels/ops.h"

namespace flotilla::kernels {

extern const Ops kReferenceOps;
extern const Ops kAvx2Ops;
extern const Ops kAvx512Ops;

}  // namespace flotilla::kernels
