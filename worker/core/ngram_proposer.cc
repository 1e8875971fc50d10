#include "worker/core/ngram_proposer.h"

#include <algorithm>

namespace flotilla::worker {
namespace {

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Returns the hash of an n-gram from the hash of its last n - 1 tokens and the token before
// them.
std::uint64_t Longer(std::uint64_t hash, TokenId token) {
  return Mix(hash + 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(token));
}

}  // namespace

void NgramIndex::Extend(absl::Span<const TokenId> tokens, std::size_t end) {
  for (; indexed_ < end; ++indexed_) {
    std::uint64_t hash = 0;
    const std::size_t longest = std::min<std::size_t>(options_.max_n, indexed_ + 1);
    for (std::size_t n = 1; n <= longest; ++n) {
      hash = Longer(hash, tokens[indexed_ + 1 - n]);
      if (n >= options_.min_n) last_[hash + n] = static_cast<std::uint32_t>(indexed_ + 1);
    }
  }
}

std::size_t NgramIndex::Find(absl::Span<const TokenId> tokens, std::uint32_t n) const {
  std::uint64_t hash = 0;
  for (std::uint32_t i = 1; i <= n; ++i) hash = Longer(hash, tokens[tokens.size() - i]);
  const auto found = last_.find(hash + n);
  if (found == last_.end()) return 0;
  const auto suffix = tokens.last(n);
  const bool same = std::equal(suffix.begin(), suffix.end(), tokens.begin() + found->second - n);
  return same ? found->second : 0;
}

std::vector<TokenId> NgramIndex::Draft(absl::Span<const TokenId> tokens, std::uint32_t limit) {
  std::vector<TokenId> draft;
  // Leaves out the last token, because the suffix itself is no earlier occurrence.
  Extend(tokens, tokens.size() - 1);
  const auto longest =
      static_cast<std::uint32_t>(std::min<std::size_t>(options_.max_n, tokens.size()));
  std::size_t from = 0;
  for (std::uint32_t n = longest; n >= options_.min_n && from == 0; --n) from = Find(tokens, n);
  if (from == 0) return draft;
  std::uint32_t common = 0;
  while (common <= limit && common < from &&
         tokens[from - 1 - common] == tokens[tokens.size() - 1 - common]) {
    ++common;
  }
  limit = std::min(limit, std::max(common, 2u) - 1);
  draft.reserve(limit);
  for (std::uint32_t i = 0; i < limit; ++i) {
    const std::size_t at = from + i;
    draft.push_back(at < tokens.size() ? tokens[at] : draft[at - tokens.size()]);
  }
  return draft;
}

void NgramProposer::Propose(absl::Span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    NgramIndex& index = indexes_.try_emplace(request.sequence.value(), options_).first->second;
    request.drafts = index.Draft(request.tokens, request.limit);
  }
}

void NgramProposer::Forget(SequenceHandle sequence) { indexes_.erase(sequence.value()); }

}  // namespace flotilla::worker
