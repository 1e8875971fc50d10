#include "tests/support/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_allocated{0};
std::atomic<std::size_t> g_live{0}, g_peak{0};
std::atomic<std::size_t> g_least_to_fail{SIZE_MAX};

void* Allocate(std::size_t size) {
  void* p = std::malloc(size);
  const std::size_t bytes = malloc_usable_size(p);
  const std::size_t live = g_live += bytes;
  for (std::size_t peak = g_peak; peak < live && !g_peak.compare_exchange_weak(peak, live);) {
  }
  return p;
}
void Free(void* p) {
  g_live -= malloc_usable_size(p);
  std::free(p);
}

}  // namespace

// Not inlined, so that the compiler sees matching pairs of new and delete.
__attribute__((noinline)) void* operator new(std::size_t size) {
  g_allocated += size;
  if (size < g_least_to_fail) {
    if (void* p = Allocate(size)) return p;
  }
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  g_allocated += size;
  return size < g_least_to_fail ? Allocate(size) : nullptr;
}
__attribute__((noinline)) void operator delete(void* p) noexcept { Free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { Free(p); }

namespace flotilla::testing {

AllocationCount::AllocationCount() : start_(g_allocated) {}

PeakMemory::PeakMemory() : start_(g_live) { g_peak = g_live.load(); }
std::size_t PeakMemory::bytes() const { return g_peak - start_; }

FailLargeAllocations::FailLargeAllocations(std::size_t least) { g_least_to_fail = least; }
FailLargeAllocations::~FailLargeAllocations() { g_least_to_fail = SIZE_MAX; }

std::size_t AllocationCount::bytes() const { return g_allocated - start_; }

}  // namespace flotilla::testing
