// What the scheduler core costs: instructions and thread CPU time of making a plan
// and of applying a result.
//
//   scheduler_benchmark [sequences, default 256] [tokens each, default 8000]
//                       [load: decode (default) or prefill] [prefix cache: on, off
//                       or both (default)] [steps, default 2000]
//
// decode: nothing but decodes. Blocks fill at every 16th step of a sequence; the
// sequences are staggered, so each step has some. prefill: prompts of so many
// tokens in steps of 256 rows, `sequences` open at most, one output each. No prompt
// begins like another: the prefix cache is all cost. For callgrind, all that is
// measured happens in MeasuredPlan and MeasuredApply (scripts/bench_prefix_cache).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "proto/codec/plan.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_executor.h"
#include "tests/support/requests.h"
#include "worker/core/group_state.h"

namespace flotilla::testing {
namespace {

std::int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

struct Times {
  std::vector<std::int64_t> ns;
  void Print(const char* what) {
    std::sort(ns.begin(), ns.end());
    std::int64_t sum = 0;
    for (const std::int64_t one : ns) sum += one;
    const auto us = [](std::int64_t t) { return 1e-3 * static_cast<double>(t); };
    std::printf("  %-6s mean %7.2f us, median %7.2f us, p99 %7.1f us, worst %7.1f us\n", what,
                us(sum) / static_cast<double>(ns.size()), us(ns[ns.size() / 2]),
                us(ns[ns.size() * 99 / 100]), us(ns.back()));
  }
};

// Functions of their own, so that callgrind can tell what is measured from the rest.
[[gnu::noinline]] scheduler::PlanOutcome MeasuredPlan(scheduler::SchedulerCore& core) {
  return core.Plan(0);
}
[[gnu::noinline]] bool MeasuredApply(scheduler::SchedulerCore& core, const StepResult& result) {
  return core.Apply(result).ok();
}

// Plans on the wire.
struct Sizes {
  std::size_t sum = 0, largest = 0;
  int plans = 0;
  void Add(const StepPlan& plan) {
    v1::StepPlan proto;
    codec::ToProto(plan, &proto);
    const std::size_t bytes = proto.ByteSizeLong();
    sum += bytes;
    largest = std::max(largest, bytes);
    ++plans;
  }
  void Print() const {
    std::printf("  wire   mean %7.1f B,  largest %zu B\n",
                static_cast<double>(sum) / std::max(plans, 1), largest);
  }
};

struct Load {
  std::uint32_t sequences = 256;
  std::uint32_t tokens = 8000;  // of each prompt
  bool prefill = false;
  bool prefix_cache = true;
  std::uint32_t steps = 2000;
};

class Bench {
 public:
  explicit Bench(const Load& load) : load_(load) {
    const std::uint32_t rows = load.prefill ? 256 : 4096;
    scheduler::CoreOptions options{.max_seqs = load.sequences,
                                   .max_step_tokens = rows,
                                   .max_chunk_tokens = rows,
                                   .max_queued_requests = 1u << 30,
                                   .max_queued_tokens = 1u << 30,
                                   .prefix_cache = load.prefix_cache};
    description_ = FakeExecutorOptions::DefaultDescription();
    description_.max_context = load.tokens + 2 * load.steps + 64;
    description_.max_sequences = load.sequences + 1;
    description_.max_step_tokens = 8192;
    description_.block_count = load.sequences * (description_.max_context / 16 + 1) + 1;
    core_.emplace(options);
    worker_.emplace(Epoch(1), description_);
    if (!core_->Ready(Epoch(1), description_).ok()) std::abort();
    const std::uint32_t requests =
        load.prefill ? (load.steps + 8) * rows / load.tokens + 1 : load.sequences;
    for (std::uint32_t i = 0; i < requests; ++i) Submit(i);
  }

  void Run() {
    if (!load_.prefill) {
      while (core_->Snapshot().waiting_tokens > 0 || prefilling_) Step(false);
    }
    for (std::uint32_t step = 0; step < load_.steps; ++step) Step(true);
    if (core_->Snapshot().counters.cached_tokens > 0) std::abort();
  }

  void Print() {
    plan_.Print("plan");
    apply_.Print("apply");
    sizes_.Print();
  }

 private:
  // Prompt i begins with i: no two have a block in common.
  void Submit(std::uint32_t i) {
    const std::uint32_t tokens = load_.tokens + (load_.prefill ? 0 : i % 16);
    std::vector<TokenId> prompt = CountingPrompt(i, tokens, 1000, /*step=*/31);
    prompt[1] = static_cast<TokenId>(i / 1000);
    core_->Submit(0, TestRequest({1, i}, std::move(prompt), load_.prefill ? 1 : 2 * load_.steps));
  }

  scheduler::PlanOutcome Plan(bool measured) {
    if (!measured) return core_->Plan(0);
    const std::int64_t start = ThreadCpuNs();
    scheduler::PlanOutcome outcome = MeasuredPlan(*core_);
    plan_.ns.push_back(ThreadCpuNs() - start);
    return outcome;
  }

  void Apply(const StepResult& result, bool measured) {
    const std::int64_t start = ThreadCpuNs();
    const bool good = measured ? MeasuredApply(*core_, result) : core_->Apply(result).ok();
    if (!good) std::abort();
    if (measured) apply_.ns.push_back(ThreadCpuNs() - start);
    core_->TakeEvents();
  }

  void Step(bool measured) {
    scheduler::PlanOutcome outcome = Plan(measured);
    if (outcome.plan.has_value()) {
      if (measured) sizes_.Add(*outcome.plan);
      plans_.push_back(*std::move(outcome.plan));
    }
    if (plans_.size() < 2) return;
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    const worker::Batch batch = worker_->Apply(plan).value();
    prefilling_ = batch.tokens.size() != batch.items.size();
    std::vector<worker::ItemOutput> outputs;
    for (const worker::BatchItem& item : batch.items) {
      outputs.emplace_back();
      if (item.samples) {
        outputs.back().sampled = {
            SampledToken{.token = FakeToken(item.sampling->seed, item.index, item.output_index,
                                            description_.vocab_size)}};
      }
    }
    Apply(worker_->Complete(plan.step, outputs).value(), measured);
  }

  const Load load_;
  ExecutorDescription description_;
  std::optional<scheduler::SchedulerCore> core_;
  std::optional<worker::GroupState> worker_;
  std::deque<StepPlan> plans_;
  bool prefilling_ = true;
  Times plan_, apply_;
  Sizes sizes_;
};

}  // namespace
}  // namespace flotilla::testing

int main(int argc, char** argv) {
  const auto text = [&](int index, const char* fallback) {
    return std::string(argc > index ? argv[index] : fallback);
  };
  const auto number = [&](int index, const char* fallback) {
    return static_cast<std::uint32_t>(std::max(1, std::atoi(text(index, fallback).c_str())));
  };
  flotilla::testing::Load load{.sequences = number(1, "256"),
                               .tokens = number(2, "8000"),
                               .prefill = text(3, "decode") == "prefill",
                               .steps = number(5, "2000")};
  const std::string cache = text(4, "both");
  for (const bool prefix_cache : {false, true}) {
    if (cache != "both" && (cache == "on") != prefix_cache) continue;
    load.prefix_cache = prefix_cache;
    flotilla::testing::Bench bench(load);
    bench.Run();
    std::printf("%s, %u sequences of %u tokens, prefix cache %s\n",
                load.prefill ? "prefill" : "decode", load.sequences, load.tokens,
                prefix_cache ? "on" : "off");
    bench.Print();
  }
}
