#include "tests/fuzz/input_limits.h"

#include <sanitizer/allocator_interface.h>

#include <cstdio>
#include <cstdlib>

namespace flotilla::testing {
namespace {

// Of this thread, since an InputLimits began: libFuzzer has a thread of its own.
thread_local std::ptrdiff_t g_bytes = 0, g_most_bytes = 0;  // most: 0 without an InputLimits

void Count(const volatile void*, std::size_t bytes) {
  if (g_most_bytes == 0) return;
  g_bytes += static_cast<std::ptrdiff_t>(bytes);
  if (g_bytes <= g_most_bytes) return;
  std::fprintf(stderr, "the input takes %td bytes of memory, not at most %td\n", g_bytes,
               g_most_bytes);
  g_most_bytes = 0;  // the report itself needs memory
  std::abort();
}
void Discount(const volatile void* memory) {
  if (g_most_bytes == 0 || memory == nullptr) return;
  const std::size_t bytes = __sanitizer_get_allocated_size(const_cast<const void*>(memory));
  g_bytes -= static_cast<std::ptrdiff_t>(bytes);
}

}  // namespace

InputLimits::InputLimits(std::size_t input_bytes) : start_(std::clock()) {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(Count, Discount);
  if (installed == 0) std::abort();
  g_bytes = 0;
  g_most_bytes = static_cast<std::ptrdiff_t>(4 * input_bytes + (64 << 20));
}

InputLimits::~InputLimits() {
  g_most_bytes = 0;
  const double seconds = static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC;
  if (seconds <= 1) return;
  std::fprintf(stderr, "the input takes %.3f s of CPU time, not at most 1 s\n", seconds);
  std::abort();
}

}  // namespace flotilla::testing
