// KeyGate: admits callers of the public API by their keys, for both frontends.
//
// Owned by main; may be called on any thread. Reads the file of keys again when it changes.
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

  // The owner of the key in this Authorization header or metadata ("Bearer KEY"; empty: none
  // was sent). The owner's name is the tenant. If no key fits, the result is UNAUTHENTICATED
  // with kInvalidApiKey, and the probe receives the refusal.
  absl::StatusOr<KeyOwner> Admit(std::string_view authorization);

 private:
  KeyGate(std::unique_ptr<WatchedFile<ApiKeys>> keys, RouterProbe* probe)
      : keys_(std::move(keys)), probe_(probe) {}

  const std::unique_ptr<WatchedFile<ApiKeys>> keys_;
  RouterProbe* const probe_;
};

}  // namespace flotilla
