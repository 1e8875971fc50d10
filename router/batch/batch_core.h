// BatchCore: which lines of a batch are still to be answered, which are in flight, and when the
// next may start. Pure: time comes as a value, and the owner reads, sends and writes.
//
// The owner first adds the id of every line of the input, then what an earlier run has answered.
// Then it starts the lines that Next returns, and tells what comes of each:
//
//   while (auto line = core.Next(now_ns)) Start(*line);
//   ...
//   core.OnAnswered(line, summary);           // or OnRefused: Next returns the line again, later
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "router/batch/batch_line.h"

namespace flotilla::router {

// The most lines of a batch. Each takes some 130 bytes of memory, besides its custom_id.
inline constexpr std::size_t kMaxBatchLines = 10'000'000;

// Where a line is in the input: its first byte, and its length without the line end.
struct LinePlace {
  std::uint64_t begin = 0;
  std::uint32_t bytes = 0;
};

struct BatchCounts {
  std::uint64_t lines = 0;
  std::uint64_t answered = 0;
  std::map<int, std::uint64_t> by_status;  // answers by status of HTTP; 0: a line has failed
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;

  bool operator==(const BatchCounts&) const = default;
};

class BatchCore {
 public:
  static constexpr int kMaxUnavailable = 10;
  // How often a line is refused for load although the engine has answered lines that began after
  // it, or has no other line of the batch.
  static constexpr std::uint16_t kMaxPassedBy = 1000;

  // At most `concurrency` lines are in flight, which is at least 1. See OnRefused for the other.
  explicit BatchCore(std::uint32_t concurrency, int max_unavailable = kMaxUnavailable)
      : concurrency_(concurrency), max_unavailable_(max_unavailable) {}
  // Counts for lines that start from now on.
  void set_concurrency(std::uint32_t concurrency) { concurrency_ = concurrency; }

  // Adds the next line of the input, which is at `place`. ALREADY_EXISTS names the line that has
  // the same id; RESOURCE_EXHAUSTED: there are kMaxBatchLines already.
  absl::Status Add(const std::string& custom_id, LinePlace place = {});

  // An earlier run has answered. NOT_FOUND: no line has this id. ALREADY_EXISTS: the line has been
  // answered already.
  absl::Status Recover(const AnswerSummary& answer);

  // The index, from 0 on, of a line that starts now. Lines that were refused and the next that are
  // not answered take turns, so that refusals of one line hold up no others. None: all lines have
  // been started, enough are in flight, the batch waits after a refusal, or it stops.
  std::optional<std::size_t> Next(std::int64_t now_ns);

  // The line in flight is answered, and never starts again.
  void OnAnswered(std::size_t line, const AnswerSummary& answer);

  // The engine has no room for the line (429), or does not serve now (503). True: the line starts
  // again, and no line starts before `retry_after_ms` have passed. False: it was refused with 503
  // max_unavailable times, or kMaxPassedBy times as said there; then the refusal is its answer. If
  // max_unavailable is 0, it always starts again: the owner ends the batch at some time.
  bool OnRefused(std::size_t line, int status, std::int64_t retry_after_ms, std::int64_t now_ns);

  // No line starts any more.
  void Stop() { stopping_ = true; }

  // When the wait after a refusal ends. None: nothing waits.
  std::optional<std::int64_t> resume_ns(std::int64_t now_ns) const;
  std::uint32_t in_flight() const { return in_flight_; }
  bool complete() const { return counts_.answered == counts_.lines; }
  // Nothing is in flight, and nothing will start.
  bool over() const { return in_flight_ == 0 && (stopping_ || complete()); }
  LinePlace place(std::size_t line) const { return lines_[line].place; }
  const std::string& custom_id(std::size_t line) const { return *lines_[line].custom_id; }
  bool answered(std::size_t line) const { return lines_[line].state == State::kAnswered; }
  const BatchCounts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t { kWaiting, kInFlight, kAnswered };
  struct Line {
    const std::string* custom_id;  // a key of index_
    State state = State::kWaiting;
    std::uint8_t unavailable = 0;  // how often it was refused with 503, if that is limited
    std::uint16_t passed_by = 0;   // see kMaxPassedBy; the same
    std::uint32_t began = 0;       // the number of its first start; 0: it has not started
    LinePlace place;
  };

  void Count(const AnswerSummary& answer);

  std::uint32_t concurrency_;
  const int max_unavailable_;
  std::vector<Line> lines_;
  absl::node_hash_map<std::string, std::size_t> index_;  // by custom_id
  std::size_t next_ = 0;             // lines before it were started, or answered before
  std::deque<std::size_t> again_;    // lines that were refused
  bool new_is_next_ = false;         // a refused line has had its turn
  std::uint32_t began_ = 0;          // lines that have started
  std::uint32_t last_answered_ = 0;  // the latest `began` of a line that is answered
  std::int64_t resume_ns_ = 0;
  std::uint32_t in_flight_ = 0;
  bool stopping_ = false;
  BatchCounts counts_;
};

}  // namespace flotilla::router
