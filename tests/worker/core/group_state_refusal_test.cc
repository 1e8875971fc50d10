// Tests what GroupState refuses: wrong operations one by one, and random ones.
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/core/group_state_fixture.h"

namespace flotilla::worker {
namespace {

using testing::PlanBuilder;

// Operations that a group must refuse. The group has sequence A, which decodes (prompt {1, 2},
// block 1), and sequence B, which is in prefill (prompt {3, 4, 5}, length 1, block 2).
struct Refusal {
  const char* name;
  std::function<void(PlanBuilder&)> write;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class RefusalTest : public GroupStateTest, public ::testing::WithParamInterface<Refusal> {};

TEST_P(RefusalTest, BreaksTheEpoch) {
  plans_.Add(Opened(kA, {1, 2}));
  plans_.Grant(kA, {1});
  plans_.Add(Prefill(kA, 2, true));
  plans_.Add(Opened(kB, {3, 4, 5}));
  plans_.Grant(kB, {2});
  plans_.Add(Prefill(kB, 1, false));
  RunPlan();
  GetParam().write(plans_);
  EXPECT_EQ(state_.Apply(plans_.Take()).status().code(), GetParam().code);
  EXPECT_TRUE(absl::IsFailedPrecondition(state_.Apply(plans_.Take()).status()));
}

OpenSequence Changed(std::function<void(OpenSequence&)> change) {
  OpenSequence open = Opened(kC, {1, 2});
  change(open);
  return open;
}

// Returns a valid fork, except for what the test gives. Block 1 belongs to kA.
ForkSequence Forked(SequenceHandle parent, SequenceHandle child, std::uint32_t length,
                    std::vector<TokenId> tokens) {
  return {.parent = parent,
          .child = child,
          .index = SequenceIndex(1),
          .length = length,
          .tokens = std::move(tokens),
          .copies = {{BlockId(1), BlockId(3)}}};
}

const float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    , RefusalTest,
    ::testing::Values(
        Refusal{"OpenTwice", [](PlanBuilder& p) { p.Add(Opened(kA, {1})); }},
        Refusal{"HandleOutOfRange", [](PlanBuilder& p) { p.Add(Opened(SequenceHandle(4), {1})); }},
        Refusal{"HugeHandle", [](PlanBuilder& p) { p.Add(Opened(SequenceHandle(~0u), {1})); }},
        Refusal{"NoTokens", [](PlanBuilder& p) { p.Add(Opened(kC, {})); }},
        Refusal{"NoPrompt",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.prompt_tokens = 0; })); }},
        Refusal{"PromptBeyondTokens",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.prompt_tokens = 3; })); }},
        Refusal{"BeyondContext",
                [](PlanBuilder& p) { p.Add(Opened(kC, std::vector<TokenId>(25, 1))); }},
        Refusal{"AllCached",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.cached_tokens = 2; })); }},
        Refusal{"NegativeToken", [](PlanBuilder& p) { p.Add(Opened(kC, {-1})); }},
        Refusal{"TokenOutsideVocabulary", [](PlanBuilder& p) { p.Add(Opened(kC, {100})); }},
        Refusal{"MicroBatch", [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.micro_batch = 1; })); }},
        Refusal{"NanTemperature",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.sampling.temperature = kNan; }));
                }},
        Refusal{"NegativeTopK",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.sampling.top_k = -1; })); }},
        Refusal{"ZeroTopP",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.sampling.top_p = 0; })); }},
        Refusal{"NanTopP",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.sampling.top_p = kNan; })); }},
        Refusal{"ZeroRepetitionPenalty",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.sampling.repetition_penalty = 0; }));
                }},
        Refusal{"BiasOutsideVocabulary",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) {
                    o.sampling.logit_bias = {{100, 1}};
                  }));
                }},
        Refusal{"UnsortedBias",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) {
                    o.sampling.logit_bias = {{5, 1}, {5, 2}};
                  }));
                }},
        Refusal{"UnsortedStops",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.stop.stop_tokens = {2, 1}; }));
                }},
        Refusal{"RepeatedStops",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.stop.stop_tokens = {2, 2}; }));
                }},
        Refusal{"TooManyLogprobs",
                [](PlanBuilder& p) { p.Add(Changed([](auto& o) { o.logprobs.output_top = 21; })); }},
        Refusal{"GrantToNobody", [](PlanBuilder& p) { p.Grant(kC, {3}); }},
        Refusal{"GrantNull", [](PlanBuilder& p) { p.Grant(kA, {0}); }},
        Refusal{"GrantOutOfRange", [](PlanBuilder& p) { p.Grant(kA, {20}); }},
        Refusal{"GrantBeyondContext", [](PlanBuilder& p) { p.Grant(kA, {3, 4, 5, 6, 7, 8}); }},
        Refusal{"GrantUnknownGroup",
                [](PlanBuilder& p) {
                  p.Add(GrantBlocks{kA, GroupIndex(1), {BlockId(3)}});
                }},
        Refusal{"DropNobody", [](PlanBuilder& p) { p.Add(DropSequence{kC}); }},
        Refusal{"DropTwice",
                [](PlanBuilder& p) {
                  p.Add(DropSequence{kA});
                  p.Add(DropSequence{kA});
                }},
        Refusal{"DropAfterRun",
                [](PlanBuilder& p) {
                  p.Add(Prefill(kB, 1, false));
                  p.Add(DropSequence{kB});
                }},
        Refusal{"RunNobody", [](PlanBuilder& p) { p.Add(Prefill(kC, 1, false)); }},
        Refusal{"RunPastTokens", [](PlanBuilder& p) { p.Add(Prefill(kB, 3, true)); }},
        Refusal{"RunFarPastTokens", [](PlanBuilder& p) { p.Add(Prefill(kB, ~0u, true)); }},
        Refusal{"SampleTooEarly", [](PlanBuilder& p) { p.Add(Prefill(kB, 1, true)); }},
        Refusal{"RunTwice",
                [](PlanBuilder& p) {
                  p.Add(Prefill(kB, 1, false));
                  p.Add(Prefill(kB, 1, true));
                }},
        Refusal{"PrefillOfDecoder", [](PlanBuilder& p) { p.Add(Prefill(kA, 1, true)); }},
        Refusal{"RunOfNothing", [](PlanBuilder& p) { p.Add(Run{.sequence = kB}); }},
        Refusal{"ChoiceOfFree",
                [](PlanBuilder& p) {
                  p.Add(Run{.sequence = kB, .count = 3, .append = {1}});
                }},
        Refusal{"CandidatesOfFree",
                [](PlanBuilder& p) {
                  p.Add(Run{.sequence = kB, .count = 2, .candidates = 4});
                }},
        Refusal{"SampleOfBeam",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.is_beam = true; }));
                  p.Grant(kC, {3, 4});
                  p.Add(Run{.sequence = kC, .count = 1, .sample = true});
                }},
        Refusal{"TooManyCandidates",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.is_beam = true; }));
                  p.Grant(kC, {3, 4});
                  p.Add(Run{.sequence = kC,
                            .count = 1,
                            .candidates = BeamOptions::kMaxCandidates + 1});
                }},
        Refusal{"AppendOutsideTheVocabulary",
                [](PlanBuilder& p) {
                  p.Add(Changed([](auto& o) { o.is_beam = true; }));
                  p.Grant(kC, {3, 4});
                  p.Add(Run{.sequence = kC, .count = 1, .append = {1000000}});
                }},
        Refusal{"UnaskedPromptLogprobs",
                [](PlanBuilder& p) {
                  p.Add(Run{.sequence = kB, .count = 1, .prompt_logprobs = true});
                }},
        Refusal{"NoBlockBehindPrefill",
                [](PlanBuilder& p) {
                  p.Add(Opened(kC, {1}));
                  p.Add(Prefill(kC, 1, true));
                }},
        Refusal{"NoBlockBehindDecode",
                [](PlanBuilder& p) {
                  p.Add(DropSequence{kA});
                  OpenSequence open = Opened(kA, {1, 2, 3, 4, 5});
                  open.cached_tokens = 3;
                  p.Add(open);
                  p.Grant(kA, {1});
                  p.Add(Prefill(kA, 2, true));
                }},
        Refusal{"DeferOfPrefill", [](PlanBuilder& p) { p.Add(Defer{kB}); }},
        Refusal{"DeferTwice",
                [](PlanBuilder& p) {
                  p.Add(Defer{kA});
                  p.Add(Defer{kA});
                }},
        Refusal{"TooManyRows",
                [](PlanBuilder& p) {
                  p.Add(Opened(kC, std::vector<TokenId>(16, 1)));
                  p.Grant(kC, {3, 4, 5, 6});
                  p.Add(Prefill(kC, 16, true));
                }},
        Refusal{"ForkOntoOpen", [](PlanBuilder& p) { p.Add(Forked(kA, kB, 1, {1})); }},
        Refusal{"ForkOfNobody", [](PlanBuilder& p) { p.Add(Forked(kC, SequenceHandle(3), 1, {1})); }},
        Refusal{"ForkOfNothing", [](PlanBuilder& p) { p.Add(Forked(kA, kC, 0, {1, 2})); }},
        Refusal{"ForkBeyondItsParent", [](PlanBuilder& p) { p.Add(Forked(kA, kC, 9, {1})); }},
        Refusal{"ForkWithoutTokens", [](PlanBuilder& p) { p.Add(Forked(kA, kC, 1, {})); }},
        Refusal{"ForkOfAStrangeToken", [](PlanBuilder& p) { p.Add(Forked(kA, kC, 1, {-1})); }},
        Refusal{"ForkWithoutCopy",
                [](PlanBuilder& p) {
                  ForkSequence fork = Forked(kA, kC, 1, {1});
                  fork.copies.clear();
                  p.Add(fork);
                }},
        Refusal{"ForkWithTwoCopies",
                [](PlanBuilder& p) {
                  ForkSequence fork = Forked(kA, kC, 1, {1});
                  fork.copies.push_back(fork.copies[0]);
                  p.Add(fork);
                }},
        Refusal{"ForkOfAnothersBlock",
                [](PlanBuilder& p) {
                  ForkSequence fork = Forked(kA, kC, 1, {1});
                  fork.copies[0].from = BlockId(2);
                  p.Add(fork);
                }},
        Refusal{"CopyToNull",
                [](PlanBuilder& p) {
                  ForkSequence fork = Forked(kA, kC, 1, {1});
                  fork.copies[0].to = kNullBlock;
                  p.Add(fork);
                }},
        Refusal{"ForkToAMicroBatchThatIsNot",
                [](PlanBuilder& p) {
                  ForkSequence fork = Forked(kA, kC, 1, {1});
                  fork.micro_batch = 1;
                  p.Add(fork);
                }},
        Refusal{"ForkOfRunning",
                [](PlanBuilder& p) {
                  p.Add(Prefill(kB, 1, false));
                  p.Add(Forked(kB, kC, 1, {1}));
                }},
        Refusal{"Pooled",
                [](PlanBuilder& p) {
                  p.Add(Run{.sequence = kB, .count = 1, .pooled = true});
                },
                absl::StatusCode::kUnimplemented},
        Refusal{"CopyWithoutId",
                [](PlanBuilder& p) {
                  p.Add(BackgroundCopy{.id = 0, .moves = {{BlockId(1), 0}}});
                }},
        Refusal{"CopyToATierThatIsNot",
                [](PlanBuilder& p) {
                  p.Add(BackgroundCopy{.id = 1, .moves = {{BlockId(1), 0}}});
                }},
        Refusal{"LoadAdapter", [](PlanBuilder& p) { p.Add(LoadAdapter{"a"}); },
                absl::StatusCode::kUnimplemented},
        Refusal{"UnloadAdapter", [](PlanBuilder& p) { p.Add(UnloadAdapter{"a"}); },
                absl::StatusCode::kUnimplemented}),
    [](const auto& info) { return std::string(info.param.name); });

