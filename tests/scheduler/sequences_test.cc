// Requests with several sequences: shared blocks, copies on write, preemption as
// a whole, and beams by block-table operations alone.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using PlanRun = flotilla::Run;  // ::testing::Test has a Run of its own

ExecutorDescription SequencesGroup(std::uint32_t block_tokens, std::uint32_t blocks) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.groups[0].tokens_per_block = block_tokens;
  group.block_count = blocks + 1;
  return group;
}

// Returns the tokens of each sequence, as the events gave them.
std::map<std::uint32_t, std::vector<TokenId>> TokensBySequence(CoreHarness& harness,
                                                               std::uint64_t id) {
  std::map<std::uint32_t, std::vector<TokenId>> tokens;
  for (const EngineEvent& event : harness.events[id]) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      tokens[token->sequence.value()].push_back(token->sampled.token);
    }
  }
  return tokens;
}

std::vector<SequenceEnd> SequenceEnds(CoreHarness& harness, std::uint64_t id) {
  std::vector<SequenceEnd> ends;
  for (const EngineEvent& event : harness.events[id]) {
    if (const auto* end = std::get_if<SequenceEnd>(&event)) ends.push_back(*end);
  }
  return ends;
}

TEST(Sequences, ShareThePromptAndCopyItsLastBlock) {
  CoreHarness harness({.prefix_cache = false}, SequencesGroup(4, 100));
  TokenizedRequest request = CoreHarness::Request(1, 11, 6);
  request.sequences = 3;
  harness.core.Submit(0, request);
  harness.Plan();
  // The prompt is computed once, by the first sequence.
  EXPECT_THAT(CoreHarness::OpsOf<OpenSequence>(harness.plans[0]), SizeIs(1));
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 3u);
  harness.Plan();
  // The others know ten of its positions: two blocks are shared, the third is
  // copied, and they run the last token of the prompt themselves.
  const auto forks = CoreHarness::OpsOf<ForkSequence>(harness.plans[1]);
  ASSERT_THAT(forks, SizeIs(2));
  for (const ForkSequence& fork : forks) {
    EXPECT_EQ(fork.length, 10u);
    EXPECT_THAT(fork.tokens, ElementsAre(request.prompt[10]));
    EXPECT_THAT(fork.copies, SizeIs(1));
  }
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 5u);
  EXPECT_EQ(harness.core.Snapshot().counters.block_copies, 2u);
  while (!harness.plans.empty()) harness.Answer();
  harness.RunAll();
  const auto tokens = TokensBySequence(harness, 1);
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_THAT(tokens.at(i), SizeIs(6));
    for (std::uint32_t at = 0; at < 6; ++at) {
      EXPECT_EQ(tokens.at(i)[at],
                testing::FakeToken(SequenceSeed(1, SequenceIndex(i)), SequenceIndex(0), at, 1000));
    }
  }
  EXPECT_EQ(harness.EndOf(1)->usage.output_tokens, 18u);
  EXPECT_EQ(harness.core.Snapshot().counters.prefill_tokens, 13u);  // 11, and twice the last
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
}

TEST(Sequences, OneThatEndsLeavesTheOthersTheirBlocks) {
  CoreHarness harness({.prefix_cache = false}, SequencesGroup(4, 100));
  TokenizedRequest request = CoreHarness::Request(1, 11, 20);
  request.sequences = 2;
  harness.core.Submit(0, request);
  for (int i = 0; i < 4; ++i) {
    harness.Plan();
    harness.Answer();
  }
  harness.core.Cancel({.request = request.id, .sequence = SequenceIndex(0), .keep_tokens = 1});
  EXPECT_EQ(harness.core.CheckInvariants(), absl::OkStatus());
  harness.RunAll();
  const std::vector<SequenceEnd> ends = SequenceEnds(harness, 1);
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(ends[1].reason, FinishReason::kLength);
  EXPECT_EQ(harness.EndOf(1)->usage.output_tokens, 21u);
}

// The first sequence ends before another sequence has a block. So another one computes the prompt.
TEST(Sequences, APendingSequenceOutlivesItsParent) {
  CoreHarness harness({.prefix_cache = false}, SequencesGroup(4, 100));
  TokenizedRequest request = CoreHarness::Request(1, 11, 5);
  request.sequences = 3;
  harness.core.Submit(0, request);
  harness.Plan();
  harness.core.Cancel({.request = request.id, .sequence = SequenceIndex(0), .keep_tokens = 0});
  EXPECT_EQ(harness.core.CheckInvariants(), absl::OkStatus());
  harness.Plan();
  while (!harness.plans.empty()) harness.Answer();
  harness.RunAll();
  const auto tokens = TokensBySequence(harness, 1);
  EXPECT_EQ(tokens.count(0), 0u);
  EXPECT_THAT(tokens.at(1), SizeIs(5));
  EXPECT_THAT(tokens.at(2), SizeIs(5));
  EXPECT_EQ(harness.core.Snapshot().counters.forks, 1u);
}

