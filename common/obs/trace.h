// How requests and traces are named in logs and headers, the same in all roles.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/types/ids.h"
#include "common/types/request.h"

namespace flotilla {

// The internal id, as `request=` of every line about a request: "5f3a90c2d1b4e607-12".
std::string RequestName(const RequestId& id);

// A `traceparent` of W3C Trace Context (level 2, section 3.2):
// "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". None: the header is not valid. The
// trace then starts here, as the recommendation requires.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// Lower-case hexadecimal, 32 and 16 digits.
std::string TraceIdText(const TraceContext& trace);
std::string SpanIdText(std::uint64_t span);

}  // namespace flotilla
