// Counts the bytes that a piece of code allocates, for tests of hostile input:
// a small input must cause only small allocations.
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
  // The bytes that all threads have allocated since this object was made, including
  // memory that was freed in between.
  std::size_t bytes() const;

 private:
  const std::size_t start_;
};

// The most bytes that were allocated at once since the object was made, above those at its
// beginning, with what malloc rounds up to; of all threads. Only one may live at a time.
class PeakMemory {
 public:
  PeakMemory();
  std::size_t bytes() const;

 private:
  const std::size_t start_;
};

// While the object lives, allocations of `least` bytes and more fail, in all threads. Only one
// may live at a time.
class FailLargeAllocations {
 public:
  explicit FailLargeAllocations(std::size_t least);
  ~FailLargeAllocations();
};

}  // namespace flotilla::testing
