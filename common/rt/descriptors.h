// File descriptors of the process: how many it may have, and a few kept in reserve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/unique_fd.h"

namespace flotilla {

// Raises the soft limit to the hard one, but not above 2^20. (Processes that are started later
// inherit the limit, and some programs close every descriptor that a process may have, one by one,
// in each child.) It must be called before anything relies on the limit. Returns the new limit.
std::uint64_t RaiseDescriptorLimit();

// The soft limit as it is.
std::uint64_t DescriptorLimit();

// Descriptors that are held open in reserve. When the process has no other descriptor left,
// a server closes one of them and can then still accept or refuse a waiting client. Any
// thread.
class SpareDescriptors {
 public:
  // Opens `count` descriptors, or fewer if the process has not as many left.
  explicit SpareDescriptors(std::size_t count);

  // Closes one; false: there is none.
  bool Release() ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens closed ones again, as far as possible. Called when descriptors may be free again.
  void Refill() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::size_t count_;
  absl::Mutex mutex_;
  std::vector<UniqueFd> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace flotilla
