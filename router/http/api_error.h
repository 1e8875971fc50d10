// Writes a status (router/errors.h) as an error of the OpenAI API.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/http/exchange.h"

namespace flotilla::router {

// The HTTP status for the code of `status`.
int HttpStatusOf(const absl::Status& status);

// {"error":{"message","type","param","code"}}; always valid UTF-8.
std::string ErrorJson(const absl::Status& status);

// The headers retry-after, retry-after-ms, x-should-retry and www-authenticate, as far as they
// apply.
HttpHeaders ErrorHeaders(const absl::Status& status);

// Answers with the error.
void SendError(const absl::Status& status, HttpReply& reply);

}  // namespace flotilla::router
