#include "common/auth/random_token.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace flotilla {

absl::StatusOr<std::string> RandomToken() {
  std::array<char, 32> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError(absl::StrCat("getrandom: ", std::strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace flotilla
