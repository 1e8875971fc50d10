#include "model/text/bpe.h"

#include <algorithm>
#include <queue>

namespace flotilla::model {
namespace {

// Up to this many symbols a quadratic scan beats the heap (tiktoken's figure
// is 100 bytes; pieces here are rarely longer than 20).
constexpr size_t kScanLimit = 64;

// Up to this many symbols one heap of all pairs beats going rank by rank: it takes two thirds of
// the time for parts of English words.
constexpr size_t kHeapLimit = 4096;

constexpr uint32_t kNoRank = UINT32_MAX;

// The tokens of a piece, which merge in place. They take four bytes for each byte of the
// piece. A symbol that spans several places has its token at the first place, and minus its
// span at the second and at the last place.
class Symbols {
 public:
  explicit Symbols(std::span<TokenId> ids) : ids_(ids) {}

  uint32_t size() const { return static_cast<uint32_t>(ids_.size()); }
  // The token at `at`; negative once it is merged into its left neighbour.
  TokenId operator[](uint32_t at) const { return ids_[at]; }
  // The symbol after `at`; size() after the last symbol.
  uint32_t Next(uint32_t at) const {
    const uint32_t second = at + 1;
    return second < size() && ids_[second] < 0 ? at - ids_[second] : second;
  }
  // The symbol before `at`, which is not the first.
  uint32_t Previous(uint32_t at) const {
    const TokenId before = ids_[at - 1];
    return before < 0 ? at + before : at - 1;
  }
  void Join(uint32_t at, TokenId result) {
    const uint32_t gone = Next(at), end = Next(gone);
    const auto span = static_cast<TokenId>(end - at);
    ids_[at] = result;
    ids_[gone] = ids_[at + 1] = ids_[end - 1] = -span;
  }
  // Moves the tokens side by side to the begin, and returns how many there are.
  size_t Collect() {
    size_t count = 0;
    for (uint32_t at = 0, next; at < size(); at = next) {
      next = Next(at);
      ids_[count++] = ids_[at];
    }
    return count;
  }

 private:
  const std::span<TokenId> ids_;
};

}  // namespace

BpeMerges::BpeMerges() { std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1); }

void BpeMerges::AddMerge(TokenId left, TokenId right, TokenId result, uint32_t rank, Seam seam) {
  merges_.try_emplace(Key(left, right), Rule{rank, result});
  seams_.insert(Key(seam.before, seam.behind));
}

