#include "tests/support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_allocated{0};

}  // namespace

// Not inlined, so that the compiler sees matching pairs of new and delete.
__attribute__((noinline)) void* operator new(std::size_t size) {
  g_allocated += size;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  g_allocated += size;
  return std::malloc(size);
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace flotilla::testing {

AllocationCount::AllocationCount() : start_(g_allocated) {}

std::size_t AllocationCount::bytes() const { return g_allocated - start_; }

}  // namespace flotilla::testing
