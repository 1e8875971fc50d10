// Broken and hostile bytes from the other end of a worker group's stream: refused
// or understood, never a crash, with memory in proportion to the message; what is
// understood can be said again.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "proto/codec/group.h"
#include "proto/codec/plan.h"
#include "proto/codec/result.h"
#include "tests/proto/codec/random_values.h"
#include "tests/support/allocations.h"
#include "worker/core/group_state.h"

namespace flotilla::codec {
namespace {

int Count() { return std::getenv("FLOTILLA_LONG") != nullptr ? 500'000 : 20'000; }

std::string Mutate(std::string bytes, RandomValues& random) {
  for (std::size_t edits = 1 + random.Below(3); edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = random.Below(bytes.size());
    switch (random.Below(5)) {
      case 0:
        bytes[at] ^= static_cast<char>(1u << random.Below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.Below(256));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, 1 + random.Below(10), static_cast<char>(random.Below(256)));
        break;
      case 4:
        bytes.insert(at, bytes.substr(random.Below(bytes.size()), 1 + random.Below(32)));
        break;
    }
  }
  return bytes;
}

// What became of `count` mutations of messages that `make` makes; `check` sees
// every value that was understood.
template <class Proto, class Make, class Check>
void Mutations(const char* what, std::uint64_t seed, const Make& make, const Check& check) {
  const google::protobuf::LogSilencer quiet;
  RandomValues random(seed);
  int parsed = 0, passed = 0;
  double most = 0;  // bytes allocated per byte of a message
  for (int i = 0; i < Count(); ++i) {
    Proto proto;
    ToProto(make(random), &proto);
    const std::string bytes = Mutate(proto.SerializeAsString(), random);
    const testing::AllocationCount allocated;
    Proto broken;
    if (!broken.ParseFromString(bytes)) continue;
    ++parsed;
    const auto value = FromProto(broken);
    const std::size_t taken = allocated.bytes();
    ASSERT_LE(taken, (16u << 10) + 300 * bytes.size()) << what << " mutation " << i;
    most = std::max(most, static_cast<double>(taken) / static_cast<double>(bytes.size() + 64));
    if (!value.ok()) {
      ASSERT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_NE(value.status().message().find(": "), std::string::npos) << value.status();
      continue;
    }
    ++passed;
    Proto again;
    ToProto(*value, &again);
    const auto back = FromProto(again);
    ASSERT_TRUE(back.ok() && *back == *value) << what << " mutation " << i;
    check(*value);
  }
  ::testing::Test::RecordProperty(
      absl::StrCat("mutated ", what, "; parsed; understood; bytes allocated per byte"),
      absl::StrCat(Count(), "; ", parsed, "; ", passed, "; ", static_cast<int>(most)));
  // The mutations reach every stage.
  EXPECT_GT(parsed, Count() / 20);
  EXPECT_GT(passed, Count() / 100);
  EXPECT_LT(passed, parsed);
}

// What is understood may still be nonsense: the ranks' state machine refuses it.
void ApplyToGroup(const GroupCommand& command) {
  const auto* plan = std::get_if<StepPlan>(&command);
  if (plan == nullptr) return;
  ExecutorDescription description;
  description.vocab_size = 1 << 30;
  description.max_context = 1 << 20;
  description.groups = {KvGroup{.tokens_per_block = 16}};
  description.block_count = 1 << 20;
  description.max_sequences = 8;
  description.max_step_tokens = 1 << 10;
  worker::GroupState state(plan->epoch, description);
  StepPlan first = *plan;
  first.step = Step(1);
  EXPECT_FALSE(state.Apply(first).ok() && !plan->ops.empty() && plan->digest == 0);
}

TEST(WorkerMutation, Commands) {
  Mutations<v1::GroupCommand>(
      "commands", 20250301, [](RandomValues& random) { return random.Command(); }, ApplyToGroup);
}

TEST(WorkerMutation, Events) {
  Mutations<v1::GroupEvent>(
      "events", 20250302, [](RandomValues& random) { return random.Event(); },
      [](const GroupEvent&) {});
}

// Counts that promise far more than the message has.
TEST(WorkerMutation, PromisedSizesAllocateNothing) {
  v1::StepPlan plan;
  plan.mutable_ops()->push_back(v1::StepPlan::kGrantsFieldNumber);
  plan.mutable_grants()->add_sequences(1);
  plan.mutable_grants()->add_counts(~0u);
  v1::StepResult result;
  for (int i = 0; i < 3; ++i) {
    result.add_sequences(1);
    result.add_token_counts(~0u);
    result.add_prompt_counts(1u << 31);
  }
  const testing::AllocationCount allocated;
  EXPECT_FALSE(FromProto(plan).ok());
  EXPECT_FALSE(FromProto(result).ok());
  EXPECT_LT(allocated.bytes(), 4096u);
}

}  // namespace
}  // namespace flotilla::codec
