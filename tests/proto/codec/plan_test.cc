// What goes onto the stream of a worker group comes out of it unchanged, what is
// wrong is named, and plans of nothing but decodes are small.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/codec/group.h"
#include "proto/codec/plan.h"
#include "proto/codec/result.h"
#include "tests/proto/codec/random_values.h"
#include "tests/support/decode_load.h"

namespace flotilla::codec {
namespace {

constexpr int kRounds = 5000;

// Through the bytes, not only through the message.
template <class Proto, class Value>
auto Sent(const Value& value) {
  Proto out, in;
  ToProto(value, &out);
  EXPECT_TRUE(in.ParseFromString(out.SerializeAsString()));
  return FromProto(in);
}

TEST(WorkerCodec, CommandsComeThroughUnchanged) {
  RandomValues random(1);
  std::vector<int> seen(std::variant_size_v<PlanOp>, 0);
  for (int i = 0; i < kRounds; ++i) {
    const GroupCommand command = random.Command();
    const auto back = Sent<v1::GroupCommand>(command);
    ASSERT_TRUE(back.ok()) << back.status() << " round " << i;
    ASSERT_TRUE(*back == command) << "round " << i;
    if (const auto* plan = std::get_if<StepPlan>(&command)) {
      for (const PlanOp& op : plan->ops) ++seen[op.index()];
    }
  }
  for (const int count : seen) EXPECT_GT(count, kRounds / 10);
}

TEST(WorkerCodec, EventsComeThroughUnchanged) {
  RandomValues random(2);
  std::vector<int> seen(std::variant_size_v<GroupEvent>, 0);
  for (int i = 0; i < kRounds; ++i) {
    const GroupEvent event = random.Event();
    const auto back = Sent<v1::GroupEvent>(event);
    ASSERT_TRUE(back.ok()) << back.status() << " round " << i;
    ASSERT_TRUE(*back == event) << "round " << i;
    ++seen[event.index()];
  }
  for (const int count : seen) EXPECT_GT(count, kRounds / 10);
}

// A later release may add fields; they say nothing to this one.
TEST(WorkerCodec, UnknownFieldsAreIgnored) {
  RandomValues random(3);
  for (int i = 0; i < 100; ++i) {
    const StepPlan plan = random.Plan();
    v1::StepPlan proto;
    ToProto(plan, &proto);
    const std::string unknown = "\xc2\xb8\x02\x03xyz";  // field 5000, three bytes
    ASSERT_TRUE(proto.ParseFromString(proto.SerializeAsString() + unknown));
    const auto back = FromProto(proto);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == plan);
  }
}

// One of each operation, then what is wrong with it.
StepPlan OneOfEach() {
  StepPlan plan{.epoch = Epoch(1), .step = Step(1)};
  plan.ops = {OpenSequence{.sequence = SequenceHandle(1), .tokens = {1, 2}, .prompt_tokens = 2},
              GrantBlocks{SequenceHandle(1), GroupIndex(1), {BlockId(5), BlockId(7)}},
              ForkSequence{.parent = SequenceHandle(1),
                           .child = SequenceHandle(2),
                           .length = 1,
                           .tokens = {2},
                           .copies = {{BlockId(5), BlockId(9)}}},
              DropSequence{SequenceHandle(3)},
              Run{.sequence = SequenceHandle(1),
                  .count = 2,
                  .sample = true,
                  .prompt_logprobs = true,
                  .append = {4},
                  .candidates = 3,
                  .pooled = true},
              Defer{SequenceHandle(4)},
              BackgroundCopy{.id = 1, .moves = {{BlockId(1), 2}}},
              LoadAdapter{"a"},
              UnloadAdapter{"b"},
              TrimBlocks{SequenceHandle(1), GroupIndex(1), 2},
              Speculate{SequenceHandle(1), 3},
              ReleaseBlocks{SequenceHandle(1), GroupIndex(1), 2}};
  return plan;
}

struct WrongPlan {
  const char* field;
  std::function<void(v1::StepPlan&)> change;
};

TEST(WorkerCodec, WrongPlansAreRefusedByField) {
  const WrongPlan kWrong[] = {
      {"ops", [](auto& p) { p.mutable_ops()->push_back(99); }},
      {"ops", [](auto& p) { p.mutable_ops()->push_back('\0'); }},
      {"ops", [](auto& p) { p.mutable_ops()->push_back('\xff'); }},
      {"opens", [](auto& p) { p.add_opens(); }},
      {"opens", [](auto& p) { p.clear_opens(); }},
      {"opens.tokens", [](auto& p) { p.mutable_opens(0)->add_tokens(-1); }},
      {"opens.stop_tokens", [](auto& p) { p.mutable_opens(0)->add_stop_tokens(-5); }},
      {"opens.sampling.biased_tokens",
       [](auto& p) { p.mutable_opens(0)->mutable_sampling()->add_biases(1); }},
      {"opens.sampling.top_p",
       [](auto& p) { p.mutable_opens(0)->mutable_sampling()->set_top_p(std::stof("nan")); }},
      {"grants.sequences", [](auto& p) { p.clear_grants(); }},
      {"grants.groups", [](auto& p) { p.mutable_grants()->add_groups(1); }},
      {"grants.counts", [](auto& p) { p.mutable_grants()->set_counts(0, ~0u); }},
      {"grants.counts", [](auto& p) { p.mutable_grants()->add_counts(1); }},
      {"grants.counts", [](auto& p) { p.mutable_grants()->clear_counts(); }},
      {"grants.blocks", [](auto& p) { p.mutable_grants()->set_blocks(0, 0); }},
      {"forks", [](auto& p) { p.add_forks(); }},
      {"forks.tokens", [](auto& p) { p.mutable_forks(0)->add_tokens(-1); }},
      {"forks.copies", [](auto& p) { p.mutable_forks(0)->mutable_copies()->add_to(1); }},
      {"forks.copies", [](auto& p) { p.mutable_forks(0)->mutable_copies()->set_from(0, 0); }},
      {"drops", [](auto& p) { p.add_drops(1); }},
      {"runs.sequences", [](auto& p) { p.clear_runs(); }},
      {"runs.counts", [](auto& p) { p.mutable_runs()->add_counts(1); }},
      {"runs.sample", [](auto& p) { p.mutable_runs()->add_sample(true); }},
      {"runs.prompt_logprobs", [](auto& p) { p.mutable_runs()->add_prompt_logprobs(true); }},
      {"runs.pooled", [](auto& p) { p.mutable_runs()->add_pooled(true); }},
      {"runs.candidates", [](auto& p) { p.mutable_runs()->add_candidates(1); }},
      {"runs.append", [](auto& p) { p.mutable_runs()->set_append(0, -1); }},
      {"runs.append_counts", [](auto& p) { p.mutable_runs()->set_append_counts(0, 2); }},
      {"runs.append_counts", [](auto& p) { p.mutable_runs()->clear_append_counts(); }},
      {"deferred", [](auto& p) { p.clear_deferred(); }},
      {"background_copies.kind", [](auto& p) { p.mutable_background_copies(0)->clear_kind(); }},
      {"background_copies.kind",
       [](auto& p) {
         p.mutable_background_copies(0)->set_kind(static_cast<v1::BackgroundCopy::Kind>(77));
       }},
      {"background_copies.slots", [](auto& p) { p.mutable_background_copies(0)->add_slots(3); }},
      {"background_copies.blocks",
       [](auto& p) { p.mutable_background_copies(0)->set_blocks(0, 0); }},
      {"load_adapters", [](auto& p) { p.add_load_adapters("x"); }},
      {"unload_adapters", [](auto& p) { p.clear_unload_adapters(); }},
      {"trims.sequences", [](auto& p) { p.clear_trims(); }},
      {"trims.groups", [](auto& p) { p.mutable_trims()->add_groups(1); }},
      {"trims.counts", [](auto& p) { p.mutable_trims()->add_counts(1); }},
      {"speculations.sequences", [](auto& p) { p.mutable_speculations()->add_sequences(1); }},
      {"speculations.depths", [](auto& p) { p.mutable_speculations()->add_depths(1); }},
      {"releases.sequences", [](auto& p) { p.clear_releases(); }},
      {"releases.groups", [](auto& p) { p.mutable_releases()->add_groups(1); }},
      {"releases.counts", [](auto& p) { p.mutable_releases()->add_counts(1); }},
  };
  for (const WrongPlan& wrong : kWrong) {
    v1::StepPlan proto;
    ToProto(OneOfEach(), &proto);
    ASSERT_TRUE(*FromProto(proto) == OneOfEach());
    wrong.change(proto);
    const absl::Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.field;
    EXPECT_EQ(status.message().substr(0, status.message().find(':')), wrong.field) << status;
  }
}

StepResult FullResult() {
  StepResult result{.epoch = Epoch(1), .step = Step(1)};
  result.sequences.push_back({.sequence = SequenceHandle(1),
                              .length = 3,
                              .first_output = 1,
                              .tokens = {{.token = 5, .logprob = -1, .top = {{5, -1}, {6, -2}}},
                                         {.token = 6, .logprob = -2}},
                              .drafted = 1,
                              .prompt_first = 1,
                              .prompt = {{.token = 3, .logprob = -3, .top = {{4, -1}}}},
                              .candidates = {{7, -1}},
                              .finished = FinishReason::kStop,
                              .refused = "the grammar is wrong",
                              .noop = true});
  return result;
}

struct WrongResult {
  const char* field;
  std::function<void(v1::StepResult&)> change;
};

TEST(WorkerCodec, WrongResultsAreRefusedByField) {
  const WrongResult kWrong[] = {
      {"lengths", [](auto& r) { r.add_lengths(1); }},
      {"lengths", [](auto& r) { r.clear_sequences(); }},
      {"first_outputs", [](auto& r) { r.add_first_outputs(1); }},
      {"token_counts", [](auto& r) { r.set_token_counts(0, 3); }},
      {"token_counts", [](auto& r) { r.clear_token_counts(); }},
      {"token_counts", [](auto& r) { r.set_token_counts(0, ~0u); }},
      {"tokens", [](auto& r) { r.mutable_tokens()->mutable_tokens()->add_ids(1); }},
      {"tokens", [](auto& r) { r.mutable_tokens()->mutable_tokens()->set_ids(0, -1); }},
      {"tokens.top_counts", [](auto& r) { r.mutable_tokens()->set_top_counts(0, 1); }},
      {"tokens.top_counts", [](auto& r) { r.mutable_tokens()->clear_top_counts(); }},
      {"tokens.tops",
       [](auto& r) { r.mutable_tokens()->mutable_tops()->set_logprobs(0, std::stof("nan")); }},
      {"drafted", [](auto& r) { r.add_drafted(1); }},
      {"prompt_firsts", [](auto& r) { r.add_prompt_firsts(1); }},
      {"prompt_counts", [](auto& r) { r.clear_prompt_counts(); }},
      {"prompt.top_counts", [](auto& r) { r.mutable_prompt()->add_top_counts(1); }},
      {"candidate_counts", [](auto& r) { r.clear_candidate_counts(); }},
      {"candidates", [](auto& r) { r.mutable_candidates()->add_logprobs(1); }},
      {"finished", [](auto& r) { r.set_finished(0, static_cast<v1::StepResult::Finish>(7)); }},
      {"finished", [](auto& r) { r.set_finished(0, static_cast<v1::StepResult::Finish>(-1)); }},
      {"noops", [](auto& r) { r.add_noops(true); }},
      {"refusals", [](auto& r) { r.mutable_refusals(0)->set_row(1); }},
      {"refusals", [](auto& r) { *r.add_refusals() = r.refusals(0); }},
      {"refusals", [](auto& r) { r.mutable_refusals(0)->clear_reason(); }},
      {"refusals", [](auto& r) { r.mutable_refusals(0)->set_reason(std::string(161, 'x')); }},
  };
  for (const WrongResult& wrong : kWrong) {
    v1::StepResult proto;
    ToProto(FullResult(), &proto);
    ASSERT_TRUE(*FromProto(proto) == FullResult());
    wrong.change(proto);
    const absl::Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.field;
    EXPECT_EQ(status.message().substr(0, status.message().find(':')), wrong.field) << status;
  }
}

TEST(WorkerCodec, WrongEnvelopesAreRefusedByField) {
  const auto field = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message().substr(0, status.message().find(':')));
  };
  EXPECT_EQ(field(FromProto(v1::GroupCommand()).status()), "command");
  EXPECT_EQ(field(FromProto(v1::GroupEvent()).status()), "event");
  v1::GroupEvent lost;
  lost.mutable_lost();
  EXPECT_EQ(field(FromProto(lost).status()), "lost.cause");
  v1::GroupEvent ready;
  ready.mutable_ready();
  EXPECT_EQ(field(FromProto(ready).status()), "ready.description.exactness");
  v1::ExecutorDescription& description = *ready.mutable_ready()->mutable_description();
  description.set_exactness(v1::ExecutorDescription::EXACTNESS_BITWISE);
  description.add_groups();
  EXPECT_EQ(field(FromProto(ready).status()), "ready.description.groups.kind");
  description.clear_groups();
  description.add_tiers();
  EXPECT_EQ(field(FromProto(ready).status()), "ready.description.tiers.kind");
}

