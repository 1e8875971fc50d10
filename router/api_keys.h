// ApiKeys: the clients that may use a router, and the keys that identify them.
//
// A file of keys has one key a line, as NAME KEY or as NAME sha256:HEX, where HEX is the
// digest of a key that the file does not contain. Empty lines and lines that begin with #
// are skipped. A name may have several keys, so that one can be replaced without a pause.
// The name is the tenant of all requests that are made with its keys. Options follow the key:
//   max-priority=N   the highest priority that its requests may have, -100 to 100
// The values are immutable and may be used on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/auth/secret_digest.h"

namespace flotilla::router {

// The name and the rights that a key gives to its client.
struct KeyOwner {
  std::string name;
  std::int64_t max_priority = 100;  // of its requests; without the option 100, the highest
};

class ApiKeys {
 public:
  static constexpr std::size_t kMaxKeys = 1024;
  static constexpr std::size_t kMaxNameBytes = 64;
  static constexpr std::size_t kMinKeyBytes = 16;
  static constexpr std::size_t kMaxKeyBytes = 256;

  // INVALID_ARGUMENT names the line and never quotes it. Names are letters, digits, '.',
  // '_' and '-'; keys are printable ASCII. A file without keys is an error, and so is a key
  // that occurs twice, or an option that is unknown, wrong or given twice.
  static absl::StatusOr<ApiKeys> Parse(std::string_view text);

  // The owner of the key; none if it is nobody's. Compares with every key, also
  // after one fits.
  std::optional<KeyOwner> Find(std::string_view key) const;

  std::size_t size() const { return keys_.size(); }

 private:
  struct Key {
    KeyOwner owner;
    SecretDigest digest;
  };
  std::vector<Key> keys_;
};

}  // namespace flotilla::router
