#include "router/core/known_addresses.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace flotilla::router {
namespace {

constexpr absl::string_view kDns = "dns:///";

void SortUnique(std::vector<std::string>& all) {
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

// Splits "host:port". An IPv6 host is in brackets, which are not part of the result.
absl::StatusOr<DnsName> Split(absl::string_view target, absl::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--scheduler: '", target, "' is neither HOST:PORT nor dns:///NAME:PORT"));
  }
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return DnsName{std::string(host), std::string(address.substr(colon + 1))};
}

}  // namespace

absl::StatusOr<KnownAddresses> KnownAddresses::Parse(const std::vector<std::string>& targets) {
  KnownAddresses known;
  for (const std::string& target : targets) {
    absl::string_view address = target;
    const bool dns = absl::ConsumePrefix(&address, kDns);
    absl::StatusOr<DnsName> name = Split(target, address);
    if (!name.ok()) return name.status();
    if (!dns) {
      known.fixed_.push_back(target);
    } else if (std::find(known.names_.begin(), known.names_.end(), *name) == known.names_.end()) {
      known.names_.push_back(*std::move(name));
    }
  }
  if (targets.empty()) return absl::InvalidArgumentError("--scheduler is missing");
  known.resolved_.resize(known.names_.size());
  return known;
}

void KnownAddresses::OnResolved(std::size_t index, std::vector<std::string> addresses) {
  if (addresses.empty()) return;
  SortUnique(addresses);
  if (addresses.size() > kMaxPerName) addresses.resize(kMaxPerName);
  resolved_[index] = std::move(addresses);
}

std::vector<std::string> KnownAddresses::All() const {
  std::vector<std::string> all = fixed_;
  for (const auto& addresses : resolved_) all.insert(all.end(), addresses.begin(), addresses.end());
  SortUnique(all);
  return all;
}

}  // namespace flotilla::router
