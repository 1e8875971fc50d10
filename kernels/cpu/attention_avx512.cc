#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace flotilla::kernels {

template void PagedAttention<Avx512>(const AttentionArgs&, int, int);

}  // namespace flotilla::kernels
