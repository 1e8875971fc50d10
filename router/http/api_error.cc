#include "router/http/api_error.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "router/errors.h"
#include "router/http/json_text.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

std::string_view TypeOf(const absl::Status& status) {
  switch (HttpStatusOf(status)) {
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    case 500:
    case 504:
      return "server_error";
    default:
      return "invalid_request_error";
  }
}

std::string_view DefaultCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return "slow_down";
    case absl::StatusCode::kUnavailable:
      return "server_is_overloaded";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    default:
      return "";
  }
}

void AppendStringOrNull(std::string_view text, std::string& out) {
  if (text.empty()) {
    out += "null";
  } else {
    AppendJsonString(RepairUtf8(text), out);
  }
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorJson(const absl::Status& status) {
  std::string code = ErrorCode(status);
  if (code.empty()) code = DefaultCodeOf(status);
  std::string out = R"({"error":{"message":)";
  AppendJsonString(RepairUtf8(std::string(status.message())), out);
  out += R"(,"type":)";
  AppendJsonString(TypeOf(status), out);
  out += R"(,"param":)";
  AppendStringOrNull(ErrorField(status), out);
  out += R"(,"code":)";
  AppendStringOrNull(code, out);
  out += "}}";
  return out;
}

HttpHeaders ErrorHeaders(const absl::Status& status) {
  const int http = HttpStatusOf(status);
  if (http == 429 || http == 503) {
    const std::int64_t ms = std::max<std::int64_t>(RetryAfterMs(status), 1);
    return {{"retry-after", std::to_string((ms + 999) / 1000)},
            {"retry-after-ms", std::to_string(ms)}};
  }
  if (http == 401) return {{"www-authenticate", "Bearer"}};
  // Clients retry 5xx by themselves. A request that ran out of time, or failed by a fault of
  // ours, would only cost the same again.
  if (http >= 500) return {{"x-should-retry", "false"}};
  return {};
}

void SendError(const absl::Status& status, HttpReply& reply) {
  reply.Send(HttpStatusOf(status), "application/json", ErrorJson(status), ErrorHeaders(status));
}

}  // namespace flotilla::router
