#include "worker/sampling/row_parts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace flotilla {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t kChunk = kernels::kVocabularyChunk;

RowPart Measure(const kernels::Ops& ops, const VocabularyShard& shard,
                absl::Span<const float> logits, std::int32_t top) {
  RowPart part;
  part.stats.reserve(shard.subtrees.size());
  const float* subtree = logits.data();
  for (const std::int32_t size : shard.subtrees) {
    part.stats.push_back(ops.softmax_stats(subtree, size));
    subtree += size;
  }
  const int size = static_cast<int>(logits.size());
  if (top <= 0) return part;
  part.best.resize(std::min(top, size));
  ops.top_n(logits.data(), size, static_cast<int>(part.best.size()), part.best.data());
  for (kernels::TokenScore& entry : part.best) entry.token += shard.first_token;
  return part;
}

absl::StatusOr<float> LogSumExpOf(const RowPart& row, const VocabularyCut& cut) {
  std::vector<kernels::SoftmaxStats> registers(cut.tree().depth);
  for (const TreeStep& step : cut.tree().steps) {
    registers[step.to] = step.load
                             ? row.stats[step.from]
                             : kernels::MergeStats(registers[step.to], registers[step.to + 1]);
  }
  return RowLogSumExp(registers.front());
}

std::vector<TopLogprob> Best(const RowPart& row, float lse, std::int32_t top) {
  std::vector<TopLogprob> best;
  for (const kernels::TokenScore& entry : row.best) {
    if (static_cast<std::int32_t>(best.size()) == top) break;
    if (entry.score > kMinusInfinity) best.push_back({entry.token, entry.score - lse});
  }
  return best;
}

}  // namespace

VocabularyCut::VocabularyCut(absl::Span<const IndexRange> shards) {
  std::vector<IndexRange> all;
  for (const IndexRange& tokens : shards) {
    VocabularyShard shard{.first_token = static_cast<TokenId>(tokens.begin), .subtrees = {}};
    const IndexRange chunks{tokens.begin / kChunk, (tokens.end + kChunk - 1) / kChunk};
    for (const IndexRange& subtree : CompleteSubtrees(chunks)) {
      const std::uint32_t end = std::min(subtree.end * kChunk, tokens.end);
      shard.subtrees.push_back(static_cast<std::int32_t>(end - subtree.begin * kChunk));
      all.push_back(subtree);
    }
    shards_.push_back(std::move(shard));
  }
  tree_ = MakeTreeProgram(all);
}

std::size_t VocabularyCut::most_subtrees() const {
  std::size_t most = 0;
  for (const VocabularyShard& shard : shards_) most = std::max(most, shard.subtrees.size());
  return most;
}

RowPart SamplePart(const kernels::Ops& ops, const VocabularyShard& shard,
                   absl::Span<const float> logits, const SamplingParams& sampling,
                   const LogprobSpec& logprobs, const TokenPlace& place) {
  RowPart part = Measure(ops, shard, logits, logprobs.output_top);
  const int size = static_cast<int>(logits.size());
  const float* drawn_from = logits.data();
  static thread_local std::vector<float> changed;
  if (ChangesLogits(sampling, place)) {
    changed.assign(logits.begin(), logits.end());
    ChangeLogits(sampling, place, shard.first_token, absl::MakeSpan(changed));
    drawn_from = changed.data();
  }
  if (sampling.temperature < kMinTemperature) {
    part.winner = ops.argmax(drawn_from, size);
    part.winner.token += shard.first_token;
  } else {
    part.winner = ops.gumbel_argmax(drawn_from, size,
                                    {.inverse_temperature = 1.0f / sampling.temperature,
                                     .key = TokenNoise(sampling, place),
                                     .first_token = shard.first_token});
  }
  part.logit = logits[part.winner.token - shard.first_token];
  return part;
}

RowPart LogprobsPart(const kernels::Ops& ops, const VocabularyShard& shard,
                     absl::Span<const float> logits, TokenId token, std::int32_t top) {
  RowPart part = Measure(ops, shard, logits, top);
  const std::int64_t place = std::int64_t{token} - shard.first_token;
  if (place >= 0 && place < static_cast<std::int64_t>(logits.size())) {
    part.winner = {token, 0};
    part.logit = logits[place];
  }
  return part;
}

RowPart CandidatesPart(const kernels::Ops& ops, const VocabularyShard& shard,
                       absl::Span<const float> logits, std::uint32_t count) {
  return Measure(ops, shard, logits, static_cast<std::int32_t>(count));
}

void Append(RowPart next, RowPart& row) {
  row.stats.insert(row.stats.end(), next.stats.begin(), next.stats.end());
  // Of equal ones the lowest id, which the shards before have.
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

absl::StatusOr<SampledToken> ConcludeToken(const RowPart& row, const VocabularyCut& cut,
                                           std::int32_t top) {
  const absl::StatusOr<float> lse = LogSumExpOf(row, cut);
  if (!lse.ok()) return lse.status();
  if (row.winner.score == kMinusInfinity) return absl::InternalError("no token is left to draw");
  return SampledToken{
      .token = row.winner.token, .logprob = row.logit - *lse, .top = Best(row, *lse, top)};
}

absl::StatusOr<std::vector<TopLogprob>> ConcludeCandidates(const RowPart& row,
                                                           const VocabularyCut& cut,
                                                           std::uint32_t count) {
  const absl::StatusOr<float> lse = LogSumExpOf(row, cut);
  if (!lse.ok()) return lse.status();
  return Best(row, *lse, static_cast<std::int32_t>(count));
}

}  // namespace flotilla
