// KnownAddresses: the addresses of a fleet's schedulers, from a fixed list and from names
// that are resolved again and again. A name that cannot be resolved keeps the addresses
// that it had, so a fleet continues to serve while its discovery is gone. Pure; one owner.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::router {

// A name whose addresses are schedulers, all on one port: a Kubernetes headless service.
struct DnsName {
  std::string host;
  std::string port;

  bool operator==(const DnsName&) const = default;
};

class KnownAddresses {
 public:
  // The most addresses of one name. If there are more, the first in order are used.
  static constexpr std::size_t kMaxPerName = 256;

  // `targets` are host:port, or dns:///host:port. INVALID_ARGUMENT names a target that is
  // neither. A target that occurs twice counts once.
  static absl::StatusOr<KnownAddresses> Parse(const std::vector<std::string>& targets);

  // The names to resolve.
  const std::vector<DnsName>& names() const { return names_; }
  // names()[index] has these addresses, each host:port. An empty answer is ignored, because a
  // service has no address for a moment while all its pods are replaced.
  void OnResolved(std::size_t index, std::vector<std::string> addresses);
  // All addresses, sorted, each once.
  std::vector<std::string> All() const;

 private:
  std::vector<std::string> fixed_;
  std::vector<DnsName> names_;
  std::vector<std::vector<std::string>> resolved_;  // of names_
};

}  // namespace flotilla::router
