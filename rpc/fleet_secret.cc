#include "rpc/fleet_secret.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace flotilla::rpc {

absl::StatusOr<FleetSecret> FleetSecret::Parse(std::string_view text) {
  constexpr std::size_t kMaxSecrets = 2;
  FleetSecret secret;
  std::size_t number = 0;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const absl::string_view said = absl::StripAsciiWhitespace(line);
    if (said.empty()) continue;
    if (said.size() < kMinBytes || said.size() > kMaxBytes ||
        !std::ranges::all_of(said, [](unsigned char c) { return absl::ascii_isgraph(c); })) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": a secret is ", kMinBytes,
                                                     " to ", kMaxBytes,
                                                     " printable ASCII characters"));
    }
    if (secret.accepted_.size() == kMaxSecrets) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": at most ", kMaxSecrets, " secrets"));
    }
    if (secret.accepted_.empty()) secret.first_ = std::string(said);
    secret.accepted_.push_back(SecretDigest::Of({said.data(), said.size()}));
  }
  if (secret.accepted_.empty()) return absl::InvalidArgumentError("there is no secret");
  return secret;
}

bool FleetSecret::Accepts(std::string_view secret) const {
  const SecretDigest digest = SecretDigest::Of(secret);
  bool accepted = false;
  for (const SecretDigest& one : accepted_) accepted |= one == digest;
  return accepted;
}

}  // namespace flotilla::rpc
