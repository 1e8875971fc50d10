#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {

std::int64_t ThisCpuNs(const worker::Batch& batch) {
  std::int64_t ns = 2'490'000;
  for (const worker::BatchItem& item : batch.items) {
    const std::int64_t first = item.first_position, rows = item.row_count;
    const std::int64_t context = rows * first + rows * (rows + 1) / 2;
    ns += item.decode ? 600'000 * rows + 850 * context : 380'000 * rows + 180 * context;
  }
  return ns;
}

CoreHarness::CoreHarness(const CoreOptions& options, const ExecutorDescription& description,
                         const char* policy)
    : core(options, MakePolicy(policy)), description_(description) {
  Restart();
}

CoreHarness::~CoreHarness() = default;

void CoreHarness::Restart() {
  epoch_ = Epoch(epoch_.value() + 1);
  plans.clear();
  copies_.clear();
  proposer_.emplace(worker::NgramOptions{.min_n = 2, .max_n = 4});
  worker.emplace(epoch_, description_, &*proposer_);
  ASSERT_TRUE(core.Ready(epoch_, description_).ok());
}

TokenizedRequest CoreHarness::Request(std::uint64_t id, std::uint32_t prompt_tokens,
                                      std::uint32_t max_tokens) {
  return testing::TestRequest({1, id}, testing::CountingPrompt(id * 31, prompt_tokens), max_tokens);
}

void CoreHarness::Submit(std::uint64_t id, std::uint32_t prompt_tokens, std::uint32_t max_tokens) {
  core.Submit(now_ns, Request(id, prompt_tokens, max_tokens));
  TakeEvents();
}

StallReason CoreHarness::Plan() {
  PlanOutcome outcome = core.Plan(now_ns);
  TakeEvents();
  CheckInvariants();
  if (outcome.plan) plans.push_back(*std::move(outcome.plan));
  return outcome.stall;
}

StepResult CoreHarness::Answer() {
  const StepPlan plan = std::move(plans.front());
  plans.pop_front();
  absl::StatusOr<worker::Batch> batch = worker->Apply(plan);
  EXPECT_TRUE(batch.ok()) << batch.status();
  std::vector<worker::ItemOutput> outputs;
  for (const worker::BatchItem& item : batch->items) {
    worker::ItemOutput& output = outputs.emplace_back();
    for (std::uint32_t at = 0; item.samples && at <= item.drafts; ++at) {
      output.sampled.push_back({.token = token_of(item, item.output_index + at)});
    }
    // The candidates of an invented model: tokens after the last token.
    const std::uint32_t candidates = std::min(item.candidates, most_candidates);
    for (std::uint32_t i = 0; i < candidates; ++i) {
      const TokenId last = batch->tokens[item.row_begin + item.row_count - 1];
      output.candidates.push_back({static_cast<TokenId>((last + 1 + i * i) % 1000),
                                   -0.25f * static_cast<float>(i * i + 1)});
    }
    if (mask_of != nullptr && item.is_constrained()) {
      if (const std::optional<std::string> trouble = mask_of(item)) {
        output.sampled.clear();
        output.candidates.clear();
        output.failed = !trouble->empty() && !(no_token && item.candidates > 0);
        output.refused = *trouble;
        output.is_overload = output.failed && no_room;
      }
    }
    for (const TokenId target : item.prompt_targets) output.prompt.push_back({.token = target});
  }
  StartCopies(*batch);
  const auto rows = static_cast<std::uint32_t>(batch->tokens.size());
  const std::int64_t took = batch_ns  ? batch_ns(*batch)
                            : step_ns ? step_ns(rows - batch->decode_rows, batch->decode_rows)
                                      : 0;
  now_ns += took;
  // A plan without rows is sent to learn of a copy's end.
  if (rows == 0 && !copies_.empty()) now_ns = std::max(now_ns, copies_.front().end_ns);
  StepResult result = worker->Complete(plan.step, outputs, CopiesDone()).value();
  result.timings.rows = rows;
  result.timings.decode_rows = batch->decode_rows;
  result.timings.compute_ns = took;
  EXPECT_EQ(core.Apply(result), absl::OkStatus());
  TakeEvents();
  CheckInvariants();
  return result;
}

void CoreHarness::RunAll(int max_steps) {
  while (max_steps-- > 0 && Plan() == StallReason::kNone) Answer();
  ASSERT_GT(max_steps, 0);
}

void CoreHarness::TakeEvents() {
  for (EngineEvent& event : core.TakeEvents()) {
    events[EventKey(event).first.counter].push_back(std::move(event));
  }
}

std::uint32_t CoreHarness::TokensOf(std::uint64_t id) {
  std::uint32_t tokens = 0;
  for (const EngineEvent& event : events[id]) tokens += std::holds_alternative<TokenEvent>(event);
  return tokens;
}

std::optional<FinishReason> CoreHarness::ReasonOf(std::uint64_t id) {
  for (const EngineEvent& event : events[id]) {
    if (const auto* end = std::get_if<SequenceEnd>(&event)) return end->reason;
  }
  return std::nullopt;
}

std::optional<RequestEnd> CoreHarness::EndOf(std::uint64_t id) {
  for (const EngineEvent& event : events[id]) {
    if (const auto* end = std::get_if<RequestEnd>(&event)) return *end;
  }
  return std::nullopt;
}

void CoreHarness::CheckInvariants() {
  if (++checkpoints_ > 500 && checkpoints_ % 17 != 0) return;
  EXPECT_EQ(core.CheckInvariants(), absl::OkStatus());
}

void CoreHarness::StartCopies(const worker::Batch& batch) {
  for (const BackgroundCopy& copy : batch.background) {
    const KvTier& tier = description_.tiers[copy.tier];
    const std::int64_t block_ns =
        copy.kind == BackgroundCopy::Kind::kOut ? tier.out_ns_per_block : tier.in_ns_per_block;
    link_free_ns_ = copies_take_time ? std::max(link_free_ns_, now_ns) +
                                           block_ns * static_cast<std::int64_t>(copy.moves.size())
                                     : 0;
    copies_.push_back({.id = copy.id, .end_ns = link_free_ns_});
  }
}

std::vector<std::uint64_t> CoreHarness::CopiesDone() {
  std::vector<std::uint64_t> done;
  for (; !copies_.empty() && copies_.front().end_ns <= now_ns; copies_.pop_front()) {
    done.push_back(copies_.front().id);
  }
  return done;
}

}  // namespace flotilla::scheduler