// The first sequence is cancelled while the others fork from it and its last chunk is under way.
// They do not compute the prompt again, so the log-probabilities come from that chunk.
TEST(Sequences, ACancelledOneStillGivesThePromptsLogprobs) {
  CoreHarness harness({.prefix_cache = false}, SequencesGroup(4, 100));
  TokenizedRequest request = CoreHarness::Request(1, 11, 5);
  request.sequences = 3;
  request.logprobs.prompt_top = 0;
  harness.core.Submit(0, request);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  harness.core.Cancel({.request = request.id, .sequence = SequenceIndex(0), .keep_tokens = 0});
  while (!harness.plans.empty()) harness.Answer();
  harness.RunAll();
  std::uint32_t next = 1;
  for (const EngineEvent& event : harness.events[1]) {
    if (const auto* prompt = std::get_if<PromptLogprobs>(&event)) {
      EXPECT_EQ(prompt->first, next);
      next += static_cast<std::uint32_t>(prompt->tokens.size());
    }
  }
  EXPECT_EQ(next, 11u);
  EXPECT_EQ(harness.TokensOf(1), 10u);
}

// The first sequence shares its prompt with another request, and ends before the others have forked
// from it. They find the prompt again, so what is kept for them need not hold it. The harness
// checks that what is kept is there, however few blocks the pool has.
TEST(Sequences, FindAgainWhatOneThatHasEndedShared) {
  for (std::uint32_t blocks = 13; blocks < 30; ++blocks) {
    SCOPED_TRACE(blocks);
    CoreHarness harness({.max_step_tokens = 8,
                         .watermark_blocks = 0,
                         .expected_output_permille = 0,
                         .max_preemptions = 0},
                        SequencesGroup(1, blocks));
    harness.Submit(1, 5, 8);
    harness.Plan();
    harness.Answer();
    TokenizedRequest request = CoreHarness::Request(2, 5, 1);
    request.sequences = 4;
    request.prompt = CoreHarness::Request(1, 5, 1).prompt;
    harness.core.Submit(0, request);
    harness.RunAll();
    EXPECT_EQ(harness.EndOf(2)->status, absl::OkStatus());
    EXPECT_EQ(harness.TokensOf(2), 4u);
  }
}

// The sequences of a request are preempted and resumed together. Afterwards they share the same
// blocks again.
TEST(Sequences, ArePreemptedAndResumedTogether) {
  CoreHarness harness({.watermark_blocks = 0, .expected_output_permille = 0, .prefix_cache = false},
                      SequencesGroup(4, 12));
  harness.Submit(1, 8, 24);
  TokenizedRequest request = CoreHarness::Request(2, 9, 12);
  request.sequences = 2;
  harness.core.Submit(0, request);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 24u);
  EXPECT_EQ(harness.TokensOf(2), 24u);
  const CoreCounters counters = harness.core.Snapshot().counters;
  EXPECT_GE(counters.preemptions, 1u);
  EXPECT_EQ(counters.resumptions, counters.preemptions);
  EXPECT_EQ(counters.forks, 1 + counters.resumptions);
  EXPECT_EQ(harness.EndOf(2)->usage.preemptions, counters.preemptions);
}

TEST(Sequences, ARequestWaitsUntilAllItsSequencesCanRun) {
  CoreHarness harness({.max_seqs = 4}, SequencesGroup(4, 100));
  harness.Submit(1, 4, 30);
  harness.Submit(2, 4, 30);
  TokenizedRequest request = CoreHarness::Request(3, 4, 3);
  request.sequences = 3;
  harness.core.Submit(0, request);
  harness.Plan();
  EXPECT_EQ(harness.core.Snapshot().load.running_requests, 2u);
  harness.core.Cancel({.request = {1, 1}});
  harness.Plan();
  EXPECT_EQ(harness.core.Snapshot().load.running_requests, 2u);
  while (!harness.plans.empty()) harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(3), 9u);
}

TokenizedRequest BeamRequest(std::uint64_t id, std::uint32_t prompt_tokens,
                             std::uint32_t max_tokens, std::uint32_t beams) {
  TokenizedRequest request = CoreHarness::Request(id, prompt_tokens, max_tokens);
  request.beam = BeamOptions{.beams = beams};
  request.sequences = beams;
  return request;
}

