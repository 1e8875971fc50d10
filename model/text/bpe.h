// Byte-pair merging: turns the bytes of one piece of text into token ids.
//
// A BpeMerges is built once and then only read; any thread may encode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/types/ids.h"

namespace flotilla::model {

class BpeMerges {
 public:
  BpeMerges();

  // Makes `id` the token of a single byte.
  void SetByteToken(uint8_t byte, TokenId id) { byte_ids_[byte] = id; }

  void Reserve(size_t merges) { merges_.reserve(merges); }

  // The symbols of a text on both sides of a place between them.
  struct Seam {
    TokenId before, behind;
  };
  // Adds the rule that the neighbours (left, right) merge into `result`. Of two rules that
  // apply, the one with the lower rank goes first. If a pair gets several rules, the first
  // one stays. `seam`: the symbols that the text of `left` ends and that of `right` begins with.
  void AddMerge(TokenId left, TokenId right, TokenId result, uint32_t rank, Seam seam);
  // The seam of two texts of bytes, which are not empty.
  Seam SeamOf(std::string_view left, std::string_view right) const {
    return {byte_ids_[static_cast<uint8_t>(left.back())],
            byte_ids_[static_cast<uint8_t>(right.front())]};
  }

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

  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  const Rule* FindRule(TokenId left, TokenId right) const;
  // These merge `ids` in place and return how many tokens at its begin are the result.
  size_t MergePart(std::span<TokenId> ids) const;
  size_t MergeByScan(std::span<TokenId> ids) const;
  size_t MergeByHeap(std::span<TokenId> ids) const;
  // Sets `ended` to false when a merge leads to one of a lower rank, which no trained vocabulary
  // has. The result holds the merges so far then, and MergeByHeap goes on from there.
  size_t MergeByRank(std::span<TokenId> ids, bool& ended) const;

  TokenId byte_ids_[256];                       // -1: no token
  absl::flat_hash_map<uint64_t, Rule> merges_;  // by Key
  // Of the rules, by Key. At a place of a text with another seam nothing ever merges.
  absl::flat_hash_set<uint64_t> seams_;
};

}  // namespace flotilla::model
