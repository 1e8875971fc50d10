// ApiKeys: who may use a router, by the keys that they show.
//
// A file of them has one key a line, as NAME KEY or NAME sha256:HEX, the digest of one
// that the file does not contain; empty lines and lines that begin with # say nothing. A
// name may have several keys, so that one can be replaced without a pause. The name is
// the tenant of what its keys ask for. Options follow the key:
//   max-priority=N   the highest priority that its requests may have, -100 to 100
// Immutable values: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/auth/secret_digest.h"

namespace flotilla {

// What a key grants to the client that shows it.
struct KeyOwner {
  std::string name;
  std::int64_t max_priority = 100;  // of requests; without the option any that there is
};

class ApiKeys {
 public:
  static constexpr std::size_t kMaxKeys = 1024;
  static constexpr std::size_t kMaxNameBytes = 64;
  static constexpr std::size_t kMinKeyBytes = 16;
  static constexpr std::size_t kMaxKeyBytes = 256;

  // INVALID_ARGUMENT names the line and never what stands there. Names are letters,
  // digits, '.', '_' and '-'; keys are printable ASCII. No key at all is an error, so is
  // a key that stands there twice and an option that is unknown, wrong or given twice.
  static absl::StatusOr<ApiKeys> Parse(std::string_view text);

  // Whose key it is; none: nobody's. Compares with every key, whichever fits.
  std::optional<KeyOwner> Find(std::string_view key) const;

  std::size_t size() const { return keys_.size(); }

 private:
  struct Key {
    KeyOwner owner;
    SecretDigest digest;
  };
  std::vector<Key> keys_;
};

}  // namespace flotilla
