#include "router/errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace flotilla::router {
namespace {

constexpr char kFieldUrl[] = "flotilla/field";
constexpr char kCodeUrl[] = "flotilla/code";
constexpr char kRetryUrl[] = "flotilla/retry_after_ms";

std::string Payload(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status WithField(absl::Status status, std::string_view field, std::string_view code) {
  if (!field.empty()) status.SetPayload(kFieldUrl, absl::Cord(std::string(field)));
  if (!code.empty()) status.SetPayload(kCodeUrl, absl::Cord(std::string(code)));
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view message) {
  return WithField(absl::InvalidArgumentError(std::string(message)), field, kInvalidValue);
}

absl::Status WithRetryAfter(absl::Status status, std::int64_t retry_after_ms) {
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

std::string ErrorField(const absl::Status& status) { return Payload(status, kFieldUrl); }
std::string ErrorCode(const absl::Status& status) { return Payload(status, kCodeUrl); }

std::int64_t RetryAfterMs(const absl::Status& status) {
  std::int64_t ms = 0;
  return absl::SimpleAtoi(Payload(status, kRetryUrl), &ms) ? ms : 0;
}

absl::Status NoMemory() {
  return WithRetryAfter(absl::UnavailableError("the server has no memory for this request now"),
                        1000);
}

}  // namespace flotilla::router
