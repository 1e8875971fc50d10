// FleetSecret: what the processes of one fleet know and others do not.
//
// A file of one or two lines, each 32 to 256 printable ASCII characters. Servers take
// any of them, clients send the first: so a new secret is first added as the second line
// everywhere, then made the first, then the old one is taken away, and nobody is refused
// meanwhile. Immutable values: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/auth/secret_digest.h"

namespace flotilla::rpc {

class FleetSecret {
 public:
  static constexpr std::size_t kMinBytes = 32;
  static constexpr std::size_t kMaxBytes = 256;

  // INVALID_ARGUMENT names the line, never what stands there.
  static absl::StatusOr<FleetSecret> Parse(std::string_view text);

  // The secret that a client sends.
  const std::string& first() const { return first_; }
  // Compares with every line, whichever fits.
  bool Accepts(std::string_view secret) const;

 private:
  std::string first_;
  std::vector<SecretDigest> accepted_;
};

}  // namespace flotilla::rpc
