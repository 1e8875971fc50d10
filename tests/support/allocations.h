// Counts what a piece of code asks of the allocator, for tests of hostile input:
// the allocations that a small input causes must be small.
//
//   AllocationCount count;
//   Parse(bytes);
//   EXPECT_LT(count.bytes(), 100 * bytes.size());
//
// Linking allocations.cc replaces operator new in the whole test binary.
#pragma once

#include <cstddef>

namespace flotilla::testing {

class AllocationCount {
 public:
  AllocationCount();
  // Bytes that all threads have asked for since this object was made; what was
  // freed in between counts too.
  std::size_t bytes() const;

 private:
  const std::size_t start_;
};

// While it lives, allocations of `least` bytes and more fail, in all threads. One at a time.
class FailLargeAllocations {
 public:
  explicit FailLargeAllocations(std::size_t least);
  ~FailLargeAllocations();
};

}  // namespace flotilla::testing
