// What the scheduler core costs in steps of nothing but decodes.
//
//   scheduler_benchmark [sequences, default 256] [tokens each, default 8000]
//
// Prints the median, 99th percentile and worst time of making a plan and of
// applying a result, with and without the prefix cache. Blocks fill at every
// 16th step of a sequence; the sequences are staggered, so each step has some.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <vector>

#include "common/rt/clock.h"
#include "scheduler/core/scheduler_core.h"
#include "worker/core/group_state.h"
#include "worker/fake_executor.h"

namespace flotilla {
namespace {

constexpr int kSteps = 2000;

struct Times {
  std::vector<std::int64_t> ns;
  void Print(const char* what) {
    std::sort(ns.begin(), ns.end());
    std::printf("  %-6s median %7.1f us, p99 %7.1f us, worst %7.1f us\n", what,
                1e-3 * static_cast<double>(ns[ns.size() / 2]),
                1e-3 * static_cast<double>(ns[ns.size() * 99 / 100]),
                1e-3 * static_cast<double>(ns.back()));
  }
};

class Bench {
 public:
  Bench(std::uint32_t sequences, std::uint32_t tokens, bool prefix_cache) {
    CoreOptions options{.max_seqs = sequences,
                        .max_step_tokens = 4096,
                        .max_chunk_tokens = 4096,
                        .max_queued_tokens = 1u << 30,
                        .prefix_cache = prefix_cache};
    description_ = FakeExecutorOptions::DefaultDescription();
    description_.max_context = tokens + 2 * kSteps + 64;
    description_.max_branches = sequences + 1;
    description_.max_step_tokens = 8192;
    description_.block_count = sequences * (description_.max_context / 16 + 1) + 1;
    core_.emplace(options);
    worker_.emplace(Epoch(1), description_);
    if (!core_->Ready(Epoch(1), description_).ok()) std::abort();
    for (std::uint32_t i = 0; i < sequences; ++i) {
      TokenizedRequest request;
      request.id = {1, i};
      for (std::uint32_t t = 0; t < tokens + i % 16; ++t) {
        request.prompt.push_back(static_cast<TokenId>((t * 31 + i) % 1000));
      }
      request.sampling.seed = i;
      request.stop.max_tokens = 2 * kSteps;
      core_->Admit(0, std::move(request));
    }
  }

  // Until every sequence decodes.
  void Prefill() {
    while (core_->Snapshot().waiting_tokens > 0 || prefilling_) Step();
    plan_.ns.clear();
    apply_.ns.clear();
  }

  void Step() {
    const std::int64_t start = clock_.NowNs();
    PlanOutcome outcome = core_->Plan(0);
    plan_.ns.push_back(clock_.NowNs() - start);
    if (outcome.plan.has_value()) plans_.push_back(*std::move(outcome.plan));
    if (plans_.size() < 2) return;
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    const Batch batch = worker_->Apply(plan).value();
    prefilling_ = batch.tokens.size() != batch.items.size();
    std::vector<ItemOutput> outputs;
    for (const BatchItem& item : batch.items) {
      outputs.emplace_back();
      if (item.samples) {
        outputs.back().sampled = {
            SampledToken{.token = FakeToken(item.sampling->seed, item.index, item.output_index,
                                            description_.vocab_size)}};
      }
    }
    const StepResult result = worker_->Complete(plan.step, outputs).value();
    const std::int64_t before = clock_.NowNs();
    if (!core_->Apply(result).ok()) std::abort();
    apply_.ns.push_back(clock_.NowNs() - before);
    core_->TakeEvents();
  }

  void Print() {
    plan_.Print("plan");
    apply_.Print("apply");
  }

 private:
  const SteadyClock clock_;
  ExecutorDescription description_;
  std::optional<SchedulerCore> core_;
  std::optional<GroupState> worker_;
  std::deque<StepPlan> plans_;
  bool prefilling_ = true;
  Times plan_, apply_;
};

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  const auto argument = [&](int index, std::uint32_t fallback) {
    return argc > index ? static_cast<std::uint32_t>(std::max(1, std::atoi(argv[index])))
                        : fallback;
  };
  const std::uint32_t sequences = argument(1, 256), tokens = argument(2, 8000);
  for (const bool prefix_cache : {false, true}) {
    flotilla::Bench bench(sequences, tokens, prefix_cache);
    bench.Prefill();
    for (int step = 0; step < flotilla::kSteps; ++step) bench.Step();
    std::printf("%u sequences of %u tokens, prefix cache %s\n", sequences, tokens,
                prefix_cache ? "on" : "off");
    bench.Print();
  }
}