TEST(Beams, AreForkedAndDroppedByTheirTables) {
  CoreHarness harness({.prefix_cache = false}, SequencesGroup(4, 100));
  harness.core.Submit(0, BeamRequest(1, 10, 6, 3));
  harness.Plan();
  EXPECT_EQ(CoreHarness::OpsOf<PlanRun>(harness.plans[0])[0].candidates, 6u);
  EXPECT_EQ(harness.Plan(), StallReason::kResults);  // the next tokens are not known yet
  harness.Answer();
  harness.Plan();
  const StepPlan plan = harness.plans[0];
  // The first beam goes on in its sequence, two are forked at the end of the prompt.
  const auto forks = CoreHarness::OpsOf<ForkSequence>(plan);
  ASSERT_THAT(forks, SizeIs(2));
  EXPECT_EQ(forks[0].length, 10u);
  EXPECT_THAT(forks[0].copies, SizeIs(1));
  const auto runs = CoreHarness::OpsOf<PlanRun>(plan);
  ASSERT_THAT(runs, SizeIs(3));
  std::map<SequenceHandle, std::size_t> appended;
  for (const PlanRun& run : runs) appended[run.sequence] = run.append.size();
  EXPECT_EQ(appended[forks[0].parent], 1u);  // this beam gets its token; a fork has its own
  EXPECT_EQ(appended[forks[0].child], 0u);
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 5u);
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
  const std::vector<SequenceEnd> ends = SequenceEnds(harness, 1);
  ASSERT_THAT(ends, SizeIs(3));
  EXPECT_GE(ends[0].score, ends[1].score);
  EXPECT_GE(ends[1].score, ends[2].score);
  EXPECT_THAT(TokensBySequence(harness, 1).at(0), SizeIs(6));
}

// Other sequences decode in every step. Beams run in every second step, because each choice waits
// for a result.
TEST(Beams, NobodyWaitsForThem) {
  CoreHarness harness({}, SequencesGroup(4, 100));
  harness.Submit(1, 4, 12);
  harness.core.Submit(0, BeamRequest(2, 4, 6, 2));
  harness.Plan();
  harness.Plan();
  for (int step = 0; step < 8; ++step) {
    const std::uint32_t before = harness.TokensOf(1);
    harness.Answer();
    EXPECT_EQ(harness.TokensOf(1), before + 1);
    harness.Plan();
  }
  EXPECT_EQ(harness.core.Snapshot().counters.noops, 0u);
}

TEST(Beams, AnAnswerThatNobodyWantsIsLeftOut) {
  CoreHarness harness({}, SequencesGroup(4, 100));
  harness.core.Submit(0, BeamRequest(1, 4, 5, 3));
  harness.Plan();
  harness.core.Cancel({.request = {1, 1}, .sequence = SequenceIndex(1)});
  harness.Answer();
  harness.RunAll();
  const auto tokens = TokensBySequence(harness, 1);
  EXPECT_EQ(tokens.count(1), 0u);
  EXPECT_THAT(tokens.at(0), SizeIs(5));
  EXPECT_THAT(SequenceEnds(harness, 1), SizeIs(3));
  EXPECT_TRUE(harness.EndOf(1)->status.ok());

  harness.core.Submit(0, BeamRequest(2, 4, 5, 2));
  harness.Plan();
  harness.core.Cancel({.request = {1, 2}, .sequence = SequenceIndex(1)});
  harness.core.Cancel({.request = {1, 2}, .sequence = SequenceIndex(0)});
  harness.TakeEvents();
  EXPECT_TRUE(harness.EndOf(2).has_value());
  EXPECT_EQ(harness.core.Snapshot().load.blocks_used, 0u);
}

TEST(Beams, ALostGroupChangesNothing) {
  CoreHarness alone({}, SequencesGroup(4, 100));
  alone.core.Submit(0, BeamRequest(1, 9, 60, 4));
  alone.RunAll();
  CoreHarness harness({}, SequencesGroup(4, 100));
  harness.core.Submit(0, BeamRequest(1, 9, 60, 4));
  for (int i = 0; i < 5; ++i) {
    harness.Plan();
    harness.Answer();
    harness.Plan();
    harness.Restart();
    EXPECT_EQ(harness.core.CheckInvariants(), absl::OkStatus());
    for (int step = 0; step < 2 + i && harness.Plan() == StallReason::kNone; ++step) {
      harness.Answer();
    }
  }
  harness.RunAll();
  EXPECT_EQ(TokensBySequence(harness, 1), TokensBySequence(alone, 1));
}

