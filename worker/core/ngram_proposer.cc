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

void NgramIndex::Begin(std::size_t end) {
  const std::size_t each = options_.max_n - options_.min_n + 1;
  std::size_t wanted = kFewestSlots;
  while (wanted < kMostSlots && wanted < 4 * each * end) wanted *= 2;
  slots_.assign(wanted, Slot());
  first_ = indexed_ = end;
  used_ = 0;
}

void NgramIndex::Extend(absl::Span<const TokenId> tokens, std::size_t end) {
  const std::uint32_t each = options_.max_n - options_.min_n + 1;
  new_entries_ = 0;
  const bool full = used_ > slots_.size() / 4 && slots_.size() < kMostSlots;
  if (slots_.empty() || full) Begin(end);
  for (; indexed_ < end && new_entries_ + each <= kMostNewEntries; ++indexed_) {
    Add(tokens, indexed_);
  }
  while (first_ > 0 && new_entries_ + each <= kMostNewEntries && used_ <= slots_.size() / 2) {
    Add(tokens, --first_);
  }
}

void NgramIndex::Add(absl::Span<const TokenId> tokens, std::size_t last) {
  std::uint64_t hash = 0;
  const std::size_t longest = std::min<std::size_t>(options_.max_n, last + 1);
  for (std::size_t n = 1; n <= longest; ++n) {
    hash = Longer(hash, tokens[last + 1 - n]);
    if (n >= options_.min_n) Add(Mix(hash + n), static_cast<std::uint32_t>(last + 1));
  }
}

// Uses the n-gram's own slot, or else an empty one, or else the one of the earliest n-gram.
void NgramIndex::Add(std::uint64_t hash, std::uint32_t end) {
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  Slot* const bucket = slots_.data() + BucketOf(hash);
  Slot* to = bucket;
  for (Slot* slot = bucket; slot < bucket + kBucket; ++slot) {
    if (slot->end == 0 || slot->tag == tag) {
      to = slot;
      break;
    }
    if (slot->end < to->end) to = slot;
  }
  ++new_entries_;
  used_ += to->end == 0;
  if (end > to->end) *to = {tag, end};
}

std::size_t NgramIndex::Find(absl::Span<const TokenId> tokens, std::uint32_t n) const {
  std::uint64_t hash = 0;
  for (std::uint32_t i = 1; i <= n; ++i) hash = Longer(hash, tokens[tokens.size() - i]);
  hash = Mix(hash + n);
  const Slot* const bucket = slots_.data() + BucketOf(hash);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (const Slot* slot = bucket; slot < bucket + kBucket; ++slot) {
    if (slot->end < n || slot->tag != tag) continue;
    const auto suffix = tokens.last(n);
    const bool same = std::equal(suffix.begin(), suffix.end(), tokens.begin() + slot->end - n);
    return same ? slot->end : 0;
  }
  return 0;
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
