#include "router/http/cors_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace flotilla::router {
namespace {

// An hour. Browsers ask again after two at most.
constexpr char kPreflightSeconds[] = "3600";

bool IsOrigin(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  if (scheme == 0 || scheme == std::string_view::npos) return false;
  const std::string_view host = origin.substr(scheme + 3);
  return !host.empty() && host.find('/') == std::string_view::npos &&
         std::ranges::all_of(origin, [](unsigned char c) {
           return c > ' ' && c < 0x7f && c != ',' && c != '*' && !(c >= 'A' && c <= 'Z');
         });
}

}  // namespace

absl::StatusOr<CorsPolicy> CorsPolicy::Create(std::vector<std::string> origins) {
  CorsPolicy policy;
  for (const std::string& origin : origins) {
    if (origin == "*") {
      policy.any_ = true;
    } else if (!IsOrigin(origin)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", origin,
                       "' is no origin in small letters, such as https://chat.example or "
                       "http://localhost:3000 without a path, and not *"));
    }
  }
  policy.origins_ = std::move(origins);
  return policy;
}

bool CorsPolicy::Allows(std::string_view origin) const {
  if (origin.empty()) return false;
  return any_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end();
}

CorsPolicy::Headers CorsPolicy::AnswerHeaders(std::string_view origin) const {
  if (origins_.empty()) return {};
  // A cache must not give one origin's answer to another.
  Headers headers = {{"vary", "origin"}};
  if (!Allows(origin)) return headers;
  headers.emplace_back("access-control-allow-origin", any_ ? "*" : std::string(origin));
  headers.emplace_back("access-control-expose-headers", "*");
  return headers;
}

CorsPolicy::Headers CorsPolicy::PreflightHeaders() {
  // * does not mean Authorization, which must be named.
  return {{"access-control-allow-methods", "GET, HEAD, POST, DELETE"},
          {"access-control-allow-headers", "authorization, *"},
          {"access-control-max-age", kPreflightSeconds}};
}

}  // namespace flotilla::router
