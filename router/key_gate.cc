#include "router/key_gate.h"

#include <optional>
#include <utility>

#include "router/errors.h"

namespace flotilla::router {

absl::StatusOr<std::unique_ptr<KeyGate>> KeyGate::Open(WatchedFileOptions file,
                                                       RouterMetrics* metrics) {
  const Clock* const clock = file.clock;
  auto keys = WatchedFile<ApiKeys>::Open(std::move(file), &ApiKeys::Parse);
  if (!keys.ok()) return keys.status();
  return std::unique_ptr<KeyGate>(new KeyGate(*std::move(keys), clock, metrics));
}

absl::StatusOr<KeyOwner> KeyGate::Admit(std::string_view authorization) {
  const std::string_view key = BearerToken(authorization);
  if (!key.empty()) {
    if (std::optional<KeyOwner> owner = keys_->Get()->Find(key)) return *std::move(owner);
  }
  // The error does not repeat the key, because errors are logged and the key may be nearly right.
  const absl::Status refused = WithField(
      absl::UnauthenticatedError(key.empty() ? "an API key is needed: Authorization: Bearer KEY"
                                             : "the API key is not valid"),
      "", kInvalidApiKey);
  if (metrics_ != nullptr) metrics_->OnRefused(refused);
  return refused;
}

absl::StatusOr<std::shared_ptr<void>> KeyGate::Begin(const std::string& name,
                                                     std::uint32_t prompts) {
  return limits_.Begin(name, prompts, keys_->Get()->LimitsOf(name), clock_->NowNs());
}

void KeyGate::Use(const std::string& name, std::int64_t tokens) {
  limits_.Use(name, tokens, keys_->Get()->LimitsOf(name), clock_->NowNs());
}

}  // namespace flotilla::router
