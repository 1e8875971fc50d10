// File descriptors of the process: how many it may have, and a few kept in reserve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/unique_fd.h"

namespace flotilla {

// Raises the soft limit to the hard one, or to 2^20 if that is less: what a process may
// have, some programs close one by one in each child. Processes started later inherit it.
// To be called before anything counts on the limit. Returns what the limit is then.
std::uint64_t RaiseDescriptorLimit();

// The soft limit as it is.
std::uint64_t DescriptorLimit();

// Descriptors that are open for nothing. Whoever accepts connections closes one when the
// process has no other left, and so can still take, or refuse, who waits. Any thread.
class SpareDescriptors {
 public:
  // Fewer, when the process has not so many left.
  explicit SpareDescriptors(std::size_t count);

  // Closes one; false: there is none.
  bool Release() ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens again what was closed, as far as that is possible: a descriptor became free.
  void Refill() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::size_t count_;
  absl::Mutex mutex_;
  std::vector<UniqueFd> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace flotilla
