#include "router/key_limits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

// Nobody knows when a running request ends.
constexpr std::int64_t kRunningRetryMs = 1000;
constexpr std::int64_t kNsPerMs = 1'000'000;

absl::Status Reached(const std::string& name, const char* limit, std::int64_t value,
                     const char* what, std::int64_t retry_ms) {
  return WithRetryAfter(
      WithField(absl::ResourceExhaustedError(absl::StrCat("the limit ", limit, "=", value, " of '",
                                                          name, "' is reached: ", what)),
                "", kRateLimitExceeded),
      retry_ms);
}

}  // namespace

std::shared_ptr<KeyLimits::Owner> KeyLimits::OwnerOf(const std::string& name) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<Owner>& owner = owners_[name];
  if (owner == nullptr) owner = std::make_shared<Owner>();
  return owner;
}

absl::StatusOr<std::shared_ptr<void>> KeyLimits::Begin(const std::string& name,
                                                       std::uint32_t prompts,
                                                       const OwnerLimits& limits,
                                                       std::int64_t now_ns) {
  if (limits.max_concurrent > 0 && prompts > limits.max_concurrent) {
    return InvalidField(
        "prompt",
        absl::StrCat("prompt: ", prompts, " prompts run at once, and the limit of '", name,
                     "' is max-concurrent=", limits.max_concurrent, "; send fewer in a request"));
  }
  std::shared_ptr<Owner> owner = OwnerOf(name);
  absl::MutexLock lock(&owner->mu);
  if (limits.max_concurrent > 0 && owner->running >= limits.max_concurrent) {
    return Reached(name, "max-concurrent", limits.max_concurrent,
                   "try again when a running request has ended", kRunningRetryMs);
  }
  if (limits.tokens_per_minute > 0) {
    const std::int64_t wait_ns = owner->bucket.WaitNs(now_ns);
    if (wait_ns > 0) {
      return Reached(name, "tokens-per-minute", limits.tokens_per_minute,
                     "the tokens of this minute are used up", (wait_ns + kNsPerMs - 1) / kNsPerMs);
    }
  }
  ++owner->running;
  return std::shared_ptr<void>(owner.get(), [owner](void*) {
    absl::MutexLock end(&owner->mu);
    --owner->running;
  });
}

void KeyLimits::Use(const std::string& name, std::int64_t tokens, const OwnerLimits& limits,
                    std::int64_t now_ns) {
  if (limits.tokens_per_minute == 0) return;
  const std::shared_ptr<Owner> owner = OwnerOf(name);
  absl::MutexLock lock(&owner->mu);
  owner->bucket.Take(tokens, limits.tokens_per_minute, now_ns);
}

}  // namespace flotilla::router
