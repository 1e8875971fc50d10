// A random secret that cannot be guessed.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace flotilla {

// 32 random bytes in hex. UNAVAILABLE: the system gives none.
absl::StatusOr<std::string> RandomToken();

}  // namespace flotilla