// The handle that the fuzz test uses for beams.
constexpr SequenceHandle kBeam(3);

// Adds an operation that suits the sequence as it was after the last step.
void AddSensible(PlanBuilder& plans, const GroupState& state, SequenceHandle sequence,
                 const std::function<std::uint32_t(std::uint32_t)>& below) {
  const std::optional<SequenceView> view = state.View(sequence);
  if (!view) {
    OpenSequence open = Opened(sequence, std::vector<TokenId>(1 + below(8), 1));
    open.is_beam = sequence == kBeam;
    open.stop.max_tokens = below(8);
    plans.Add(open);
    plans.Grant(sequence, {1 + below(19), 1 + below(19), 1 + below(19)});
  } else if (view->length < view->tokens.size() && !view->decoding) {
    const auto left = static_cast<std::uint32_t>(view->tokens.size()) - view->length;
    const std::uint32_t count = 1 + below(left);
    Run run = Prefill(sequence, count, count == left && sequence != kBeam);
    if (count == left && sequence == kBeam) run.candidates = 1 + below(8);
    plans.Add(run);
  } else if (view->finished || below(6) == 0) {
    plans.Add(DropSequence{sequence});
  } else if (sequence == kBeam) {
    plans.Add(Run{.sequence = sequence, .count = 1, .append = {3}, .candidates = 1 + below(8)});
  } else if (below(4) == 0) {
    ForkSequence fork{.parent = sequence,
                      .child = SequenceHandle(below(4)),
                      .index = SequenceIndex(1),
                      .length = 1 + below(view->length),
                      .tokens = std::vector<TokenId>(1 + below(3), 2)};
    if (fork.length % 4 > 0) {
      const std::int32_t last = view->tables[0][fork.length / 4];
      fork.copies = {{BlockId(static_cast<std::uint32_t>(last)), BlockId(1 + below(19))}};
    }
    plans.Add(fork);
  }
}

