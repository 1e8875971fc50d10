// SHA-256 in hexadecimal, as files of test data state it.
#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <span>
#include <string>

#include "absl/strings/escaping.h"

namespace flotilla::testing {

inline std::string Sha256(std::span<const std::byte> bytes) {
  std::string digest(static_cast<std::size_t>(EVP_MD_size(EVP_sha256())), '\0');
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
             EVP_sha256(), nullptr);
  return absl::BytesToHexString(digest);
}

}  // namespace flotilla::testing