std::vector<TokenId> Ids(const std::vector<SampledToken>& tokens) {
  std::vector<TokenId> ids;
  for (const SampledToken& token : tokens) ids.push_back(token.token);
  return ids;
}

// A BeamSearch alone, with an invented model of four tokens. The last token ends a hypothesis.
class Search {
 public:
  explicit Search(const BeamOptions& options, std::uint32_t max_tokens)
      : search_(options, {3}, max_tokens, LogprobSpec::kOff), beams_(1) {}

  // `rows` has the candidates of each running beam. Returns the tokens of the next beams.
  std::vector<std::vector<TokenId>> Step(const std::vector<std::vector<TopLogprob>>& rows) {
    std::vector<BeamSearch::Beam> views;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      views.push_back({.outputs = beams_[i], .candidates = rows[i]});
    }
    std::vector<std::vector<SampledToken>> next;
    std::vector<std::vector<TokenId>> tokens;
    for (const BeamSearch::Choice& choice : search_.Step(views)) {
      next.push_back(beams_[choice.parent]);
      next.back().push_back(search_.Output(choice.token, rows[choice.parent]));
      tokens.push_back(Ids(next.back()));
    }
    beams_ = std::move(next);
    return tokens;
  }
  const std::vector<BeamSearch::Hypothesis>& best() const { return search_.best(); }

 private:
  BeamSearch search_;
  std::vector<std::vector<SampledToken>> beams_;
};

TEST(BeamSearch, AnEndBeyondTheBeamsIsOnlyAReserve) {
  Search search({.beams = 2}, 9);
  // The end is only the third best continuation, so it does not count as complete.
  EXPECT_THAT(search.Step({{{0, -1}, {1, -2}, {3, -3}, {2, -4}}}),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(search.best(), IsEmpty());
  // The end is the best continuation, so it is complete. The beams go on with the next ones.
  EXPECT_THAT(search.Step({{{3, -1}, {0, -2}}, {{1, -2}, {0, -9}}}),
              ElementsAre(ElementsAre(0, 0), ElementsAre(1, 1)));
  ASSERT_THAT(search.best(), SizeIs(1));
  EXPECT_THAT(Ids(search.best()[0].tokens), ElementsAre(0, 3));
  EXPECT_EQ(search.best()[0].score, -1.0f);  // (-1 - 1) / 2
  EXPECT_TRUE(search.best()[0].stopped);
}

// There are two complete sequences. early_stopping decides whether the search goes on.
TEST(BeamSearch, EarlyStopping) {
  const auto steps = [](BeamOptions::EarlyStopping early, float worst, float penalty) {
    Search search({.beams = 2, .length_penalty = penalty, .early_stopping = early}, 9);
    search.Step({{{3, -1}, {0, -1.5}, {1, -2}, {2, -9}}});  // one complete: score -1
    return search.Step({{{3, worst}, {0, -1}, {1, -2}}, {{0, -3}, {1, -4}, {2, -5}}}).size();
  };
  using Early = BeamOptions::EarlyStopping;
  // The second sequence has the score (-1.5 - 0.5) / 2 = -1. The best running beam has -2.5 / 2.
  EXPECT_EQ(steps(Early::kTrue, -0.5f, 1), 0u);
  EXPECT_EQ(steps(Early::kFalse, -0.5f, 1), 0u);
  EXPECT_EQ(steps(Early::kNever, -0.5f, 1), 2u);  // at nine tokens it could be -2.5 / 9
  EXPECT_EQ(steps(Early::kNever, -0.5f, -1), 0u);
  // Here the second sequence has (-1.5 - 0.9) / 2, which is still above -2.5 / 2. Without a length
  // penalty it is also above: -2.4 > -2.5.
  EXPECT_EQ(steps(Early::kFalse, -0.9f, 0), 0u);
}

TEST(BeamSearch, LengthEndsEverySequence) {
  Search search({.beams = 2, .length_penalty = 2}, 2);
  search.Step({{{0, -1}, {1, -2}, {2, -3}, {3, -9}}});
  EXPECT_THAT(search.Step({{{0, -1}, {1, -2}}, {{3, -0.5}, {2, -7}}}), IsEmpty());
  ASSERT_THAT(search.best(), SizeIs(2));
  EXPECT_THAT(Ids(search.best()[0].tokens), ElementsAre(0, 0));
  EXPECT_EQ(search.best()[0].score, -0.5f);  // -2 / 2^2
  EXPECT_FALSE(search.best()[0].stopped);
  EXPECT_THAT(Ids(search.best()[1].tokens), ElementsAre(1, 3));
  EXPECT_TRUE(search.best()[1].stopped);
}

}  // namespace
}  // namespace flotilla::scheduler
