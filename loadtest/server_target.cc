#include "loadtest/server_target.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace flotilla::loadtest {
namespace {

absl::Status NoAddress() {
  return absl::InvalidArgumentError(
      "the server is an address such as http://127.0.0.1:8080 or https://example.com");
}

}  // namespace

std::string ServerTarget::HostHeader() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? "443" : "80") ? name : absl::StrCat(name, ":", port);
}

absl::StatusOr<ServerTarget> ParseServerTarget(absl::string_view url) {
  for (const char c : url) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return NoAddress();
  }
  ServerTarget target;
  target.tls = absl::ConsumePrefix(&url, "https://");
  if (!target.tls) absl::ConsumePrefix(&url, "http://");
  const std::size_t slash = std::min(url.find('/'), url.size());
  absl::string_view path = url.substr(slash);
  absl::string_view authority = url.substr(0, slash);
  while (absl::ConsumeSuffix(&path, "/")) {
  }
  absl::ConsumeSuffix(&path, "/v1");
  target.path = std::string(path);
  target.port = target.tls ? "443" : "80";
  if (absl::ConsumePrefix(&authority, "[")) {
    const std::size_t end = authority.find(']');
    if (end == absl::string_view::npos) return NoAddress();
    target.host = std::string(authority.substr(0, end));
    authority.remove_prefix(end + 1);
  } else {
    const std::size_t end = std::min(authority.find(':'), authority.size());
    target.host = std::string(authority.substr(0, end));
    authority.remove_prefix(end);
  }
  if (absl::ConsumePrefix(&authority, ":")) {
    std::uint32_t port = 0;
    if (!absl::SimpleAtoi(authority, &port) || port < 1 || port > 65535) return NoAddress();
    target.port = absl::StrCat(port);
    authority = "";
  }
  if (target.host.empty() || !authority.empty() ||
      target.host.find_first_of("/@?#[]") != std::string::npos) {
    return NoAddress();
  }
  return target;
}

}  // namespace flotilla::loadtest
