#include "common/auth/secret_digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"

namespace flotilla {

SecretDigest SecretDigest::Of(std::string_view secret) {
  SecretDigest digest;
  // This can fail only for want of memory, because no input is refused.
  const int ok = EVP_Digest(secret.data(), secret.size(), digest.bytes_.data(), nullptr,
                            EVP_sha256(), nullptr);
  if (ok != 1) std::abort();
  return digest;
}

std::optional<SecretDigest> SecretDigest::FromHex(std::string_view hex) {
  SecretDigest digest;
  if (hex.size() != 2 * digest.bytes_.size()) return std::nullopt;
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
  }
  const std::string bytes = absl::HexStringToBytes(absl::string_view(hex.data(), hex.size()));
  std::copy(bytes.begin(), bytes.end(), digest.bytes_.begin());
  return digest;
}

bool operator==(const SecretDigest& a, const SecretDigest& b) {
  return CRYPTO_memcmp(a.bytes_.data(), b.bytes_.data(), a.bytes_.size()) == 0;
}

std::string_view BearerToken(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  const std::string_view scheme = authorization.substr(0, kScheme.size());
  if (!absl::EqualsIgnoreCase(absl::string_view(scheme.data(), scheme.size()),
                              absl::string_view(kScheme.data(), kScheme.size()))) {
    return {};
  }
  std::string_view token = authorization.substr(kScheme.size());
  while (token.starts_with(' ')) token.remove_prefix(1);
  while (token.ends_with(' ')) token.remove_suffix(1);
  return token;
}

}  // namespace flotilla
