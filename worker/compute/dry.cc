#include "worker/compute/dry.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/types/span.h"

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

// lengths[k]: how many tokens from latest[k] on equal those from latest[0] on, for k > 0.
std::uint32_t FindRepeats(const std::vector<TokenId>& latest, std::vector<std::uint32_t>& lengths) {
  const std::size_t size = latest.size();
  lengths.assign(size, 0);
  std::uint32_t longest = 0;
  std::size_t begin = 0, end = 0;  // of the repeat that reaches farthest
  for (std::size_t k = 1; k < size; ++k) {
    std::size_t length = 0;
    if (k < end) length = std::min<std::size_t>(end - k, lengths[k - begin]);
    while (k + length < size && latest[length] == latest[k + length]) ++length;
    if (k + length > end) {
      begin = k;
      end = k + length;
    }
    lengths[k] = static_cast<std::uint32_t>(length);
    longest = std::max(longest, lengths[k]);
  }
  return longest;
}

// The heads of one token.
std::pair<std::size_t, std::size_t> HeadsOf(const DryBreakers& breakers, TokenId token) {
  const auto [first, last] = std::equal_range(breakers.heads.begin(), breakers.heads.end(), token);
  return {static_cast<std::size_t>(first - breakers.heads.begin()),
          static_cast<std::size_t>(last - breakers.heads.begin())};
}

// Whether a token is a breaker by itself. The empty tail is the first one.
bool IsBreaker(const DryBreakers& breakers, TokenId token) {
  const auto [first, last] = HeadsOf(breakers, token);
  return first < last && breakers.tails[breakers.tail_of[first]].empty();
}

// The number of tokens of the longest tail of the head latest[at] that is behind it; none: no
// breaker begins there. The tails ascend, so those that begin alike follow each other.
std::optional<std::size_t> TailAt(const DryBreakers& breakers, const std::vector<TokenId>& latest,
                                  std::size_t at) {
  const auto tails = absl::MakeConstSpan(breakers.tail_of);
  const auto tail = [&](std::uint32_t number) -> const std::vector<TokenId>& {
    return breakers.tails[number];
  };
  auto [first, last] = HeadsOf(breakers, latest[at]);
  std::optional<std::size_t> longest;
  for (std::size_t depth = 0; first < last; ++depth) {
    if (tail(tails[first]).size() == depth) {
      longest = depth;
      if (++first == last) break;
    }
    if (depth == at) break;  // no token is left
    const TokenId next = latest[at - depth - 1];
    if (tail(tails[first])[depth] == next && tail(tails[last - 1])[depth] == next) continue;
    const auto begin = tails.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = tails.begin() + static_cast<std::ptrdiff_t>(last);
    const auto low = std::partition_point(
        begin, end, [&](std::uint32_t number) { return tail(number)[depth] < next; });
    const auto high = std::partition_point(
        low, end, [&](std::uint32_t number) { return tail(number)[depth] == next; });
    first = static_cast<std::size_t>(low - tails.begin());
    last = static_cast<std::size_t>(high - tails.begin());
  }
  return longest;
}

// The number of tokens behind the last breaker, or `most` if they are more.
std::uint32_t SinceBreaker(const DryBreakers& breakers, const std::vector<TokenId>& latest,
                           std::uint32_t most) {
  const std::size_t reach =
      std::min(latest.size(), std::size_t{most} + DryBreakers::kMaxTailTokens);
  for (std::size_t at = 0; at < reach; ++at) {
    if (const auto tail = TailAt(breakers, latest, at)) {
      return static_cast<std::uint32_t>(std::min<std::size_t>(at - *tail, most));
    }
  }
  return most;
}

// multiplier * base ^ exponent, at most kMaxDryPenalty. Only multiplications, so that it has the
// same bits everywhere.
float Penalty(const SamplingParams& sampling, std::uint32_t exponent) {
  double penalty = sampling.dry_multiplier;
  for (double power = sampling.dry_base; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) penalty = std::min(penalty * power, kMaxDryPenalty);
    power = std::min(power * power, kMaxDryPenalty);
  }
  return static_cast<float>(penalty);
}

}  // namespace

void AddDry(const SamplingParams& sampling, const TokenPosition& position,
            std::vector<LogitEdit>& edits) {
  static thread_local std::vector<TokenId> latest;
  static thread_local std::vector<std::uint32_t> lengths;
  TakeLast(sampling, position, latest);
  const auto allowed = static_cast<std::uint32_t>(sampling.dry_allowed_length);
  std::uint32_t most = FindRepeats(latest, lengths);
  if (most >= allowed) most = SinceBreaker(sampling.dry_breakers, latest, most);
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
    if (followed[token] == 0) followers.push_back(latest[k - 1]);
    followed[token] = std::max(followed[token], 1 + length);
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
