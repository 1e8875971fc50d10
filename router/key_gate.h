// KeyGate: admits callers of the public API by their keys, for both frontends.
//
// Owned by main; may be called on any thread. Reads the file of keys again when it changes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/auth/watched_file.h"
#include "router/api_keys.h"
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

 private:
  KeyGate(std::unique_ptr<WatchedFile<ApiKeys>> keys, RouterMetrics* metrics)
      : keys_(std::move(keys)), metrics_(metrics) {}

  const std::unique_ptr<WatchedFile<ApiKeys>> keys_;
  RouterMetrics* const metrics_;
};

}  // namespace flotilla::router
