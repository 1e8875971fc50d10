// KnownAddresses: where the schedulers of a fleet are, from a fixed list and from names
// that are resolved again and again. A name that cannot be resolved keeps the addresses
// that it had: a fleet serves on while its discovery is gone. Pure; one owner.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla {

// A name whose addresses are schedulers, all on one port: a Kubernetes headless service.
struct DnsName {
  std::string host;
  std::string port;

  bool operator==(const DnsName&) const = default;
};

class KnownAddresses {
 public:
  // The most addresses of one name. Of more the first in order are used.
  static constexpr std::size_t kMaxPerName = 256;

  // `targets` are host:port, or dns:///host:port. INVALID_ARGUMENT names the one that is
  // neither. One that comes twice counts once.
  static absl::StatusOr<KnownAddresses> Parse(const std::vector<std::string>& targets);

  // The names to resolve.
  const std::vector<DnsName>& names() const { return names_; }
  // The addresses, host:port, of names()[index] are these. An empty answer is none: a
  // service whose every pod is replaced has no address for a moment.
  void OnResolved(std::size_t index, std::vector<std::string> addresses);
  // All, sorted, each once.
  std::vector<std::string> All() const;

 private:
  std::vector<std::string> fixed_;
  std::vector<DnsName> names_;
  std::vector<std::vector<std::string>> resolved_;  // of names_
};

}  // namespace flotilla
