// RequestTrace: a recorded workload, read from CSV or from JSON lines. Columns or keys:
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

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace flotilla {

// The tokens of a block that a trace names.
inline constexpr std::uint32_t kTraceBlockTokens = 512;

struct TracedRequest {
  std::int64_t arrival_ns = 0;  // from the start of the trace
  std::uint32_t prompt_tokens = 1;
  std::uint32_t output_tokens = 1;
  std::uint32_t tenant = 0;  // index into RequestTrace::tenants
  std::int32_t priority = 0;
  std::int64_t deadline_ns = 0;  // after arrival; 0: none
  // Requests of one group begin with the same prefix_tokens tokens; 0: of none.
  std::uint32_t prefix_group = 0;
  std::uint32_t prefix_tokens = 0;
  std::uint32_t sequences = 1;
  std::uint32_t beams = 0;  // 0: no beam search
  // The ids of the first blocks of the prompt, of kTraceBlockTokens tokens each. Prompts that begin
  // with equal ids begin with equal tokens. Only some formats (trace_formats.h) have them.
  std::vector<std::uint64_t> blocks;

  bool operator==(const TracedRequest&) const = default;
};

struct RequestTrace {
  std::vector<TracedRequest> requests;  // ascending arrivals
  std::vector<std::string> tenants;     // names, in the order in which they first appear
};

// Requests of one trace, at most.
inline constexpr std::uint64_t kMaxTraceRequests = 10'000'000;

// JSON lines if the first character is '{', else CSV. INVALID_ARGUMENT names line
// and column of what cannot be used.
absl::StatusOr<RequestTrace> ParseTrace(absl::string_view text);

}  // namespace flotilla
