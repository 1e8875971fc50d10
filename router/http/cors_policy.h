// CorsPolicy: which web pages may read the server's answers (Fetch's CORS protocol). By default
// none may: browsers then keep the answers from pages of other origins. Pages never send cookies
// here, so what they know is what they have: a key, or a server that needs none.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::router {

class CorsPolicy {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  CorsPolicy() = default;
  // Each origin is SCHEME://HOST or SCHEME://HOST:PORT, as browsers write it, or "*" for all.
  // INVALID_ARGUMENT quotes one that is not.
  static absl::StatusOr<CorsPolicy> Create(std::vector<std::string> origins);

  // `origin` is an Origin header's value; empty: there is none, or several.
  bool Allows(std::string_view origin) const;

  // What every answer to a request of the origin has, an error too.
  Headers AnswerHeaders(std::string_view origin) const;
  // What the answer to a browser's preflight (OPTIONS) has besides, if the origin is allowed.
  static Headers PreflightHeaders();

 private:
  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace flotilla::router
