// FetchPages: HTTP GET from several servers at once, on the calling thread. For tools.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace flotilla::cli {

// Returns the body of `path` at each address (host:port, IPv6 hosts in brackets), in the
// same order. INVALID_ARGUMENT: the text is not an address. UNAVAILABLE: there was no
// connection, no answer within `timeout`, a status other than 200, or more than 8 MiB.
std::vector<absl::StatusOr<std::string>> FetchPages(absl::Span<const std::string> addresses,
                                                    const std::string& path,
                                                    absl::Duration timeout);

}  // namespace flotilla::cli
