// Errors that reach clients: an absl::Status that also names the request field
// at fault, a machine-readable code and, for refusals, when to try again. Both
// frontends translate the same status: HTTP into an OpenAI-shaped error body, gRPC
// into status details.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"

namespace flotilla::router {

// Codes that clients can test for. The names are OpenAI's where OpenAI has one.
inline constexpr std::string_view kContextLengthExceeded = "context_length_exceeded";
inline constexpr std::string_view kModelNotFound = "model_not_found";
inline constexpr std::string_view kUnknownField = "unknown_field";
inline constexpr std::string_view kUnsupportedField = "unsupported_field";
inline constexpr std::string_view kInvalidValue = "invalid_value";
inline constexpr std::string_view kInvalidApiKey = "invalid_api_key";
inline constexpr std::string_view kRateLimitExceeded = "rate_limit_exceeded";
inline constexpr std::string_view kQuotaExceeded = "quota_exceeded";
inline constexpr std::string_view kFilesDisabled = "files_disabled";
inline constexpr std::string_view kFilesReadOnly = "files_read_only";

// `status` with the name of the field at fault and a code. Either may be empty.
absl::Status WithField(absl::Status status, std::string_view field, std::string_view code);

// INVALID_ARGUMENT with field and code kInvalidValue.
absl::Status InvalidField(std::string_view field, std::string_view message);

// `status`, RESOURCE_EXHAUSTED or UNAVAILABLE, with a hint when to try again.
absl::Status WithRetryAfter(absl::Status status, std::int64_t retry_after_ms);

// UNAVAILABLE with a hint when to try again, for the one request whose allocation failed.
absl::Status NoMemory();

// Returns what `work` returns, a Status or StatusOr; NoMemory() if an allocation in it fails.
template <class Work>
std::invoke_result_t<Work&> OrNoMemory(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

// The field, code and hint that the status carries; empty or 0 if it carries none.
std::string ErrorField(const absl::Status& status);
std::string ErrorCode(const absl::Status& status);
std::int64_t RetryAfterMs(const absl::Status& status);

}  // namespace flotilla::router
