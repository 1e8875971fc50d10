#include "tests/support/decode_load.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/support/fake_executor.h"
#include "tests/support/requests.h"

namespace flotilla::testing {

DecodeLoad::DecodeLoad(const DecodeLoadOptions& load) {
  const scheduler::CoreOptions options{.max_seqs = load.sequences,
                                       .max_step_tokens = 4096,
                                       .max_chunk_tokens = 4096,
                                       .max_queued_tokens = 1u << 30,
                                       .prefix_cache = load.prefix_cache};
  // The first sequences decode while the others are prefilled, with at least 2,048 rows a step.
  const auto prefill_steps =
      static_cast<std::uint32_t>(std::uint64_t{load.sequences} * load.tokens / 2048);
  const std::uint32_t outputs = load.steps + prefill_steps + 64;
  description_ = FakeExecutorOptions::DefaultDescription();
  description_.max_context = load.tokens + 16 + outputs;
  description_.max_sequences = load.sequences + 1;
  description_.max_step_tokens = 8192;
  description_.block_count = load.sequences * (description_.max_context / 16 + 1) + 1;
  core_.emplace(options);
  worker_.emplace(Epoch(1), description_);
  if (!core_->Ready(Epoch(1), description_).ok()) std::abort();
  for (std::uint32_t i = 0; i < load.sequences; ++i) {
    core_->Submit(0, TestRequest({1, i}, CountingPrompt(i, load.tokens + i % 16, 1000, /*step=*/31),
                                 outputs));
  }
}

std::optional<StepResult> DecodeLoad::Execute(StepPlan next) {
  plans_.push_back(std::move(next));
  if (plans_.size() < 2) return std::nullopt;
  const StepPlan plan = std::move(plans_.front());
  plans_.pop_front();
  const worker::Batch batch = worker_->Apply(plan).value();
  prefilling_ = batch.tokens.size() != batch.items.size() || core_->Snapshot().waiting_tokens > 0;
  std::vector<worker::ItemOutput> outputs;
  for (const worker::BatchItem& item : batch.items) {
    outputs.emplace_back();
    if (item.samples) {
      outputs.back().sampled = {
          SampledToken{.token = FakeToken(item.sampling->seed, item.index, item.output_index,
                                          description_.vocab_size)}};
    }
  }
  return worker_->Complete(plan.step, outputs).value();
}

void DecodeLoad::Apply(const StepResult& result) {
  if (!core_->Apply(result).ok()) std::abort();
  core_->TakeEvents();
}

void DecodeLoad::Step() {
  scheduler::PlanOutcome outcome = core_->Plan(0);
  if (!outcome.plan.has_value()) std::abort();
  if (const auto result = Execute(*std::move(outcome.plan))) Apply(*result);
}

}  // namespace flotilla::testing
