#include "kernels/cpu/matmul-inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace flotilla::kernels {

template void MatMulI16<Avx2>(const MatMulI16Args&, int, int);
template void MatMulI8<Avx2>(const MatMulI8Args&, int, int);
template void MatMulF32<Avx2>(const MatMulF32Args&, int, int);

}  // namespace flotilla::kernels
