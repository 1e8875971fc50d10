// KeyGate: admits callers of the public API by their keys, for both frontends.
//
// Owned by main. Any thread; looks at the file of keys now and then.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/auth/watched_file.h"
#include "router/api_keys.h"
#include "router/probe.h"

namespace flotilla {

class KeyGate {
 public:
  // `probe` may be null, else outlives it. Errors: those of WatchedFile::Open.
  static absl::StatusOr<std::unique_ptr<KeyGate>> Open(WatchedFileOptions file, RouterProbe* probe);

  // Who calls with this Authorization header or metadata ("Bearer KEY"; empty: none was
  // sent); the owner's name is the tenant. UNAUTHENTICATED with kInvalidApiKey, and the probe
  // learns of it.
  absl::StatusOr<KeyOwner> Admit(std::string_view authorization);

 private:
  KeyGate(std::unique_ptr<WatchedFile<ApiKeys>> keys, RouterProbe* probe)
      : keys_(std::move(keys)), probe_(probe) {}

  const std::unique_ptr<WatchedFile<ApiKeys>> keys_;
  RouterProbe* const probe_;
};

}  // namespace flotilla