// What a step of a busy server puts onto the stream. The plan names only sequences
// that take a block, 16 of 256 in the mean.
TEST(WorkerCodec, PlansOfDecodesAreSmall) {
  constexpr std::uint32_t kSteps = 64;  // each sequence fills four blocks
  testing::DecodeLoad load(
      {.sequences = 256, .tokens = 8000, .steps = kSteps, .prefix_cache = false});
  while (load.prefilling()) load.Step();
  std::size_t plans = 0, most_plan = 0, results = 0, most_result = 0;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    StepPlan plan = *load.core().Plan(0).plan;
    v1::StepPlan proto;
    ToProto(plan, &proto);
    ASSERT_TRUE(*FromProto(proto) == plan);
    plans += proto.ByteSizeLong();
    most_plan = std::max(most_plan, proto.ByteSizeLong());
    const StepResult result = *load.Execute(std::move(plan));
    ASSERT_EQ(result.sequences.size(), 256u);
    v1::StepResult answer;
    ToProto(result, &answer);
    ASSERT_TRUE(*FromProto(answer) == result);
    results += answer.ByteSizeLong();
    most_result = std::max(most_result, answer.ByteSizeLong());
    load.Apply(result);
  }
  EXPECT_LE(most_plan, 10'000u);
  EXPECT_LE(most_result, 10'000u);
  RecordProperty("bytes of a plan of 256 decodes: mean; largest",
                 absl::StrCat(plans / kSteps, "; ", most_plan));
  RecordProperty("bytes of its result: mean; largest",
                 absl::StrCat(results / kSteps, "; ", most_result));
}

}  // namespace
}  // namespace flotilla::codec
