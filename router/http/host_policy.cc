#include "router/http/host_policy.h"

#include <algorithm>
#include <utility>

#include <boost/asio/ip/address.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "router/http/framing.h"

namespace flotilla::router {
namespace {

bool IsLoopback(std::string_view name) {
  if (absl::EqualsIgnoreCase({name.data(), name.size()}, "localhost")) return true;
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(name), error);
  return !error && address.is_loopback();
}

}  // namespace

HostPolicy::HostPolicy(std::string_view address, std::vector<std::string> allowed)
    : allowed_(std::move(allowed)) {
  for (std::string& name : allowed_) absl::StripAsciiWhitespace(&name);
  any_ = std::find(allowed_.begin(), allowed_.end(), "*") != allowed_.end() ||
         (allowed_.empty() && !IsLoopback(address));
}

bool HostPolicy::Allows(std::string_view host) const {
  if (any_ || host.empty()) return true;
  const std::string_view name = NameOfHost(host);
  if (IsLoopback(name)) return true;
  return std::any_of(allowed_.begin(), allowed_.end(), [name](const std::string& one) {
    return absl::EqualsIgnoreCase(one, {name.data(), name.size()});
  });
}

}  // namespace flotilla::router
