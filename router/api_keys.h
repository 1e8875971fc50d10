// ApiKeys: the clients that may use a router, and the keys that identify them.
//
// A file of keys has one key a line, as NAME KEY CLASS or as NAME sha256:HEX CLASS, where HEX is
// the digest of a key that the file does not contain. CLASS is user, which may be left out, or
// admin. Empty lines and lines that begin with # are skipped. A name may have several keys, so that
// one can be replaced without a pause. The name is the tenant of all requests that are made with
// its keys. Options follow:
//   max-priority=N       the highest priority that its requests may have, -100 to 100
//   tokens-per-minute=N  the tokens of prompts and answers that the name may use
//   max-concurrent=N     the requests of the name that may run at once
// The last two belong to the name: one of its keys may give them, or several the same.
// The values are immutable and may be used on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
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
  bool is_admin = false;            // may use the routes of admins, besides those of users
};

// What the requests of a name may take together; 0: no limit.
struct OwnerLimits {
  std::int64_t tokens_per_minute = 0;
  std::int64_t max_concurrent = 0;
};

class ApiKeys {
 public:
  static constexpr std::size_t kMaxKeys = 1024;
  static constexpr std::size_t kMaxNameBytes = 64;
  static constexpr std::size_t kMinKeyBytes = 16;
  static constexpr std::size_t kMaxKeyBytes = 256;

  // INVALID_ARGUMENT names the line and never quotes it. Names are letters, digits, '.',
  // '_' and '-'; keys are printable ASCII. A file without keys is an error, and so is a key
  // that occurs twice, an option that is unknown, wrong or given twice, or a limit of a name that
  // has another one in a line before.
  static absl::StatusOr<ApiKeys> Parse(std::string_view text);

  // The owner of the key; none if it is nobody's. Compares with every key, also
  // after one fits.
  std::optional<KeyOwner> Find(std::string_view key) const;

  // The limits of a name; none if it has none, or no key.
  OwnerLimits LimitsOf(const std::string& name) const {
    const auto found = limits_.find(name);
    return found == limits_.end() ? OwnerLimits() : found->second;
  }

  std::size_t size() const { return keys_.size(); }

 private:
  struct Key {
    KeyOwner owner;
    SecretDigest digest;
  };
  std::vector<Key> keys_;
  std::map<std::string, OwnerLimits> limits_;
};

}  // namespace flotilla::router
