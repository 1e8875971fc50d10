#include "tests/support/allocations.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_allocated{0};
std::atomic<std::size_t> g_least_to_fail{SIZE_MAX};

}  // namespace

// Not inlined, so that the compiler sees matching pairs of new and delete.
__attribute__((noinline)) void* operator new(std::size_t size) {
  g_allocated += size;
  if (size < g_least_to_fail) {
    if (void* p = std::malloc(size)) return p;
  }
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  g_allocated += size;
  return size < g_least_to_fail ? std::malloc(size) : nullptr;
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace flotilla::testing {

AllocationCount::AllocationCount() : start_(g_allocated) {}

FailLargeAllocations::FailLargeAllocations(std::size_t least) { g_least_to_fail = least; }
FailLargeAllocations::~FailLargeAllocations() { g_least_to_fail = SIZE_MAX; }

std::size_t AllocationCount::bytes() const { return g_allocated - start_; }

}  // namespace flotilla::testing