// Adds an operation with random arguments, most often a wrong one.
void AddRandom(PlanBuilder& plans, const std::function<std::uint32_t(std::uint32_t)>& below) {
  const SequenceHandle sequence(below(5));
  switch (below(6)) {
    case 0: {
      OpenSequence open = Opened(sequence, std::vector<TokenId>(below(30), 1));
      open.micro_batch = below(4);
      open.cached_tokens = below(9);
      plans.Add(open);
      break;
    }
    case 1:
      plans.Grant(sequence, {below(22), 1 + below(19)});
      break;
    case 2:
      plans.Add(DropSequence{sequence});
      break;
    case 3:
      plans.Add(Defer{sequence});
      break;
    case 4:
      plans.Add(ForkSequence{.parent = sequence,
                             .child = SequenceHandle(below(5)),
                             .index = SequenceIndex(1),
                             .length = below(9),
                             .tokens = {1},
                             .copies = {{BlockId(below(22)), BlockId(1)}}});
      break;
    default:
      plans.Add(Run{.sequence = sequence, .count = below(9), .sample = below(2) == 0});
  }
}

// Checks the promises of every batch, then completes it.
void CheckAndComplete(GroupState& state, const Batch& batch, TokenId token) {
  std::uint32_t row = 0;
  std::vector<ItemOutput> outputs(batch.items.size());
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    ASSERT_EQ(item.row_begin, row);
    row += item.row_count;
    ASSERT_GE(batch.table(i, GroupIndex(0)).size() * 4, item.first_position + item.row_count);
    if (item.samples) outputs[i].sampled = {SampledToken{.token = token}};
    if (item.candidates > 0) outputs[i].candidates = {{token, -1.0f}};
  }
  ASSERT_EQ(batch.tokens.size(), row);
  const absl::StatusOr<StepResult> result = state.Complete(batch.step, outputs);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->sequences.size(), batch.items.size() + batch.noops.size());
}

// Random plans are refused or applied, and never do anything worse. One operation in 16 ignores the
// state.
TEST(GroupStateFuzz, HostilePlans) {
  const unsigned seed = 20240607;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  int applied = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    GroupState state(kEpoch, Limits(1 + below(3)));
    PlanBuilder plans(kEpoch);
    for (int step = 0; step < 30; ++step) {
      for (std::uint32_t b = 0; b < 4; ++b) {
        if (below(16) == 0) {
          AddRandom(plans, below);
        } else if (below(2) == 0) {
          AddSensible(plans, state, SequenceHandle(b), below);
        }
      }
      const absl::StatusOr<Batch> batch = state.Apply(plans.Take());
      ++(batch.ok() ? applied : refused);
      if (!batch.ok()) break;
      ASSERT_NO_FATAL_FAILURE(CheckAndComplete(state, *batch, TokenId(below(100))));
    }
  }
  EXPECT_GT(applied, 60000);
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace flotilla::worker
