// PageReleaser: gives the pages of a model file back while it is loaded, so that only a part of the
// file is in memory beside what it becomes.
#pragma once

#include <atomic>
#include <cstdint>

#include "model/checkpoint.h"

namespace flotilla::model {

class PageReleaser {
 public:
  // After so many bytes all pages are given back.
  static constexpr std::uint64_t kStep = 64 << 20;

  // `file` outlives it.
  explicit PageReleaser(const Checkpoint& file) : file_(file) {}

  // Says that `bytes` more of the file have been read. Any thread may call it.
  void Read(std::uint64_t bytes) {
    const std::uint64_t before = read_.fetch_add(bytes, std::memory_order_relaxed);
    if (before / kStep != (before + bytes) / kStep) file_.ReleasePages();
  }

 private:
  const Checkpoint& file_;
  std::atomic<std::uint64_t> read_ = 0;
};

}  // namespace flotilla::model
