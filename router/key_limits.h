// KeyLimits: what the owners of keys use, and whether they may begin another request.
//
// Part of the KeyGate. The owner is a name of the file of keys, so that a client that changes its
// key has the same limits. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "router/api_keys.h"
#include "router/core/token_bucket.h"

namespace flotilla::router {

class KeyLimits {
 public:
  // Counts one more running request of `name` until the result is destroyed, also after this
  // object. It is one of `prompts` that the client sent together. RESOURCE_EXHAUSTED with
  // kRateLimitExceeded and a retry hint names the limit that is reached. INVALID_ARGUMENT about
  // prompt: so many prompts may never run at once.
  absl::StatusOr<std::shared_ptr<void>> Begin(const std::string& name, std::uint32_t prompts,
                                              const OwnerLimits& limits, std::int64_t now_ns);
  // Takes the tokens that a request of `name` has used.
  void Use(const std::string& name, std::int64_t tokens, const OwnerLimits& limits,
           std::int64_t now_ns);

 private:
  struct Owner {
    absl::Mutex mu;
    std::int64_t running ABSL_GUARDED_BY(mu) = 0;
    TokenBucket bucket ABSL_GUARDED_BY(mu);
  };
  std::shared_ptr<Owner> OwnerOf(const std::string& name);

  absl::Mutex mu_;
  // Never more than the names that the file has had.
  std::map<std::string, std::shared_ptr<Owner>> owners_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::router
