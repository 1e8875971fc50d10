#include "tests/kernels/multiply_add.h"

namespace flotilla::kernels {
namespace {

constexpr int kSums = 12, kRepeats = 2;  // in the instructions below

// Assembly that uses only registers, so the compiler cannot add loads. All registers begin at
// zero, so their earlier content does not matter.
#define FLOTILLA_ROUNDS(instructions)                                                         \
  asm volatile(                                                                               \
      "vzeroall\n"                                                                            \
      ".p2align 5\n"                                                                          \
      "1:\n"                                                                                  \
      ".rept 2\n"                                                                             \
      ".irp sum, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n" instructions                         \
      ".endr\n"                                                                               \
      ".endr\n"                                                                               \
      "dec %0\n"                                                                              \
      "jnz 1b\n"                                                                              \
      "vzeroupper\n"                                                                          \
      : "+r"(rounds)                                                                          \
      :                                                                                       \
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

}  // namespace

int64_t MultiplyAddOperations(Isa isa) {
  const int64_t int16_per_register = isa == Isa::kAvx512 ? 32 : 16;
  return 2 * int16_per_register * kSums * kRepeats;
}

void MultiplyAdds(Isa isa, int64_t rounds) {
  if (isa == Isa::kAvx512) {
    FLOTILLA_ROUNDS("vpdpwssd %%zmm14, %%zmm15, %%zmm\\sum\n");
  } else {
    FLOTILLA_ROUNDS(
        "vpmaddwd %%ymm14, %%ymm15, %%ymm12\n"
        "vpaddd %%ymm12, %%ymm\\sum, %%ymm\\sum\n");
  }
}

}  // namespace flotilla::kernels
