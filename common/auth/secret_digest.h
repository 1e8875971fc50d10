// SecretDigest: a secret that is known by its SHA-256 only.
//
// Secrets are compared by their digests, in a time that depends neither on their content
// nor on their length. The secrets have much entropy (they are generated keys), so their
// digests need no salt. A digest must still not be logged. Digests are values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace flotilla {

class SecretDigest {
 public:
  static SecretDigest Of(std::string_view secret);
  // 64 hexadecimal digits, of either case; none: it is something else.
  static std::optional<SecretDigest> FromHex(std::string_view hex);

  // Compares in constant time.
  friend bool operator==(const SecretDigest& a, const SecretDigest& b);

 private:
  std::array<std::uint8_t, 32> bytes_{};
};

// The credentials of "Bearer CREDENTIALS", the scheme in any case; empty: it is
// something else.
std::string_view BearerToken(std::string_view authorization);

}  // namespace flotilla
