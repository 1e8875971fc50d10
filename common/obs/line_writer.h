// LineWriter: lines on their way to a file descriptor, and the one thread that writes them.
//
// The reader of the other end may stop for ever: a pipe then takes 64 KiB, and every write
// after that blocks. Here only the writer's own thread blocks. Other threads put lines into a
// bounded queue. A line that finds no room is dropped and counted, and a line reports the loss
// when the reader goes on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace flotilla {

struct LineWriterOptions {
  int fd = 2;                                  // open for as long as the writer lives
  std::size_t max_bytes = 1 << 20;             // of lines that wait; more than a pipe takes at once
  std::size_t max_lines = 8192;                // a line costs memory besides its bytes
  absl::Duration patience = absl::Seconds(1);  // for what is left at the end
  // Returns the line that reports `dropped` missing lines at its place. It has a line end.
  std::function<std::string(std::uint64_t dropped)> missing;
};

class LineWriter {
 public:
  explicit LineWriter(LineWriterOptions options);
  // Writes what is left, unless the reader takes it for longer than `patience`.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Queues `line`, which has its line end. Lines are written in the order of these calls. Never
  // waits for the reader. False: there is no room, and the line is dropped. An eighth of the
  // room is for lines that are `important`. Any thread.
  bool Put(std::string line, bool important) ABSL_LOCKS_EXCLUDED(mu_);

  // Lines that were dropped so far. Any thread.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Push(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues the line that reports the lines dropped since the last such report.
  void ReportDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until all is written, or abandoned.
  void Write(const std::string& text);

  const LineWriterOptions options_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> abandoned_{false};  // the writer no longer waits for the reader

  absl::Mutex mu_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mu_);
  std::size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;         // of lines_
  std::uint64_t unreported_ ABSL_GUARDED_BY(mu_) = 0;  // dropped, and not yet reported
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the thread has nothing more to do
  std::thread thread_;
};

}  // namespace flotilla
