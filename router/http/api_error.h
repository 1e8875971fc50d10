// Errors as the OpenAI API writes them, from a status (router/errors.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/http/exchange.h"

namespace flotilla {

// The HTTP status that stands for a status's code.
int HttpStatusOf(const absl::Status& status);

// {"error":{"message","type","param","code"}}; always valid UTF-8.
std::string ErrorJson(const absl::Status& status);

// retry-after, retry-after-ms, x-should-retry and www-authenticate, where they say
// something.
HttpHeaders ErrorHeaders(const absl::Status& status);

// Answers with the error.
void SendError(const absl::Status& status, HttpReply& reply);

}  // namespace flotilla
