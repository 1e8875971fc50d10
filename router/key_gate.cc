#include "router/key_gate.h"

#include <optional>
#include <utility>

#include "router/errors.h"

namespace flotilla::router {

absl::StatusOr<std::unique_ptr<KeyGate>> KeyGate::Open(WatchedFileOptions file,
                                                       RouterMetrics* metrics) {
  auto keys = WatchedFile<ApiKeys>::Open(std::move(file), &ApiKeys::Parse);
  if (!keys.ok()) return keys.status();
  return std::unique_ptr<KeyGate>(new KeyGate(*std::move(keys), metrics));
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

}  // namespace flotilla::router
