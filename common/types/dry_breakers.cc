#include "common/types/dry_breakers.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

absl::Status Wrong(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("dry_sequence_breakers: ", what));
}

}  // namespace

absl::Status CheckDryBreakers(const DryBreakers& breakers, std::uint32_t vocab_size) {
  const auto& [heads, tail_of, tails] = breakers;
  if (heads.size() > DryBreakers::kMaxHeads || tails.size() > DryBreakers::kMaxTails) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dry_sequence_breakers has ", heads.size(), " heads and ", tails.size(), " tails; at most ",
        DryBreakers::kMaxHeads, " and ", DryBreakers::kMaxTails, " are allowed"));
  }
  if (tail_of.size() != heads.size()) return Wrong("not every head has a tail");
  const auto is_token = [vocab_size](TokenId token) {
    return token >= 0 && static_cast<std::uint32_t>(token) < vocab_size;
  };
  if (!std::all_of(heads.begin(), heads.end(), is_token)) {
    return Wrong("a head is outside the vocabulary");
  }
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (tail_of[i] >= tails.size()) return Wrong("a head has a tail that does not exist");
    if (i > 0 && std::pair(heads[i - 1], tail_of[i - 1]) >= std::pair(heads[i], tail_of[i])) {
      return Wrong("the heads do not ascend");
    }
  }
  for (const std::vector<TokenId>& tail : tails) {
    if (tail.size() > DryBreakers::kMaxTailTokens ||
        !std::all_of(tail.begin(), tail.end(), is_token)) {
      return Wrong("a tail is too long, or outside the vocabulary");
    }
  }
  if (std::adjacent_find(tails.begin(), tails.end(), std::greater_equal<>()) != tails.end()) {
    return Wrong("the tails do not ascend");
  }
  return absl::OkStatus();
}

}  // namespace flotilla
