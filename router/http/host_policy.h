// HostPolicy: decides which Host headers a server answers. On a loopback address it answers
// only those that name loopback. Otherwise a web page whose name suddenly resolves to 127.0.0.1
// (DNS rebinding) could use the server as if it were its reader.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla::router {

class HostPolicy {
 public:
  // `address` is the address that the server listens on. `allowed` are further names, without
  // ports, which a proxy passes on. If there are any, only these names and those of loopback are
  // answered, on every address. "*" allows all.
  HostPolicy(std::string_view address, std::vector<std::string> allowed);

  // `host` is a Host header's value; its port does not matter. An empty one is allowed, because
  // a request from a web page always has a name.
  bool Allows(std::string_view host) const;

 private:
  std::vector<std::string> allowed_;
  bool any_ = false;
};

}  // namespace flotilla::router
