// PlanDigest: a 64-bit summary of open sequences and block tables. The scheduler and every
// rank keep one. An update takes time proportional to what changes.
//
// Each fact is hashed by itself and the hashes are added modulo 2^64, so facts may be added
// and removed in any order. Both sides call the same methods for the same plan operations.
// If their values differ, their states differ.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "common/types/ids.h"

namespace flotilla {

class PlanDigest {
 public:
  void Open(SequenceHandle sequence, const RequestId& request, SequenceIndex index) {
    value_ += Hash({1, sequence.value(), request.incarnation, request.counter, index.value()});
  }
  void Close(SequenceHandle sequence, const RequestId& request, SequenceIndex index) {
    value_ -= Hash({1, sequence.value(), request.incarnation, request.counter, index.value()});
  }
  // Entry `at` of the sequence's table of `group` now names `block`.
  void AddBlock(SequenceHandle sequence, GroupIndex group, std::uint32_t at, BlockId block) {
    value_ += Hash({2, sequence.value(), group.value(), at, block.value()});
  }
  void RemoveBlock(SequenceHandle sequence, GroupIndex group, std::uint32_t at, BlockId block) {
    value_ -= Hash({2, sequence.value(), group.value(), at, block.value()});
  }
  // Adds a token that was sent to the sequence in `step` (Run::append, ForkSequence::tokens).
  void AddToken(Step step, SequenceHandle sequence, TokenId token) {
    value_ += Hash({5, step.value(), sequence.value(), static_cast<std::uint64_t>(token)});
  }
  // Adds that the sequence was asked to run `count` known tokens in `step`. It is never
  // removed, because history is part of the summary.
  void AddRun(Step step, SequenceHandle sequence, std::uint32_t count) {
    value_ += Hash({3, step.value(), sequence.value(), count});
  }
  void AddCopy(Step step, std::uint64_t id, std::uint32_t tier, BlockId block, std::uint32_t slot) {
    value_ += Hash({6, step.value(), id, tier, block.value(), slot});
  }
  // Adds that the sequence may have `depth` draft tokens from `step` on.
  void AddSpeculate(Step step, SequenceHandle sequence, std::uint32_t depth) {
    value_ += Hash({7, step.value(), sequence.value(), depth});
  }
  void AddDefer(Step step, SequenceHandle sequence) {
    value_ += Hash({4, step.value(), sequence.value()});
  }

  std::uint64_t value() const { return value_; }

 private:
  // Finaliser of SplitMix64 (Steele, Lea, Flood 2014), chained over the words.
  static std::uint64_t Hash(std::initializer_list<std::uint64_t> words) {
    std::uint64_t h = 0x9e3779b97f4a7c15ull;
    for (std::uint64_t w : words) {
      h ^= w;
      h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
      h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
      h = (h ^ (h >> 31)) + 0x9e3779b97f4a7c15ull;
    }
    return h;
  }

  std::uint64_t value_ = 0;
};

}  // namespace flotilla
