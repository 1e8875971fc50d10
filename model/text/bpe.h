// Byte-pair merging: turns the bytes of one piece of text into token ids.
//
// A BpeMerges is built once and then only read; any thread may encode.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/types/ids.h"

namespace flotilla::model {

class BpeMerges {
 public:
  BpeMerges();

  // Makes `id` the token of a single byte.
  void SetByteToken(uint8_t byte, TokenId id) { byte_ids_[byte] = id; }

  void Reserve(size_t merges) { merges_.reserve(merges); }

  // Adds the rule that the neighbours (left, right) merge into `result`. Of two rules that
  // apply, the one with the lower rank goes first. If a pair gets several rules, the first
  // one stays.
  void AddMerge(TokenId left, TokenId right, TokenId result, uint32_t rank);

  // The rank of the rule for (left, right), if there is one.
  std::optional<uint32_t> RankOf(TokenId left, TokenId right) const;

  // Appends the tokens of `piece`. Starting from the bytes of the piece, it applies the
  // lowest-ranked merge, the leftmost on ties, until none applies. A byte without a token
  // vanishes, as in the reference tokenizer. O(n log n) for long pieces.
  void Encode(std::string_view piece, std::vector<TokenId>& out) const;

  // The same from symbols other than bytes, which are not negative: `ids` become what they merge
  // to.
  void Merge(std::vector<TokenId>& ids) const;

 private:
  struct Rule {
    uint32_t rank;
    TokenId result;
  };

  const Rule* FindRule(TokenId left, TokenId right) const;
  void MergeByScan(std::vector<TokenId>& ids) const;
  // Returns false when a merge leads to one of a lower rank, which no trained vocabulary
  // has. `ids` then holds the merges so far, and MergeByHeap goes on from there.
  bool MergeByRank(std::vector<TokenId>& ids) const;
  void MergeByHeap(std::vector<TokenId>& ids) const;

  TokenId byte_ids_[256];                       // -1: no token
  absl::flat_hash_map<uint64_t, Rule> merges_;  // left << 32 | right
};

}  // namespace flotilla::model
