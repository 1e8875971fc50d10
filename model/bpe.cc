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
  } else {
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

void BpeMerges::MergeByHeap(std::vector<TokenId>& ids) const {
  struct Symbol {
    TokenId id;  // -1 once merged into its left neighbour
    uint32_t previous;
    uint32_t next;
  };
  const auto count = static_cast<uint32_t>(ids.size());
  std::vector<Symbol> symbols(count);
  for (uint32_t i = 0; i < count; ++i) symbols[i] = {ids[i], i - 1, i + 1};

  using Candidate = std::tuple<uint32_t, uint32_t>;  // rank, position of the left symbol
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto rule_at = [&](uint32_t i) {
    const uint32_t next = symbols[i].next;
    return next < count ? FindRule(symbols[i].id, symbols[next].id) : nullptr;
  };
  const auto push = [&](uint32_t i) {
    if (const Rule* rule = rule_at(i)) heap.emplace(rule->rank, i);
  };
  for (uint32_t i = 0; i < count; ++i) push(i);
  while (!heap.empty()) {
    const auto [rank, at] = heap.top();
    heap.pop();
    if (symbols[at].id < 0) continue;
    const Rule* rule = rule_at(at);
    if (rule == nullptr || rule->rank != rank) continue;  // the pair has changed since
    const uint32_t gone = symbols[at].next;
    symbols[at].id = rule->result;
    symbols[at].next = symbols[gone].next;
    symbols[gone].id = -1;
    if (symbols[at].next < count) symbols[symbols[at].next].previous = at;
    push(at);
    if (at > 0) push(symbols[at].previous);
  }
  ids.clear();
  for (uint32_t i = 0; i < count; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace flotilla
