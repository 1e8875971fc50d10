#include "worker/compute/dry.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "worker/compute/last_breaker.h"

namespace flotilla::worker {
namespace {

// The last tokens before the position, the latest first.
void TakeLast(const SamplingParams& sampling, const TokenPosition& position,
              std::vector<TokenId>& latest) {
  const std::size_t all = position.prompt.size() + position.output.size() + position.drafts.size();
  const std::size_t wanted =
      sampling.dry_penalty_last_n < 0
          ? all
          : std::min(all, static_cast<std::size_t>(sampling.dry_penalty_last_n));
  latest.clear();
  latest.reserve(wanted);
  for (const auto& tokens : {position.drafts, position.output, position.prompt}) {
    const std::size_t count = std::min(tokens.size(), wanted - latest.size());
    latest.insert(latest.end(), tokens.rbegin(), tokens.rbegin() + count);
  }
}

// Sets lengths[k], for k > 0: how many tokens from latest[k] on equal those from latest[0] on.
// Returns the first k with the largest of them, or 0 if all are 0.
std::size_t FindRepeats(const std::vector<TokenId>& latest, std::vector<std::uint32_t>& lengths) {
  const std::size_t size = latest.size();
  lengths.assign(std::max<std::size_t>(size, 1), 0);
  std::size_t longest = 0;
  std::size_t begin = 0, end = 1;  // of the repeat that reaches farthest
  for (std::size_t k = 1; k < size; ++k) {
    if (k < end && lengths[k - begin] < end - k) {
      lengths[k] = lengths[k - begin];  // which is not the longest
      continue;
    }
    begin = k;
    end = std::max(k, end);
    while (end < size && latest[end - k] == latest[end]) ++end;
    lengths[k] = static_cast<std::uint32_t>(end - k);
    if (lengths[k] > lengths[longest]) longest = k;
  }
  return longest;
}

// multiplier * base ^ exponent, at most kMaxDryPenalty. Only multiplications, so that it has the
// same bits everywhere. A power may be infinite.
float Penalty(const SamplingParams& sampling, std::uint32_t exponent) {
  double penalty = sampling.dry_multiplier;
  for (double power = sampling.dry_base; exponent > 0; exponent /= 2, power *= power) {
    if (exponent % 2 == 1) penalty = std::min(penalty * power, kMaxDryPenalty);
  }
  return static_cast<float>(penalty);
}

// An exponent, at most `most`, behind which the penalty no longer changes up to `most`. (The
// penalty grows with the exponent: a base above 1 is at least 1 + 2^-23, and rounding errors are
// below 2^-30.)
std::uint32_t LargestExponent(const SamplingParams& sampling, std::uint32_t most) {
  if (sampling.dry_base == 1) return 0;
  std::uint32_t exponent = 1;
  while (exponent < most && Penalty(sampling, exponent) < static_cast<float>(kMaxDryPenalty)) {
    exponent *= 2;
  }
  return std::min(exponent, most);
}

}  // namespace

void AddDry(const SamplingParams& sampling, const TokenPosition& position,
            std::vector<LogitEdit>& edits) {
  static thread_local std::vector<TokenId> latest;
  static thread_local std::vector<std::uint32_t> lengths;
  TakeLast(sampling, position, latest);
  const auto allowed = static_cast<std::uint32_t>(sampling.dry_allowed_length);
  const std::size_t place = FindRepeats(latest, lengths);
  std::uint32_t most = lengths[place];
  if (most < allowed) return;
  // Longer repetitions are not told apart.
  most = allowed + LargestExponent(sampling, most - allowed);
  if (most > 0) {
    most = SinceBreaker(sampling.dry_breakers, latest, most, static_cast<std::uint32_t>(place));
  }
  if (most < allowed) return;

  // By token: 1 + the longest repeat that it followed. All entries are zero between calls.
  static thread_local std::vector<std::uint32_t> followed;
  static thread_local std::vector<TokenId> followers;
  followers.clear();
  for (std::size_t k = 1; k < latest.size(); ++k) {
    const std::uint32_t length = std::min(lengths[k], most);
    if (length < allowed) continue;
    const auto token = static_cast<std::size_t>(latest[k - 1]);
    if (token >= followed.size()) followed.resize(token + token / 2 + 1);
    if (followed[token] > length) continue;
    if (followed[token] == 0) followers.push_back(latest[k - 1]);
    followed[token] = 1 + length;
  }
  for (const TokenId token : followers) {
    const std::uint32_t length = std::exchange(followed[token], 0) - 1;
    if (IsBreaker(sampling.dry_breakers, token)) continue;
    edits.push_back({.token = token,
                     .kind = LogitEdit::Kind::kAdd,
                     .value = -Penalty(sampling, length - allowed)});
  }
}

}  // namespace flotilla::worker
