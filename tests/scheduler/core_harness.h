// CoreHarness: joins a SchedulerCore and a GroupState, so that a test decides when plans are made,
// run and answered. Tokens come from FakeToken. If the description allows draft tokens, an
// NgramProposer makes them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_executor.h"
#include "tests/support/requests.h"
#include "worker/core/group_state.h"
#include "worker/core/ngram_proposer.h"

namespace flotilla::scheduler {

// The time of a step of SmolLM2-135M on two cores, as `flotilla simulate --machine this-cpu` has
// it.
std::int64_t ThisCpuNs(const worker::Batch& batch);
// What a worker there measures when it has loaded: a prompt of 32 tokens and a decode.
inline constexpr std::int64_t kThisCpuPrefillNs = 460'000, kThisCpuDecodeNs = 2'870'000;

class CoreHarness {
 public:
  CoreHarness(const CoreOptions& options, const ExecutorDescription& description,
              const char* policy = "priority");
  ~CoreHarness();

  // A worker group of the next epoch.
  void Restart();
  Epoch epoch() const { return epoch_; }

  static TokenizedRequest Request(std::uint64_t id, std::uint32_t prompt_tokens,
                                  std::uint32_t max_tokens);

  void Submit(std::uint64_t id, std::uint32_t prompt_tokens, std::uint32_t max_tokens);

  // Makes one plan, which is not run yet. Returns why there is none, or kNone.
  StallReason Plan();

  // Runs the oldest plan and applies its result.
  StepResult Answer();

  // Makes and answers one plan at a time until nothing is left.
  void RunAll(int max_steps = 10'000);

  void TakeEvents();
  std::uint32_t TokensOf(std::uint64_t id);
  std::optional<FinishReason> ReasonOf(std::uint64_t id);
  std::optional<RequestEnd> EndOf(std::uint64_t id);

  template <class Op>
  static std::vector<Op> OpsOf(const StepPlan& plan) {
    std::vector<Op> ops;
    for (const PlanOp& op : plan.ops) {
      if (const auto* one = std::get_if<Op>(&op)) ops.push_back(*one);
    }
    return ops;
  }

  SchedulerCore core;
  std::optional<worker::GroupState> worker;
  std::deque<StepPlan> plans;  // made and not answered
  std::map<std::uint64_t, std::vector<EngineEvent>> events;
  std::int64_t now_ns = 0;
  // The invented model, for tests to change.
  std::function<TokenId(const worker::BatchItem&, std::uint32_t)> token_of =
      [](const worker::BatchItem& item, std::uint32_t output) {
        return testing::FakeToken(item.sampling->seed, item.index, output, 1000);
      };
  // What becomes of the first row that samples or gives candidates, of sequences with constraints:
  // an empty text if its mask is late, a reason if it is refused, and nothing if it is there. Null:
  // all are there.
  std::function<std::optional<std::string>(const worker::BatchItem&)> mask_of;
  bool no_room = false;                 // such reasons are overloads
  bool no_token = false;                // such reasons leave beams without candidates
  std::uint32_t most_candidates = ~0u;  // of a row
  // How long a step of so many prefill and decode rows takes; null: no time.
  std::function<std::int64_t(std::uint32_t prefill_rows, std::uint32_t decode_rows)> step_ns;
  // The same for machines on which context costs time; goes before step_ns.
  std::function<std::int64_t(const worker::Batch&)> batch_ns;
  // False: copies to and from tiers are done with their step. True: a link makes one copy after
  // the other, and each takes as long as the description says.
  bool copies_take_time = false;

 private:
  struct Copying {
    std::uint64_t id;
    std::int64_t end_ns;
  };

  // Checks the core's invariants after each of the first plans and answers, and then, since long
  // loads would spend most of their time here, after every 17th: plans and answers in turn.
  void CheckInvariants();

  void StartCopies(const worker::Batch& batch);
  std::vector<std::uint64_t> CopiesDone();

  const ExecutorDescription description_;
  std::optional<worker::NgramProposer> proposer_;
  Epoch epoch_{0};
  std::deque<Copying> copies_;
  std::int64_t link_free_ns_ = 0;
  std::uint64_t checkpoints_ = 0;
};

}  // namespace flotilla::scheduler
