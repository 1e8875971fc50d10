// What the readers of traces share: the limits of every trace, lines of JSON, and the order of the
// requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/traces/request_trace.h"

namespace flotilla {

// This is about 32 years. In nanoseconds it is 1e18, which fits 63 bits.
inline constexpr double kMaxTraceSeconds = 1e9;
inline constexpr std::int64_t kMaxTraceTokens = 1 << 24;

// Calls `read` with each line that is not empty, as JSON, and with its number, counted from 1,
// until an error. INVALID_ARGUMENT names the line: no JSON, more than `max_bytes`, which also bound
// how deep it can nest, or the trace has kMaxTraceRequests already.
absl::Status ForEachTraceLine(
    absl::string_view text, std::size_t max_bytes, const RequestTrace& trace,
    absl::FunctionRef<absl::Status(const nlohmann::json& object, std::uint64_t line)> read);

// Requests that arrive at one time keep their order. INVALID_ARGUMENT: there are none.
absl::Status SortByArrival(RequestTrace& trace);

}  // namespace flotilla
