// ThroughputMeter: times requests of equal lengths at the Engine seam, and proves that the
// model computed every row that a figure claims.
//
//   ThroughputMeter meter(file, {});
//   absl::StatusOr<Throughput> one = meter.Measure({.batch = 8});
//
// If a prefix cache has a prompt, its prefill looks free. So no two prompts of a meter begin
// alike, the engine has no prefix cache, and the worker counts the rows. One thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "tests/support/engine_runner.h"

namespace flotilla::testing {

// What one measurement computes, as llama-batched-bench counts it: each request has
// `prompt_tokens` rows of prefill, then `decode_tokens` rows of decode.
struct ThroughputLoad {
  int batch = 1;
  std::uint32_t prompt_tokens = 128;
  std::uint32_t decode_tokens = 128;
};

struct Throughput {
  double prefill_seconds = 0;  // of a separate run, until the last request's first token
  double seconds = 0;          // of prefill and decode, until the last token
  std::uint64_t prefill_rows = 0;
  std::uint64_t decode_rows = 0;

  // Tokens per second. If the model is so small that noise is longer than decode, the rate of
  // decode means nothing and can be negative.
  double prefill() const { return static_cast<double>(prefill_rows) / prefill_seconds; }
  double decode() const { return static_cast<double>(decode_rows) / (seconds - prefill_seconds); }
  double both() const { return static_cast<double>(prefill_rows + decode_rows) / seconds; }
};

// Runs the requests at once, alone on `runner`, and returns the seconds from the first
// submission to the last end. FAILED_PRECONDITION: the model did not compute exactly one
// row for each prompt token, or computed fewer than one for each output token but the
// first. Other errors are those that a request ended with.
absl::StatusOr<double> TimeRun(EngineRunner& runner, const std::vector<TokenizedRequest>& requests);

class ThroughputMeter {
 public:
  // Starts an engine on `file`, without a prefix cache. If the start fails, the test fails.
  ThroughputMeter(std::shared_ptr<const model::Checkpoint> file, EngineRunner::Options options);

  // Runs prefill alone, then prefill and decode with other prompts. Errors as TimeRun.
  absl::StatusOr<Throughput> Measure(const ThroughputLoad& load);

  // Makes `load.batch` greedy requests with `outputs` tokens each and no stop tokens. A
  // prompt begins with a number that no other request of this meter has; random tokens
  // follow.
  std::vector<TokenizedRequest> Requests(const ThroughputLoad& load, std::uint32_t outputs);

 private:
  EngineRunner runner_;
  std::uint32_t vocab_size_ = 0;
  std::uint64_t requests_ = 0;  // made so far
};

}  // namespace flotilla::testing
