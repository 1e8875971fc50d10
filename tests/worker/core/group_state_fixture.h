// What the tests of GroupState share: small limits, short ways to write
// operations, and a state with its plans.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "tests/support/plan_builder.h"
#include "worker/core/group_state.h"

namespace flotilla::worker {

inline constexpr SequenceHandle kA{0}, kB{1}, kC{2};
inline constexpr Epoch kEpoch{7};

// Blocks of 4 tokens, 20 blocks, context 24, vocabulary 100, 4 sequences, 16 rows.
inline ExecutorDescription Limits(std::uint32_t lag = 1) {
  ExecutorDescription limits;
  limits.vocab_size = 100;
  limits.max_context = 24;
  KvGroup group;
  group.tokens_per_block = 4;
  limits.groups = {group};
  limits.block_count = 20;
  limits.max_sequences = 4;
  limits.max_step_tokens = 16;
  limits.lag = lag;
  return limits;
}

inline OpenSequence Opened(SequenceHandle sequence, std::vector<TokenId> tokens) {
  OpenSequence op;
  op.sequence = sequence;
  op.request = {1, sequence.value() + 1};
  op.prompt_tokens = static_cast<std::uint32_t>(tokens.size());
  op.tokens = std::move(tokens);
  return op;
}

inline Run Prefill(SequenceHandle sequence, std::uint32_t count, bool sample) {
  return {.sequence = sequence, .count = count, .sample = sample};
}

// A state and the plans for it; samples tokens 50, 51, ... by output index unless
// told otherwise.
class GroupStateTest : public ::testing::Test {
 protected:
  explicit GroupStateTest(std::uint32_t lag = 1) : state_(kEpoch, Limits(lag)) {}

  Batch Apply() {
    absl::StatusOr<Batch> batch = state_.Apply(plans_.Take());
    EXPECT_TRUE(batch.ok()) << batch.status();
    return *std::move(batch);
  }

  static std::vector<ItemOutput> Outputs(const Batch& batch) {
    std::vector<ItemOutput> outputs(batch.items.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const BatchItem& item = batch.items[i];
      if (item.samples) {
        for (std::uint32_t at = 0; at <= item.drafts; ++at) {
          outputs[i].sampled.push_back(
              {.token = static_cast<TokenId>(50 + item.output_index + at)});
        }
      }
      for (TokenId target : item.prompt_targets) {
        outputs[i].prompt.push_back({.token = target});
      }
    }
    return outputs;
  }

  StepResult Complete(const Batch& batch) {
    absl::StatusOr<StepResult> result = state_.Complete(batch.step, Outputs(batch));
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }

  StepResult RunPlan() { return Complete(Apply()); }

  GroupState state_;
  testing::PlanBuilder plans_{kEpoch};
};

}  // namespace flotilla::worker
