#include "worker/compute/row_partials.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "worker/compute/sampler.h"

namespace flotilla::worker {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t kChunkTokens = kernels::kVocabularyChunk;

RowPartial Measure(const kernels::Ops& ops, const VocabularyShard& shard,
                   absl::Span<const float> logits, std::int32_t top) {
  RowPartial partial;
  partial.stats.reserve(shard.subtrees.size());
  const float* subtree = logits.data();
  for (const std::int32_t size : shard.subtrees) {
    partial.stats.push_back(ops.softmax_stats(subtree, size));
    subtree += size;
  }
  if (top <= 0 || shard.tokens == 0) return partial;
  partial.best.resize(std::min(top, shard.tokens));
  ops.top_n(logits.data(), shard.tokens, static_cast<int>(partial.best.size()),
            partial.best.data());
  for (kernels::TokenScore& entry : partial.best) entry.token += shard.first_token;
  return partial;
}

absl::StatusOr<float> LogSumExpOf(const RowPartial& row, const VocabularyShards& vocabulary) {
  std::vector<kernels::SoftmaxStats> registers(vocabulary.tree().depth);
  for (const TreeStep& step : vocabulary.tree().steps) {
    registers[step.to] = step.load
                             ? row.stats[step.from]
                             : kernels::MergeStats(registers[step.to], registers[step.to + 1]);
  }
  return RowLogSumExp(registers.front());
}

std::vector<TopLogprob> Best(const RowPartial& row, float lse, std::int32_t top) {
  std::vector<TopLogprob> best;
  for (const kernels::TokenScore& entry : row.best) {
    if (static_cast<std::int32_t>(best.size()) == top) break;
    if (entry.score > kNoScore) best.push_back({entry.token, entry.score - lse});
  }
  return best;
}

}  // namespace

VocabularyShards::VocabularyShards(absl::Span<const IndexRange> shards, std::uint32_t tokens)
    : tokens_(tokens) {
  std::vector<IndexRange> all;
  for (const IndexRange& entries : shards) {
    const std::uint32_t end = std::clamp(tokens_, entries.begin, entries.end);
    VocabularyShard shard{.first_token = static_cast<TokenId>(entries.begin),
                          .tokens = static_cast<std::int32_t>(end - entries.begin),
                          .subtrees = {}};
    const IndexRange chunks{entries.begin / kChunkTokens,
                            (entries.end + kChunkTokens - 1) / kChunkTokens};
    if (entries.size() == 0) {
      shards_.push_back(std::move(shard));
      continue;
    }
    for (const IndexRange& subtree : CompleteSubtrees(chunks)) {
      const std::uint32_t last = std::min(subtree.end * kChunkTokens, entries.end);
      shard.subtrees.push_back(static_cast<std::int32_t>(last - subtree.begin * kChunkTokens));
      all.push_back(subtree);
    }
    shards_.push_back(std::move(shard));
  }
  tree_ = MakeTreeProgram(all);
}

std::size_t VocabularyShards::most_subtrees() const {
  std::size_t most = 0;
  for (const VocabularyShard& shard : shards_) most = std::max(most, shard.subtrees.size());
  return most;
}

RowPartial ReduceRow(const kernels::Ops& ops, const VocabularyShard& shard,
                     absl::Span<const float> logits, const RowRequest& request,
                     absl::Span<const LogitEdit> edits) {
  using Pick = RowRequest::Pick;
  RowPartial partial = Measure(ops, shard, logits, request.top);
  if (shard.tokens == 0 || request.pick == Pick::kNone) return partial;
  if (request.pick == Pick::kKnown) {
    const std::int64_t at = std::int64_t{request.token} - shard.first_token;
    if (at >= 0 && at < shard.tokens) {
      partial.winner = {request.token, 0};
      partial.logit = logits[at];
    }
    return partial;
  }
  logits = logits.first(static_cast<std::size_t>(shard.tokens));
  const float* drawn_from = logits.data();
  static thread_local std::vector<float> edited;
  if (!edits.empty()) {
    edited.assign(logits.begin(), logits.end());
    EditLogits(edits, shard.first_token, absl::MakeSpan(edited));
    drawn_from = edited.data();
  }
  if (request.pick == Pick::kGreedy) {
    partial.winner = ops.argmax(drawn_from, shard.tokens);
    partial.winner.token += shard.first_token;
  } else {
    partial.winner = ops.gumbel_argmax(drawn_from, shard.tokens,
                                       {.inverse_temperature = request.inverse_temperature,
                                        .key = request.noise,
                                        .first_token = shard.first_token});
  }
  partial.logit = logits[partial.winner.token - shard.first_token];
  return partial;
}

void Append(RowPartial next, RowPartial& row) {
  row.stats.insert(row.stats.end(), next.stats.begin(), next.stats.end());
  // Of equal scores the lowest id wins, and the earlier shards have the lower ids.
  if (next.winner.score > row.winner.score) {
    row.winner = next.winner;
    row.logit = next.logit;
  }
  std::vector<kernels::TokenScore> both;
  both.reserve(row.best.size() + next.best.size());
  std::merge(row.best.begin(), row.best.end(), next.best.begin(), next.best.end(),
             std::back_inserter(both),
             [](const auto& a, const auto& b) { return a.score > b.score; });
  row.best = std::move(both);
}

absl::StatusOr<SampledToken> ConcludeToken(const RowPartial& row,
                                           const VocabularyShards& vocabulary, std::int32_t top) {
  const absl::StatusOr<float> lse = LogSumExpOf(row, vocabulary);
  if (!lse.ok()) return lse.status();
  // The edits left no token, or one of infinite score. The row that they make has no softmax.
  if (!std::isfinite(row.winner.score)) return absl::InternalError("no token can be drawn");
  return SampledToken{
      .token = row.winner.token, .logprob = row.logit - *lse, .top = Best(row, *lse, top)};
}

absl::StatusOr<std::vector<TopLogprob>> ConcludeCandidates(const RowPartial& row,
                                                           const VocabularyShards& vocabulary,
                                                           std::uint32_t count) {
  const absl::StatusOr<float> lse = LogSumExpOf(row, vocabulary);
  if (!lse.ok()) return lse.status();
  return Best(row, *lse, static_cast<std::int32_t>(count));
}

}  // namespace flotilla::worker
