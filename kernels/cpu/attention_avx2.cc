#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace flotilla::kernels {

template void PagedAttention<Avx2>(const AttentionArgs&, int, int);

}  // namespace flotilla::kernels
