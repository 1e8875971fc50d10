#include "router/remote/discovery.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/endpoint.h"

namespace flotilla::router {
namespace {

absl::StatusOr<std::vector<std::string>> Resolve(const DnsName& name) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(name.host, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    char host[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) !=
        0) {
      continue;
    }
    addresses.push_back(rpc::JoinAddress(host, std::atoi(name.port.c_str())));
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Discovery>> Discovery::Start(DiscoveryOptions options) {
  absl::StatusOr<KnownAddresses> known = KnownAddresses::Parse(options.targets);
  if (!known.ok()) return known.status();
  if (!options.resolve) options.resolve = Resolve;
  return std::unique_ptr<Discovery>(new Discovery(std::move(options), *std::move(known)));
}

Discovery::Discovery(DiscoveryOptions options, KnownAddresses known)
    : options_(std::move(options)), known_(std::move(known)), failing_(known_.names().size()) {
  Publish();
  if (!known_.names().empty()) thread_ = std::thread([this] { Loop(); });
}

Discovery::~Discovery() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Discovery::Loop() {
  while (true) {
    Look();
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopped_), options_.interval)) return;
  }
}

void Discovery::Look() {
  for (std::size_t i = 0; i < known_.names().size(); ++i) {
    const DnsName& name = known_.names()[i];
    absl::StatusOr<std::vector<std::string>> addresses = options_.resolve(name);
    const bool failed = !addresses.ok();
    if (failed && !failing_[i] && options_.on_failure) {
      options_.on_failure(name, addresses.status());
    }
    failing_[i] = failed;
    if (!failed) known_.OnResolved(i, *std::move(addresses));
  }
  Publish();
}

void Discovery::Publish() {
  std::vector<std::string> all = known_.All();
  if (all == published_) return;
  published_ = std::move(all);
  options_.on_addresses(published_);
}

}  // namespace flotilla::router
