#include "common/rt/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

namespace flotilla {
namespace {

constexpr rlim_t kMostDescriptors = rlim_t{1} << 20;

}  // namespace

std::uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return DescriptorLimit();
  const rlim_t wanted = std::min(limit.rlim_max, kMostDescriptors);
  if (wanted > limit.rlim_cur) {
    limit.rlim_cur = wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);  // if this fails, the limit stays
  }
  return DescriptorLimit();
}

std::uint64_t DescriptorLimit() {
  rlimit limit{};
  constexpr rlim_t kLeast = 256;  // the least limit of any system
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : kLeast;
}

SpareDescriptors::SpareDescriptors(std::size_t count) : count_(count) {
  {
    absl::MutexLock lock(&mutex_);
    held_.reserve(count);
  }
  Refill();
}

bool SpareDescriptors::Release() {
  absl::MutexLock lock(&mutex_);
  if (held_.empty()) return false;
  held_.pop_back();
  return true;
}

void SpareDescriptors::Refill() {
  absl::MutexLock lock(&mutex_);
  while (held_.size() < count_) {
    UniqueFd one(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one.ok()) return;
    held_.push_back(std::move(one));
  }
}

}  // namespace flotilla
