#include "model/text/bpe.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace flotilla::model {
namespace {

// Up to this many symbols a quadratic scan beats the heap (tiktoken's figure
// is 100 bytes; pieces here are rarely longer than 20).
constexpr size_t kScanLimit = 64;

constexpr uint32_t kNoRank = UINT32_MAX;

// The tokens of a piece, which merge in place. They take four bytes for each byte of the
// piece. A symbol that spans several places has its token at the first place, and minus its
// span at the second and at the last place.
class Symbols {
 public:
  explicit Symbols(std::vector<TokenId>& ids) : ids_(ids) {}

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
  // Moves the tokens side by side and drops the other places.
  void Collect() {
    size_t count = 0;
    for (uint32_t at = 0, next; at < size(); at = next) {
      next = Next(at);
      ids_[count++] = ids_[at];
    }
    ids_.resize(count);
  }

 private:
  std::vector<TokenId>& ids_;
};

}  // namespace

BpeMerges::BpeMerges() { std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1); }

void BpeMerges::AddMerge(TokenId left, TokenId right, TokenId result, uint32_t rank) {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  merges_.try_emplace(key, Rule{rank, result});
}

const BpeMerges::Rule* BpeMerges::FindRule(TokenId left, TokenId right) const {
  const auto it = merges_.find(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
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

void BpeMerges::Merge(std::vector<TokenId>& ids) const {
  if (ids.size() <= kScanLimit) {
    MergeByScan(ids);
  } else if (!MergeByRank(ids)) {
    MergeByHeap(ids);
  }
}

void BpeMerges::MergeByScan(std::vector<TokenId>& ids) const {
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
  ids.resize(count);
}

// Merges all pairs of the lowest rank from left to right, then those of the next rank. If a piece
// repeats itself, this is ten times as fast as one heap of all pairs. Few of a rank's look-ups in
// the hash table miss the cache, and its positions lie side by side.
bool BpeMerges::MergeByRank(std::vector<TokenId>& ids) const {
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
        symbols.Collect();
        return false;
      }
    }
  }
  symbols.Collect();
  return true;
}

void BpeMerges::MergeByHeap(std::vector<TokenId>& ids) const {
  Symbols symbols(ids);
  using Candidate = std::tuple<uint32_t, uint32_t>;  // rank, position of the left symbol
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto rule_at = [&](uint32_t i) {
    const uint32_t next = symbols.Next(i);
    return next < symbols.size() ? FindRule(symbols[i], symbols[next]) : nullptr;
  };
  const auto push = [&](uint32_t i) {
    if (const Rule* rule = rule_at(i)) heap.emplace(rule->rank, i);
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) push(i);
  while (!heap.empty()) {
    const auto [rank, at] = heap.top();
    heap.pop();
    if (symbols[at] < 0) continue;
    const Rule* rule = rule_at(at);
    if (rule == nullptr || rule->rank != rank) continue;  // the pair has changed since
    symbols.Join(at, rule->result);
    push(at);
    if (at > 0) push(symbols.Previous(at));
  }
  symbols.Collect();
}

}  // namespace flotilla::model
