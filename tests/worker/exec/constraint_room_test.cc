// When a rank has grammars compiled, and when its steps wait for them. The program that compiles is
// a script that says that it was started and never answers.
#include "worker/exec/constraint_room.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/rt/steady_now.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::worker {
namespace {

class ConstraintRoomTest : public ::testing::Test {
 protected:
  ConstraintRoomTest() {
    const std::string program = scratch_.path() + "/compiler";
    std::ofstream(program) << "#!/bin/sh\n: >" << Began() << "\nexec sleep 600\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    auto file = model::ParseCheckpoint(model_);
    EXPECT_TRUE(file.ok()) << file.status();
    room_.emplace(*std::move(file), program, CompileLimits(), /*micro_batches=*/1, clock_);
    constrained_.constraint = {.kind = Constraint::Kind::kRegex, .text = "a"};
  }

  std::string Began() const { return scratch_.path() + "/began"; }

  // A chunk of a prompt, or its last row, which samples.
  BatchItem Item(std::uint32_t handle, const SamplingParams& sampling, bool samples) const {
    BatchItem item;
    item.sequence = SequenceHandle(handle);
    item.row_begin = handle;
    item.row_count = 1;
    item.samples = samples;
    item.known = known_;
    item.sampling = &sampling;
    item.stop = &stop_;
    return item;
  }

  // Begins a step of these items. Those that sample are items of the masks.
  absl::Duration Begin(std::vector<BatchItem> items) {
    Batch batch;
    batch.items = std::move(items);
    batch.tokens.resize(batch.items.size());
    std::vector<std::size_t> masked;
    for (std::size_t i = 0; i < batch.items.size(); ++i) {
      if (batch.items[i].is_constrained()) masked.push_back(i);
    }
    const absl::Time begun = SteadyNow();
    room_->Begin(batch, masked);
    return SteadyNow() - begun;
  }

  void BeginUntilCompiling(const std::vector<BatchItem>& items) {
    const absl::Time end = SteadyNow() + absl::Seconds(60);
    while (SteadyNow() < end && !std::filesystem::exists(Began())) {
      Begin(items);
      std::this_thread::yield();
    }
    ASSERT_TRUE(std::filesystem::exists(Began()));
  }

  testing::ScratchDirectory scratch_;
  const std::vector<std::byte> model_ = testing::TinyGguf({});
  SteadyClock clock_;
  std::vector<TokenId> known_ = std::vector<TokenId>(3);
  SamplingParams constrained_, plain_;
  StopRule stop_{.max_tokens = 4};
  std::optional<ConstraintRoom> room_;
};

TEST_F(ConstraintRoomTest, GrammarsAreCompiledBesideTheLastChunksOfAPrompt) {
  BeginUntilCompiling({Item(0, constrained_, /*samples=*/false)});
}

TEST_F(ConstraintRoomTest, StepsWaitForGrammarsOnlyIfNobodyRunsBetweenThem) {
  const std::vector<BatchItem> mine = {Item(0, constrained_, /*samples=*/true)};
  const std::vector<BatchItem> others = {Item(1, plain_, /*samples=*/true)};
  BeginUntilCompiling(mine);
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i < 10; ++i) {
    Begin(others);
    least = std::min(least, Begin(mine));
  }
  EXPECT_LT(least, absl::Milliseconds(20));
  EXPECT_GE(Begin(mine), absl::Milliseconds(20));
}

}  // namespace
}  // namespace flotilla::worker
