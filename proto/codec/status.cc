#include "proto/codec/status.h"

#include <utility>

#include "google/protobuf/util/time_util.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace flotilla::codec {
namespace {

constexpr char kDomain[] = "flotilla";
// A longer hint of a peer counts as no hint, so that no sum or product overflows.
constexpr std::int64_t kMaxRetrySeconds = 86'400;

// Every code from CANCELLED to UNAUTHENTICATED has the same number in absl,
// gRPC and google.rpc.
grpc::StatusCode GrpcCode(const absl::Status& status) {
  const int code = static_cast<int>(status.code());
  return code >= grpc::StatusCode::CANCELLED && code <= grpc::StatusCode::UNAUTHENTICATED
             ? static_cast<grpc::StatusCode>(code)
             : grpc::StatusCode::UNKNOWN;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, const ErrorDetails& details) {
  if (status.ok()) return grpc::Status::OK;
  const grpc::StatusCode code = GrpcCode(status);
  std::string message(status.message());
  if (details == ErrorDetails()) return grpc::Status(code, std::move(message));

  google::rpc::Status rich;
  rich.set_code(code);
  rich.set_message(message);
  if (!details.reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(details.reason);
    info.set_domain(kDomain);
    rich.add_details()->PackFrom(info);
  }
  if (!details.field.empty()) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(details.field);
    violation->set_description(message);
    rich.add_details()->PackFrom(bad_request);
  }
  if (details.retry_after_ms > 0) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() =
        google::protobuf::util::TimeUtil::MillisecondsToDuration(details.retry_after_ms);
    rich.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, std::move(message), rich.SerializeAsString());
}

ErrorDetails DetailsOf(const grpc::Status& status) {
  ErrorDetails details;
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return details;
  for (const auto& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.Is<google::rpc::ErrorInfo>() && any.UnpackTo(&info)) {
      details.reason = info.reason();
    } else if (any.Is<google::rpc::BadRequest>() && any.UnpackTo(&bad_request) &&
               bad_request.field_violations_size() > 0) {
      details.field = bad_request.field_violations(0).field();
    } else if (any.Is<google::rpc::RetryInfo>() && any.UnpackTo(&retry) &&
               retry.retry_delay().seconds() >= 0 &&
               retry.retry_delay().seconds() <= kMaxRetrySeconds) {
      details.retry_after_ms =
          google::protobuf::util::TimeUtil::DurationToMilliseconds(retry.retry_delay());
    }
  }
  return details;
}

}  // namespace flotilla::codec
