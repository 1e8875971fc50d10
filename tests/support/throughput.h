// ThroughputMeter: requests of equal lengths, timed at the Engine seam, and the proof that
// the model computed every row that a figure claims.
//
//   ThroughputMeter meter(file, {});
//   absl::StatusOr<Throughput> one = meter.Measure({.batch = 8});
//
// A cache that has a prompt makes its prefill look free: no prompt of a meter begins like
// another one, its engine has no prefix cache, and rows are counted by the worker. One
// thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "tests/support/engine_runner.h"

namespace flotilla::testing {

// What one measurement computes, as llama-batched-bench counts it: of each request
// `prompt_tokens` rows of prefill, then `decode_tokens` rows of decode.
struct ThroughputLoad {
  int batch = 1;
  std::uint32_t prompt_tokens = 128;
  std::uint32_t decode_tokens = 128;
};

struct Throughput {
  double prefill_seconds = 0;  // of a run of its own, to the last first token
  double seconds = 0;          // of prefill and decode, to the last token
  std::uint64_t prefill_rows = 0;
  std::uint64_t decode_rows = 0;

  // Tokens per second. On a model so small that noise is longer than decode, the decode's
  // mean nothing and can be negative.
  double prefill() const { return static_cast<double>(prefill_rows) / prefill_seconds; }
  double decode() const { return static_cast<double>(decode_rows) / (seconds - prefill_seconds); }
  double both() const { return static_cast<double>(prefill_rows + decode_rows) / seconds; }
};

// Runs the requests at once, alone on `runner`; seconds from the first submission to the
// last end. FAILED_PRECONDITION: the model computed other than one row for each prompt
// token, or fewer than one for each output token but the first. What a request ended
// with, if not OK.
absl::StatusOr<double> TimeRun(EngineRunner& runner, const std::vector<TokenizedRequest>& requests);

class ThroughputMeter {
 public:
  // Starts an engine on `file`, without a prefix cache; a failure fails the test.
  ThroughputMeter(std::shared_ptr<const GgufFile> file, EngineRunner::Options options);

  // Prefill alone, then prefill and decode, with other prompts. Errors as TimeRun.
  absl::StatusOr<Throughput> Measure(const ThroughputLoad& load);

  // `load.batch` greedy requests with `outputs` tokens each and no stop tokens. Random
  // tokens after the request's number, which no other request of this meter has.
  std::vector<TokenizedRequest> Requests(const ThroughputLoad& load, std::uint32_t outputs);

 private:
  EngineRunner runner_;
  std::uint32_t vocab_size_ = 0;
  std::uint64_t requests_ = 0;  // made so far
};

}  // namespace flotilla::testing
