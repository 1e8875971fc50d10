// LoadRunner: runs a plan against a server, on the calling thread, which also serves all
// connections. The clock is a parameter; nothing else here is random or global.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "loadtest/core/load_plan.h"
#include "loadtest/core/load_recorder.h"
#include "loadtest/core/load_result.h"
#include "loadtest/transport.h"

namespace flotilla::loadtest {

struct LoadProgress {
  double elapsed_s = 0;
  std::uint64_t planned = 0;  // requests
  std::uint64_t sent = 0, ended = 0, failed = 0, in_flight = 0;
  std::uint64_t events = 0;  // with text, of all answers
};

struct LoadOptions {
  ServiceLevel level;
  // Not 0: no conversation begins after this time. Requests under way are waited for.
  std::int64_t duration_ns = 0;
  // Open loops: requests beyond these wait in the client. Their latencies count from when they were
  // due all the same.
  std::uint32_t max_in_flight = 10'000;
  // Called every so often, if set.
  std::int64_t progress_every_ns = 250'000'000;
  std::function<void(const LoadProgress&)> progress;
};

// Sends the requests of `plan` and returns when the last one has ended. On SIGINT or SIGTERM no
// more are sent; a second signal cancels those under way, which count as failed ("cancelled").
// INVALID_ARGUMENT: the plan has no requests. Other errors are those of `transport`.
absl::StatusOr<LoadResult> RunLoad(const LoadPlan& plan, Transport& transport,
                                   const LoadOptions& options, const Clock& clock);

}  // namespace flotilla::loadtest
