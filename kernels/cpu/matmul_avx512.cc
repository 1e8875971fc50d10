#include "kernels/cpu/matmul-inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace flotilla::kernels {

template void MatMulI16<Avx512>(const MatMulI16Args&, int, int);
template void MatMulI8<Avx512>(const MatMulI8Args&, int, int);
template void MatMulF32<Avx512>(const MatMulF32Args&, int, int);

}  // namespace flotilla::kernels
