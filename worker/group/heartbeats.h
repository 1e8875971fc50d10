// Heartbeats: a page of memory that the agent shares with its ranks. Each rank writes
// its slot, and the agent reads all slots.
//
// The page is anonymous memory. A write to a page of a file can block while that page is
// written to disk, and a heartbeat must not block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/rt/load_progress.h"

namespace flotilla::worker {

// The present activity of a rank.
enum class RankPhase : std::uint32_t { kStarting, kLoading, kWaiting, kRunning };

// The slot of one rank, on cache lines of its own. All fields are zero before the rank has
// connected.
struct alignas(128) HeartbeatSlot {
  std::atomic<std::int64_t> time_ns;  // CLOCK_MONOTONIC, every kHeartbeatPeriodMs
  std::atomic<RankPhase> phase;
  std::atomic<std::uint64_t> epoch;         // the current one
  std::atomic<std::uint64_t> started_step;  // of the epoch: the last that began
  std::atomic<std::uint64_t> done_step;     // of the epoch: the last whose answer was sent
  std::atomic<std::int64_t> cpu_ns;         // used by the process, system time included
  std::atomic<std::int64_t> resident_bytes;
  // Why the process is ending, as far as the process can know: the signal that it got, or
  // 1 + its exit code.
  std::atomic<std::int32_t> signal;
  std::atomic<std::int32_t> exit_plus_one;
  LoadProgress load;  // in kLoading

  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
};

inline constexpr int kHeartbeatPeriodMs = 100;

class HeartbeatPage {
 public:
  // Makes a new page of `ranks` slots. UNAVAILABLE: the system has no memory for it.
  static absl::StatusOr<HeartbeatPage> Create(int ranks);
  // Opens the page that another process of this user made, by its path().
  // INVALID_ARGUMENT: there is no such page, or it does not have so many slots.
  static absl::StatusOr<HeartbeatPage> Open(const std::string& path, int ranks);

  HeartbeatPage(HeartbeatPage&& other) noexcept;
  HeartbeatPage& operator=(HeartbeatPage&&) = delete;
  ~HeartbeatPage();

  HeartbeatSlot& slot(int rank) const { return slots_[rank]; }
  // The path by which other processes open the page, while this process lives and holds it.
  const std::string& path() const { return path_; }

 private:
  HeartbeatPage(int fd, HeartbeatSlot* slots, int ranks, std::string path)
      : fd_(fd), slots_(slots), ranks_(ranks), path_(std::move(path)) {}
  static absl::StatusOr<HeartbeatPage> Map(int fd, int ranks, std::string path);

  int fd_;
  HeartbeatSlot* slots_;
  int ranks_;
  std::string path_;
};

}  // namespace flotilla::worker
