// SecretDigest: a secret that is known by its SHA-256 only.
//
// Secrets are compared by their digests, in a time that depends neither on what they
// hold nor on their length. Digests are of secrets with much entropy (keys that were
// generated), so they need no salt; they are still not for logs. Values: any thread.
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
