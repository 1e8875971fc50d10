#include "router/core/replica_choice.h"

namespace flotilla::router {
namespace {

// The tokens that are computed before this request's first token, compared between replicas. The
// prompt's length is left out, as it is the same for all.
std::int64_t Cost(const ReplicaChoice& replica) {
  return static_cast<std::int64_t>(replica.outstanding_tokens) - replica.overlap_tokens;
}

}  // namespace

std::size_t ChooseReplica(absl::Span<const ReplicaChoice> replicas, std::uint64_t random) {
  const std::size_t count = replicas.size();
  std::size_t best = random % count;
  const auto consider = [&](std::size_t other) {
    if (Cost(replicas[other]) < Cost(replicas[best])) best = other;
  };
  if (count > 1) consider((best + 1 + (random >> 32) % (count - 1)) % count);
  std::size_t longest = best;
  for (std::size_t i = 0; i < count; ++i) {
    const ReplicaChoice &a = replicas[i], &b = replicas[longest];
    if (a.overlap_tokens > b.overlap_tokens ||
        (a.overlap_tokens == b.overlap_tokens && a.outstanding_tokens < b.outstanding_tokens &&
         a.overlap_tokens > 0)) {
      longest = i;
    }
  }
  consider(longest);
  return best;
}

}  // namespace flotilla::router
