// HostPolicy: which Host headers a server answers. On a loopback address only those that
// name loopback: a page of the web whose name suddenly leads to 127.0.0.1 (DNS rebinding)
// would otherwise use the server as its reader's own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

class HostPolicy {
 public:
  // `address`: what is listened on. `allowed`: further names, without ports, which a proxy
  // passes on; where there are any, only they and those of loopback are answered, on every
  // address. "*" allows all.
  HostPolicy(std::string_view address, std::vector<std::string> allowed);

  // `host`: a Host header's value; its port does not matter. None at all is allowed: a page
  // has a name.
  bool Allows(std::string_view host) const;

 private:
  std::vector<std::string> allowed_;
  bool any_ = false;
};

}  // namespace flotilla