const BpeMerges::Rule* BpeMerges::FindRule(TokenId left, TokenId right) const {
  const auto it = merges_.find(Key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::optional<uint32_t> BpeMerges::RankOf(TokenId left, TokenId right) const {
  const Rule* rule = FindRule(left, right);
  return rule == nullptr ? std::nullopt : std::optional(rule->rank);
}

void BpeMerges::Encode(std::string_view piece, std::vector<TokenId>& out) const {
  std::vector<TokenId> ids;
  ids.reserve(piece.size());
  for (const char c : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) ids.push_back(id);
  }
  Merge(ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

// A long piece falls into parts at the seams of no rule. English without spaces has such a place
// every 80 to 250 letters, and a part stays in the cache.
void BpeMerges::Merge(std::vector<TokenId>& ids) const {
  if (ids.size() <= kScanLimit) return ids.resize(MergeByScan(ids));
  size_t count = 0;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    end = begin + 1;
    while (end < ids.size() && seams_.contains(Key(ids[end - 1], ids[end]))) ++end;
    const std::span part = std::span(ids).subspan(begin, end - begin);
    const auto merged = part.first(MergePart(part));
    std::ranges::copy(merged, ids.begin() + static_cast<std::ptrdiff_t>(count));
    count += merged.size();
  }
  ids.resize(count);
}

size_t BpeMerges::MergePart(std::span<TokenId> ids) const {
  if (ids.size() <= kScanLimit) return MergeByScan(ids);
  if (ids.size() <= kHeapLimit) return MergeByHeap(ids);
  bool ended = true;
  const size_t count = MergeByRank(ids, ended);
  return ended ? count : MergeByHeap(ids.first(count));
}

size_t BpeMerges::MergeByScan(std::span<TokenId> ids) const {
  Rule rules[kScanLimit];  // rules[i]: the rule that merges ids[i] and ids[i + 1]
  size_t count = ids.size();
  const auto look_up = [&](size_t i) {
    const Rule* rule = i + 1 < count ? FindRule(ids[i], ids[i + 1]) : nullptr;
    rules[i] = rule ? *rule : Rule{kNoRank, -1};
  };
  for (size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    const Rule* best = std::min_element(
        rules, rules + count, [](const Rule& a, const Rule& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const size_t at = static_cast<size_t>(best - rules);
    ids[at] = best->result;
    std::copy(ids.begin() + at + 2, ids.begin() + count, ids.begin() + at + 1);
    std::copy(rules + at + 2, rules + count, rules + at + 1);
    --count;
    look_up(at);
    if (at > 0) look_up(at - 1);
  }
  return count;
}

// Merges all pairs of the lowest rank from left to right, then those of the next rank. If a piece
// repeats itself, this is ten times as fast as one heap of all pairs. Few of a rank's look-ups in
// the hash table miss the cache, and its positions lie side by side.
size_t BpeMerges::MergeByRank(std::span<TokenId> ids, bool& ended) const {
  Symbols symbols(ids);
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> waiting;  // positions by rank
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks;
  const auto rule_at = [&](uint32_t i) {
    const uint32_t next = symbols.Next(i);
    return next < symbols.size() ? FindRule(symbols[i], symbols[next]) : nullptr;
  };
  const auto push = [&](uint32_t i) {
    const Rule* rule = rule_at(i);
    if (rule == nullptr) return kNoRank;
    std::vector<uint32_t>& positions = waiting[rule->rank];
    if (positions.empty()) ranks.push(rule->rank);
    positions.push_back(i);
    return rule->rank;
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) push(i);
  while (!ranks.empty()) {
    const uint32_t rank = ranks.top();
    ranks.pop();
    std::vector<uint32_t> positions = std::move(waiting.extract(rank).mapped());
    std::ranges::sort(positions);
    for (const uint32_t at : positions) {
      const Rule* rule = symbols[at] < 0 ? nullptr : rule_at(at);
      if (rule == nullptr || rule->rank != rank) continue;  // the pair has changed since
      symbols.Join(at, rule->result);
      uint32_t lowest = push(at);
      if (at > 0) lowest = std::min(lowest, push(symbols.Previous(at)));
      if (lowest <= rank) {  // the new pair goes before the rest of this rank
        ended = false;
        return symbols.Collect();
      }
    }
  }
  return symbols.Collect();
}

size_t BpeMerges::MergeByHeap(std::span<TokenId> ids) const {
  Symbols symbols(ids);
  // rank << 32 | position of the left symbol
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap;
  const auto rule_at = [&](uint32_t i) {
    const uint32_t next = symbols.Next(i);
    return next < symbols.size() ? FindRule(symbols[i], symbols[next]) : nullptr;
  };
  const auto push = [&](uint32_t i) {
    if (const Rule* rule = rule_at(i)) heap.push(static_cast<uint64_t>(rule->rank) << 32 | i);
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) push(i);
  while (!heap.empty()) {
    const auto rank = static_cast<uint32_t>(heap.top() >> 32);
    const auto at = static_cast<uint32_t>(heap.top());
    heap.pop();
    if (symbols[at] < 0) continue;
    const Rule* rule = rule_at(at);
    if (rule == nullptr || rule->rank != rank) continue;  // the pair has changed since
    symbols.Join(at, rule->result);
    push(at);
    if (at > 0) push(symbols.Previous(at));
  }
  return symbols.Collect();
}

}  // namespace flotilla::model
