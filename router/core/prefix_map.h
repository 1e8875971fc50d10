// PrefixMap: records which replicas were lately sent which prefixes of prompts, so that a
// prompt goes where its prefix probably is in the cache.
//
// A prefix is a chain of whole blocks of 16 tokens, as in a scheduler's prefix cache. A block is
// known by a hash of itself and all blocks before it. The map is a hint: a replica may have evicted
// a prefix that it was sent. The map is bounded. It first drops the prefixes that were sent least
// recently, and the end of a prompt before its beginning. Pure; one owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/types/ids.h"

namespace flotilla::router {

// One incarnation of a replica. A replica that was lost comes back with another key and an
// empty cache.
using ReplicaKey = StrongId<struct ReplicaKeyTag, std::uint64_t>;

class PrefixMap {
 public:
  static constexpr std::size_t kBlockTokens = 16;
  // The most blocks of a prompt that are hashed: its first 32,768 tokens.
  static constexpr std::size_t kMaxChain = 2048;
  // The most replicas remembered for one block; the one that was sent it last comes first.
  static constexpr std::size_t kHolders = 4;

  // At most `max_blocks` are remembered (about 150 bytes each).
  explicit PrefixMap(std::size_t max_blocks = 1 << 16) : max_blocks_(max_blocks) {}

  using Chain = std::vector<std::uint64_t>;
  // The blocks of a prompt that a cache may have: all whole ones before its last token.
  // Prompts of different tenants or salts never share a block.
  static Chain ChainOf(absl::Span<const TokenId> prompt, std::string_view tenant,
                       std::string_view cache_salt);

  struct Overlap {
    ReplicaKey replica;
    std::uint32_t tokens = 0;  // of the prefix, at least one block
  };
  // The replicas that were sent a prefix of this chain, each once.
  std::vector<Overlap> Find(const Chain& chain) const;

  // The prompt goes to `replica`.
  void OnSent(const Chain& chain, ReplicaKey replica);

  std::size_t size() const { return blocks_.size(); }

 private:
  struct Block {
    std::uint64_t hash = 0;
    std::array<ReplicaKey, kHolders> holders;
    std::size_t count = 0;
  };
  // The block that was sent last is at the front.
  using Recent = std::list<Block>;

  const std::size_t max_blocks_;
  Recent recent_;
  absl::flat_hash_map<std::uint64_t, Recent::iterator> blocks_;
};

}  // namespace flotilla::router
