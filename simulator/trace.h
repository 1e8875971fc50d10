// Trace files: recorded workloads, as CSV or as JSON lines. Columns or keys:
//
//   arrival_s       seconds from the start (required)
//   prompt_tokens   (required)
//   output_tokens   (required)
//   tenant          a name; default ""
//   priority        higher goes first; default 0
//   deadline_s      seconds after arrival; 0, the default: none
//   prefix_group    requests of one group, 1 or more, begin alike; default 0: none
//   prefix_tokens   the tokens in which they do; default 0
//   n               independent answers to one prompt; default 1
//   beams           of beam search; default 0: none
//
// Requests may come in any order; they are sorted by arrival.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/workload.h"

namespace flotilla::simulator {

// Requests of one trace, at most.
inline constexpr std::uint64_t kMaxTraceRequests = 10'000'000;

// JSON lines if the first character is '{', else CSV. INVALID_ARGUMENT names line
// and column of what cannot be used.
absl::StatusOr<Workload> ParseTrace(absl::string_view text);

}  // namespace flotilla::simulator
