#include "model/bpe.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace flotilla {
namespace {

// Up to this many symbols a quadratic scan beats the heap (tiktoken's figure
// is 100 bytes; pieces here are rarely longer than 20).
constexpr size_t kScanLimit = 64;

constexpr uint32_t kNoRank = UINT32_MAX;

struct Symbol {
  TokenId id;  // -1 once merged into its left neighbour
  uint32_t previous;
  uint32_t next;
};

// Neighbours point at each other; the last one's next is their count.
std::vector<Symbol> Linked(const std::vector<TokenId>& ids) {
  const auto count = static_cast<uint32_t>(ids.size());
  std::vector<Symbol> symbols(count);
  for (uint32_t i = 0; i < count; ++i) symbols[i] = {ids[i], i - 1, i + 1};
  return symbols;
}

void Join(std::vector<Symbol>& symbols, uint32_t at, TokenId result) {
  const uint32_t gone = symbols[at].next;
  symbols[at].id = result;
  symbols[at].next = symbols[gone].next;
  symbols[gone].id = -1;
  if (symbols[at].next < symbols.size()) symbols[symbols[at].next].previous = at;
}

void Collect(const std::vector<Symbol>& symbols, std::vector<TokenId>& ids) {
  ids.clear();
  for (uint32_t i = 0; i < symbols.size(); i = symbols[i].next) ids.push_back(symbols[i].id);
}

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
  if (ids.size() <= kScanLimit) {
    MergeByScan(ids);
  } else if (!MergeByRank(ids)) {
    MergeByHeap(ids);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void BpeMerges::MergeByScan(std::vector<TokenId>& ids) const {
  Rule rules[kScanLimit];  // rules[i]: what merges ids[i] and ids[i + 1]
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

// All pairs of the lowest rank from left to right, then those of the next. Ten times as fast
// as one heap of all pairs where a piece repeats itself, since a rank has few lookups in the
// hash table that miss the cache, and its positions lie side by side.
bool BpeMerges::MergeByRank(std::vector<TokenId>& ids) const {
  std::vector<Symbol> symbols = Linked(ids);
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> waiting;  // positions by rank
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks;
  const auto rule_at = [&](uint32_t i) {
    const uint32_t next = symbols[i].next;
    return next < symbols.size() ? FindRule(symbols[i].id, symbols[next].id) : nullptr;
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
      const Rule* rule = symbols[at].id < 0 ? nullptr : rule_at(at);
      if (rule == nullptr || rule->rank != rank) continue;  // the pair has changed since
      Join(symbols, at, rule->result);
      uint32_t lowest = push(at);
      if (at > 0) lowest = std::min(lowest, push(symbols[at].previous));
      if (lowest <= rank) {  // it goes before the rest of this rank
        Collect(symbols, ids);
        return false;
      }
    }
  }
  Collect(symbols, ids);
  return true;
}

void BpeMerges::MergeByHeap(std::vector<TokenId>& ids) const {
  std::vector<Symbol> symbols = Linked(ids);
  using Candidate = std::tuple<uint32_t, uint32_t>;  // rank, position of the left symbol
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto rule_at = [&](uint32_t i) {
    const uint32_t next = symbols[i].next;
    return next < symbols.size() ? FindRule(symbols[i].id, symbols[next].id) : nullptr;
  };
  const auto push = [&](uint32_t i) {
    if (const Rule* rule = rule_at(i)) heap.emplace(rule->rank, i);
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) push(i);
  while (!heap.empty()) {
    const auto [rank, at] = heap.top();
    heap.pop();
    if (symbols[at].id < 0) continue;
    const Rule* rule = rule_at(at);
    if (rule == nullptr || rule->rank != rank) continue;  // the pair has changed since
    Join(symbols, at, rule->result);
    push(at);
    if (at > 0) push(symbols[at].previous);
  }
  Collect(symbols, ids);
}

}  // namespace flotilla
