// Checks PEM files before they are used.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace flotilla {

// INVALID_ARGUMENT: there is no certificate, or it is not valid at `now`; or there is no
// private key, or it has a passphrase or belongs to another certificate.
absl::Status CheckKeyPair(std::string_view certificate, std::string_view key, absl::Time now);

// What OpenSSL asks for a passphrase. It has none, so that a key with one is an error, because
// nobody could be asked for it.
int NoPassphrase(char*, int, int, void*);

// When the first certificate expires; none: there is none.
std::optional<absl::Time> ExpiryOf(std::string_view certificate);

// INVALID_ARGUMENT: there is no certificate in it.
absl::Status CheckAuthorities(std::string_view certificates);

}  // namespace flotilla
