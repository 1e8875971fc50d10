// KeyGate: admits callers of the public API by their keys, for both frontends, and counts what the
// owners of keys use.
//
// Owned by main; may be called on any thread. Reads the file of keys again when it changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/auth/watched_file.h"
#include "common/rt/clock.h"
#include "router/api_keys.h"
#include "router/key_limits.h"
#include "router/metrics.h"

namespace flotilla::router {

class KeyGate {
 public:
  // `metrics` may be null, else outlives it. Errors: those of WatchedFile::Open.
  static absl::StatusOr<std::unique_ptr<KeyGate>> Open(WatchedFileOptions file,
                                                       RouterMetrics* metrics);

  // The owner of the key in this Authorization header or metadata ("Bearer KEY"; empty: none
  // was sent). The owner's name is the tenant. If no key fits, the result is UNAUTHENTICATED
  // with kInvalidApiKey, and counts in the metrics.
  absl::StatusOr<KeyOwner> Admit(std::string_view authorization);

  // As KeyLimits, with the limits that the file gives the name now.
  absl::StatusOr<std::shared_ptr<void>> Begin(const std::string& name, std::uint32_t prompts);
  void Use(const std::string& name, std::int64_t tokens);

 private:
  KeyGate(std::unique_ptr<WatchedFile<ApiKeys>> keys, const Clock* clock, RouterMetrics* metrics)
      : clock_(clock), keys_(std::move(keys)), metrics_(metrics) {}

  const Clock* const clock_;
  KeyLimits limits_;
  const std::unique_ptr<WatchedFile<ApiKeys>> keys_;
  RouterMetrics* const metrics_;
};

}  // namespace flotilla::router
