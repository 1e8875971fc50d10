#include "loadtest/transport.h"

#include <cstddef>

#include "absl/strings/ascii.h"

namespace flotilla::loadtest {
namespace {
constexpr std::size_t kMaxCodeLetters = 48;
}  // namespace

std::string PlainCode(const std::string& code) {
  std::string plain;
  for (const char c : code.substr(0, kMaxCodeLetters)) {
    const bool fine = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' ||
                      c == '.' || c == ' ';
    plain += fine ? c : '?';
  }
  return plain;
}

}  // namespace flotilla::loadtest
