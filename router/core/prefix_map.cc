#include "router/core/prefix_map.h"

#include <algorithm>

namespace flotilla::router {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014) over a running value.
std::uint64_t Mix(std::uint64_t h, std::uint64_t value) {
  h = (h ^ value) + 0x9E3779B97F4A7C15u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

// Ends the text with its length, so that no two pairs of strings have the same bytes.
std::uint64_t MixText(std::uint64_t h, std::string_view text) {
  for (const char c : text) h = Mix(h, static_cast<unsigned char>(c));
  return Mix(h, text.size());
}

}  // namespace

PrefixMap::Chain PrefixMap::ChainOf(absl::Span<const TokenId> prompt, std::string_view tenant,
                                    std::string_view cache_salt) {
  const std::size_t blocks =
      std::min(prompt.empty() ? 0 : (prompt.size() - 1) / kBlockTokens, kMaxChain);
  Chain chain;
  chain.reserve(blocks);
  std::uint64_t h = MixText(MixText(0, tenant), cache_salt);
  for (std::size_t block = 0; block < blocks; ++block) {
    for (const TokenId token : prompt.subspan(block * kBlockTokens, kBlockTokens)) {
      h = Mix(h, static_cast<std::uint64_t>(token));
    }
    chain.push_back(h);
  }
  return chain;
}

std::vector<PrefixMap::Overlap> PrefixMap::Find(const Chain& chain) const {
  std::vector<Overlap> found;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto at = blocks_.find(chain[i]);
    if (at == blocks_.end()) break;
    const Block& block = *at->second;
    bool any = false;
    for (std::size_t h = 0; h < block.count; ++h) {
      const ReplicaKey replica = block.holders[h];
      if (i == 0) found.push_back({replica, 0});
      for (Overlap& overlap : found) {
        // A replica can use this block only if it has all blocks before it.
        if (overlap.replica != replica || overlap.tokens != i * kBlockTokens) continue;
        overlap.tokens += kBlockTokens;
        any = true;
      }
    }
    if (!any) break;
  }
  return found;
}

void PrefixMap::OnSent(const Chain& chain, ReplicaKey replica) {
  // Starts at the end, so that the beginning counts as sent last.
  for (std::size_t i = chain.size(); i-- > 0;) {
    const auto [at, added] = blocks_.try_emplace(chain[i]);
    if (added) {
      recent_.push_front({.hash = chain[i], .holders = {}, .count = 0});
      at->second = recent_.begin();
    } else {
      recent_.splice(recent_.begin(), recent_, at->second);
    }
    Block& block = recent_.front();
    const auto end = block.holders.begin() + static_cast<std::ptrdiff_t>(block.count);
    auto held = std::find(block.holders.begin(), end, replica);
    if (held == end) {
      if (block.count < kHolders) {
        ++block.count;
      } else {
        --held;  // the one that was sent it longest ago
      }
      *held = replica;
    }
    std::rotate(block.holders.begin(), held, held + 1);
  }
  while (blocks_.size() > max_blocks_) {
    blocks_.erase(recent_.back().hash);
    recent_.pop_back();
  }
}

}  // namespace flotilla::router
