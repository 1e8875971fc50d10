// FleetSecret: the secret that the processes of one fleet know and others do not.
//
// It is a file of one or two lines, each 32 to 256 printable ASCII characters. Servers accept
// any of them, and clients send the first. To change the secret without refusals, add the new
// one as the second line everywhere, then make it the first, then remove the old one.
// The values are immutable and may be used on any thread.
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

  // INVALID_ARGUMENT names the line and never quotes it.
  static absl::StatusOr<FleetSecret> Parse(std::string_view text);

  // The secret that a client sends.
  const std::string& first() const { return first_; }
  // Compares with every line, also after one fits.
  bool Accepts(std::string_view secret) const;

 private:
  std::string first_;
  std::vector<SecretDigest> accepted_;
};

}  // namespace flotilla::rpc
