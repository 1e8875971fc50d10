// Converts absl::Status to grpc::Status, with error details, and reads these details again.
//
// Details travel as a google.rpc.Status in the trailer grpc-status-details-bin
// (see proto/google/rpc), which every gRPC client library can read. Pure
// functions: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace flotilla::codec {

// What a client can act on besides code and message.
struct ErrorDetails {
  std::string reason;               // machine-readable code, e.g. model_not_found
  std::string field;                // the request field at fault
  std::int64_t retry_after_ms = 0;  // 0: no hint

  bool operator==(const ErrorDetails&) const = default;
};

// OK stays OK, without details. The codes of both libraries are the same
// numbers; a number that gRPC does not know becomes UNKNOWN.
grpc::Status ToGrpcStatus(const absl::Status& status, const ErrorDetails& details);

// The details in a status that a peer sent. Missing or malformed details are empty.
ErrorDetails DetailsOf(const grpc::Status& status);

}  // namespace flotilla::codec
