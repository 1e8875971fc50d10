// ServerTarget: the server that a load test is for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace flotilla::loadtest {

struct ServerTarget {
  bool tls = false;
  std::string host;  // a name or an address, IPv6 without brackets
  std::string port;
  std::string path;  // before /v1, without a slash at the end; often ""

  // The value of the Host header.
  std::string HostHeader() const;
};

// Reads "http://HOST:PORT/PATH" or "https://...", or HOST:PORT alone. A path may end with /v1.
// INVALID_ARGUMENT: the text is no such address, and the message says what one looks like.
absl::StatusOr<ServerTarget> ParseServerTarget(absl::string_view url);

}  // namespace flotilla::loadtest
