// Makes certificates and keys in PEM as a test needs them.
#pragma once

#include <string>

namespace flotilla::testing {

struct PemPair {
  std::string certificate;
  std::string key;
};

// A self-signed authority.
PemPair MakeAuthority(const std::string& name);
// A member's certificate, signed by `authority`, valid from `from_s` to `to_s` seconds after now.
PemPair Issue(const PemPair& authority, const std::string& name, long from_s = -60,
              long to_s = 3600);

}  // namespace flotilla::testing
