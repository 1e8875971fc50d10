#include "common/rt/allocator.h"

#include <malloc.h>

namespace flotilla {
namespace {

// Each use of a mapped block costs page faults, a quarter of a millisecond per MiB. Inputs need
// such blocks rarely, and steps keep their memory.
[[maybe_unused]] constexpr int kMapBytes = 1 << 20;

}  // namespace

void ConfigureAllocator() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, kMapBytes);
#endif
}

void ReturnFreeMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace flotilla
