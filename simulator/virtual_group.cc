#include "simulator/virtual_group.h"

#include <algorithm>
#include <utility>

#include "simulator/machine.h"

namespace flotilla::simulator {

VirtualGroup::VirtualGroup(Epoch epoch, const ExecutorDescription& description,
                           const Workload& workload, StepRunner& runner)
    : lag_(description.lag),
      groups_(description.groups),
      tiers_(description.tiers),
      workload_(workload),
      runner_(runner),
      state_(epoch, description) {}

std::optional<std::int64_t> VirtualGroup::NextNs(std::int64_t now_ns) const {
  std::optional<std::int64_t> next;
  if (!computing_.empty()) next = computing_.front().end_ns;
  if (CanStart()) {
    const std::int64_t start = std::max(now_ns, stage_free_ns_);
    next = next.has_value() ? std::min(*next, start) : start;
  }
  return next;
}

absl::StatusOr<std::optional<StepResult>> VirtualGroup::Advance(std::int64_t now_ns) {
  std::optional<StepResult> answer;
  if (!computing_.empty() && computing_.front().end_ns <= now_ns) {
    const Computing done = std::move(computing_.front());
    computing_.pop_front();
    std::vector<std::uint64_t> copies;
    for (; !copies_.empty() && copies_.front().end_ns <= now_ns; copies_.pop_front()) {
      copies.push_back(copies_.front().id);
    }
    absl::StatusOr<StepResult> result = state_.Complete(done.step, done.outputs, copies);
    if (!result.ok()) return result.status();
    result->timings = done.timings;
    answer = *std::move(result);
  }
  if (CanStart() && stage_free_ns_ <= now_ns) {
    if (absl::Status s = Start(now_ns); !s.ok()) return s;
  }
  return answer;
}

// A stage takes its share of the step's time. A result never comes before an earlier one.
absl::Status VirtualGroup::Start(std::int64_t now_ns) {
  const StepPlan plan = std::move(plans_.front());
  plans_.pop_front();
  absl::StatusOr<worker::Batch> batch = state_.Apply(plan);
  if (!batch.ok()) return batch.status();
  const StepShape shape = ShapeOf(*batch, groups_);
  const StepCost cost = runner_.Run(*batch, shape);
  stage_free_ns_ = now_ns + std::max<std::int64_t>(1, cost.ns / static_cast<std::int64_t>(lag_));
  Computing work{.step = plan.step, .end_ns = now_ns + cost.ns, .timings = {}, .outputs = {}};
  StartCopies(*batch, now_ns);
  if (batch->items.empty() && !copies_.empty()) {  // sent to learn of a copy's end
    work.end_ns = std::max(work.end_ns, copies_.front().end_ns);
  }
  if (!computing_.empty()) work.end_ns = std::max(work.end_ns, computing_.back().end_ns + 1);
  work.timings = {.start_ns = now_ns,
                  .compute_ns = cost.ns,
                  .rows = static_cast<std::uint32_t>(shape.rows()),
                  .decode_rows = static_cast<std::uint32_t>(shape.decode_rows)};
  work.outputs.resize(batch->items.size());
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    const worker::BatchItem& item = batch->items[i];
    if (item.candidates > 0) {
      work.outputs[i].candidates = Candidates(item);
    } else if (item.samples) {
      work.outputs[i].sampled = {Sample(item)};
    }
    for (const TokenId token : item.prompt_targets) {
      work.outputs[i].prompt.push_back({.token = token});
    }
  }
  computing_.push_back(std::move(work));
  ++totals_.steps;
  totals_.memory_bound += cost.bound == Bound::kMemory;
  totals_.compute_bound += cost.bound == Bound::kCompute;
  totals_.busy_ns += stage_free_ns_ - now_ns;
  totals_.rows.prefill_rows += shape.prefill_rows;
  totals_.rows.decode_rows += shape.decode_rows;
  return absl::OkStatus();
}

void VirtualGroup::StartCopies(const worker::Batch& batch, std::int64_t now_ns) {
  for (const BackgroundCopy& copy : batch.background) {
    const KvTier& tier = tiers_[copy.tier];
    const std::int64_t block_ns =
        copy.kind == BackgroundCopy::Kind::kOut ? tier.out_ns_per_block : tier.in_ns_per_block;
    link_free_ns_ =
        std::max(link_free_ns_, now_ns) + block_ns * static_cast<std::int64_t>(copy.moves.size());
    copies_.push_back({.id = copy.id, .end_ns = link_free_ns_});
  }
}

// MakeRequest gives each request its index as seed.
SampledToken VirtualGroup::Sample(const worker::BatchItem& item) const {
  return {.token = SimulatedToken(workload_, item.sampling->seed, item.index, item.output_index)};
}

// The best candidate is the token that would be sampled. The others follow it in the vocabulary.
std::vector<TopLogprob> VirtualGroup::Candidates(const worker::BatchItem& item) const {
  std::vector<TopLogprob> candidates;
  const TokenId best = Sample(item).token;
  for (std::uint32_t i = 0; i < item.candidates; ++i) {
    const auto token = (static_cast<std::uint32_t>(best) + i) % kSimulatedVocabulary;
    candidates.push_back({static_cast<TokenId>(token), -0.7f * static_cast<float>(i + 1)});
  }
  return candidates;
}

}  // namespace flotilla::simulator
