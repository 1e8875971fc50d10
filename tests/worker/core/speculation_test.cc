// Tests draft tokens in worker/core: which are taken, where they end, and what is refused. Compares
// the n-gram proposer with a naive search.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core/group_state_fixture.h"
#include "worker/core/ngram_proposer.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A proposer that drafts the test's tokens, and records the requests that it got.
class ScriptedProposer final : public Proposer {
 public:
  void Propose(absl::Span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      limits.push_back(request.limit);
      known = {request.tokens.begin(), request.tokens.end()};
      request.drafts = drafts[request.sequence];
    }
  }
  void Forget(SequenceHandle sequence) override { forgotten.insert(sequence); }

  std::map<SequenceHandle, std::vector<TokenId>> drafts;
  std::vector<std::uint32_t> limits;
  std::vector<TokenId> known;
  std::set<SequenceHandle> forgotten;
};

ExecutorDescription SpeculativeLimits() {
  ExecutorDescription limits = Limits();
  limits.max_draft_tokens = 4;
  return limits;
}

// Output i of every sequence is token 50 + i.
class SpeculationTest : public GroupStateTest {
 protected:
  SpeculationTest() : speculative_(kEpoch, SpeculativeLimits(), &proposer_) {}

  void Start(SequenceHandle sequence, std::vector<TokenId> prompt, std::uint32_t max_tokens,
             std::vector<TokenId> stops = {}) {
    const auto count = static_cast<std::uint32_t>(prompt.size());
    OpenSequence open = Opened(sequence, std::move(prompt));
    open.stop = {std::move(stops), max_tokens};
    plans_.Add(open);
    const std::uint32_t first = 1 + 6 * sequence.value();
    plans_.Grant(sequence, {first, first + 1, first + 2, first + 3, first + 4, first + 5});
    if (count > 16) {  // more than a step takes
      plans_.Add(Prefill(sequence, 16, false));
      Step();
    }
    plans_.Add(Prefill(sequence, count > 16 ? count - 16 : count, true));
  }

  Batch ApplySpeculative() {
    absl::StatusOr<Batch> batch = speculative_.Apply(plans_.Take());
    EXPECT_TRUE(batch.ok()) << batch.status();
    return *std::move(batch);
  }
  StepResult Step() {
    const Batch batch = ApplySpeculative();
    absl::StatusOr<StepResult> result = speculative_.Complete(batch.step, Outputs(batch));
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  // Makes a step in which one sequence decodes.
  SequenceResult Decode() { return Step().sequences.at(0); }

  static std::vector<TokenId> Tokens(const SequenceResult& result) {
    std::vector<TokenId> tokens;
    for (const SampledToken& token : result.tokens) tokens.push_back(token.token);
    return tokens;
  }

  ScriptedProposer proposer_;
  GroupState speculative_;
};

TEST_F(SpeculationTest, DraftTokensCountAsLongAsTheyAreRight) {
  Start(kA, {1, 2}, 20);
  Step();  // samples 50
  plans_.Add(Speculate{kA, 3});
  proposer_.drafts[kA] = {51, 52, 9};
  const Batch batch = ApplySpeculative();
  EXPECT_THAT(batch.tokens, ElementsAre(50, 51, 52, 9));
  EXPECT_EQ(batch.items[0].row_count, 4u);
  EXPECT_EQ(batch.items[0].drafts, 3u);
  EXPECT_EQ(batch.decode_rows, 4u);
  EXPECT_THAT(proposer_.known, ElementsAre(1, 2, 50));
  EXPECT_EQ(speculative_.View(kA)->length, 6u);
  const SequenceResult result =
      speculative_.Complete(batch.step, Outputs(batch)).value().sequences.at(0);
  // Row 2 had the right token, so its sample counts. Row 3 had a wrong one.
  EXPECT_THAT(Tokens(result), ElementsAre(51, 52, 53));
  EXPECT_EQ(result.first_output, 1u);
  EXPECT_EQ(result.length, 5u);
  EXPECT_EQ(result.drafted, 3u);
  EXPECT_EQ(speculative_.View(kA)->length, 5u);
  EXPECT_THAT(speculative_.View(kA)->tokens, ElementsAre(1, 2, 50, 51, 52, 53));
  // The next row takes the position of the wrong draft token.
  proposer_.drafts[kA] = {};
  const Batch next = ApplySpeculative();
  EXPECT_EQ(next.items[0].first_position, 5u);
  EXPECT_THAT(next.tokens, ElementsAre(53));
}

TEST_F(SpeculationTest, AllRightAndAllWrong) {
  Start(kA, {1}, 20);
  Step();
  plans_.Add(Speculate{kA, 2});
  proposer_.drafts[kA] = {51, 52};
  EXPECT_THAT(Tokens(Decode()), ElementsAre(51, 52, 53));
  proposer_.drafts[kA] = {9, 55};  // 55 would be right if 54 came before it
  const SequenceResult wrong = Decode();
  EXPECT_THAT(Tokens(wrong), ElementsAre(54));
  EXPECT_EQ(wrong.length, 5u);
  plans_.Add(Speculate{kA, 0});
  EXPECT_THAT(Tokens(Decode()), ElementsAre(55));
  EXPECT_THAT(proposer_.limits, ElementsAre(2, 2));
}

TEST_F(SpeculationTest, NothingFollowsAStopToken) {
  Start(kA, {1}, 20, {52});
  Step();
  plans_.Add(Speculate{kA, 4});
  proposer_.drafts[kA] = {51, 52, 53, 54};
  const SequenceResult result = Decode();
  EXPECT_THAT(Tokens(result), ElementsAre(51, 52));
  EXPECT_EQ(result.finished, FinishReason::kStop);
  EXPECT_EQ(result.length, 3u);
  EXPECT_TRUE(Decode().noop);
}

TEST_F(SpeculationTest, DraftTokensEndAtMaxTokens) {
  Start(kA, {1}, 4);
  Step();  // output 0; three are left, so two may be drafted
  plans_.Add(Speculate{kA, 4});
  proposer_.drafts[kA] = {51, 52, 53, 54};
  const SequenceResult result = Decode();
  EXPECT_THAT(proposer_.limits, ElementsAre(2));
  EXPECT_EQ(result.drafted, 2u);
  EXPECT_THAT(Tokens(result), ElementsAre(51, 52, 53));
  EXPECT_EQ(result.finished, FinishReason::kLength);
  EXPECT_TRUE(Decode().noop);
}

TEST_F(SpeculationTest, TheLastTokenIsNotDrafted) {
  Start(kA, {1}, 2);
  Step();
  plans_.Add(Speculate{kA, 4});
  EXPECT_THAT(Tokens(Decode()), ElementsAre(51));
  EXPECT_THAT(proposer_.limits, IsEmpty());
}

TEST_F(SpeculationTest, DraftTokensEndWithTheContext) {
  Start(kA, std::vector<TokenId>(20, 1), 20);
  Step();  // 21 of 24 tokens
  plans_.Add(Speculate{kA, 4});
  proposer_.drafts[kA] = {51, 52, 53, 54};
  const SequenceResult result = Decode();
  EXPECT_THAT(proposer_.limits, ElementsAre(2));
  EXPECT_THAT(Tokens(result), ElementsAre(51, 52, 53));
  EXPECT_EQ(result.finished, FinishReason::kLength);
}

TEST_F(SpeculationTest, EachSequenceHasItsOwn) {
  Start(kA, {1}, 20);
  Start(kB, {2}, 20);
  Start(kC, {3}, 20);
  Step();
  plans_.Add(Speculate{kA, 1});
  plans_.Add(Speculate{kC, 2});
  proposer_.drafts[kA] = {51};
  proposer_.drafts[kC] = {9, 9};
  const Batch batch = ApplySpeculative();
  EXPECT_THAT(batch.tokens, ElementsAre(50, 51, 50, 50, 9, 9));
  const StepResult result = speculative_.Complete(batch.step, Outputs(batch)).value();
  EXPECT_THAT(Tokens(result.sequences[0]), ElementsAre(51, 52));
  EXPECT_THAT(Tokens(result.sequences[1]), ElementsAre(51));
  EXPECT_THAT(Tokens(result.sequences[2]), ElementsAre(51));
}

TEST_F(SpeculationTest, ADraftTokenWithoutASoftmaxEndsNothing) {
  Start(kA, {1}, 20);
  Step();
  plans_.Add(Speculate{kA, 3});
  proposer_.drafts[kA] = {51, 52, 53};
  const Batch batch = ApplySpeculative();
  std::vector<ItemOutput> outputs = Outputs(batch);
  outputs[0].failed = true;
  outputs[0].sampled.resize(2);
  const SequenceResult result = speculative_.Complete(batch.step, outputs).value().sequences.at(0);
  EXPECT_THAT(Tokens(result), ElementsAre(51, 52));
  EXPECT_EQ(result.finished, std::nullopt);
  EXPECT_EQ(result.length, 3u);
  // The sequence fails when such a row has no draft token.
  proposer_.drafts[kA] = {};
  const Batch next = ApplySpeculative();
  outputs = Outputs(next);
  outputs[0].failed = true;
  outputs[0].sampled.clear();
  EXPECT_EQ(speculative_.Complete(next.step, outputs).value().sequences.at(0).finished,
            FinishReason::kError);
}

TEST_F(SpeculationTest, OutputsMustFitTheRows) {
  Start(kA, {1}, 20);
  Step();
  plans_.Add(Speculate{kA, 2});
  proposer_.drafts[kA] = {51, 52};
  const Batch batch = ApplySpeculative();
  const std::vector<ItemOutput> good = Outputs(batch);
  for (const std::size_t count : {0, 2, 4}) {
    std::vector<ItemOutput> bad = good;
    bad[0].sampled.resize(count);
    EXPECT_TRUE(absl::IsInvalidArgument(speculative_.Complete(batch.step, bad).status())) << count;
  }
  EXPECT_TRUE(speculative_.Complete(batch.step, good).ok());
}

TEST_F(SpeculationTest, TrimTakesTheLastBlocks) {
  Start(kA, {1, 2, 3, 4, 5}, 10);
  Step();  // length 5: two blocks of four
  plans_.Add(TrimBlocks{.sequence = kA, .group = GroupIndex(0), .count = 4});
  Step();
  EXPECT_THAT(speculative_.View(kA)->tables[0], ElementsAre(1, 2));
  plans_.Add(TrimBlocks{.sequence = kA, .group = GroupIndex(0), .count = 1});
  EXPECT_TRUE(absl::IsInvalidArgument(speculative_.Apply(plans_.Take()).status()));
}

TEST_F(SpeculationTest, DropForgets) {
  Start(kA, {1}, 10);
  Step();
  plans_.Add(DropSequence{kA});
  Step();
  EXPECT_TRUE(proposer_.forgotten.contains(kA));
}

TEST_F(SpeculationTest, Refusals) {
  const auto refused = [&](PlanOp op) {
    GroupState state(kEpoch, SpeculativeLimits(), &proposer_);
    testing::PlanBuilder plans(kEpoch);
    OpenSequence is_beam = Opened(kB, {1});
    is_beam.is_beam = true;
    plans.Add(Opened(kA, {1, 2}));
    plans.Add(is_beam);
    std::visit([&](const auto& o) { plans.Add(o); }, op);
    return absl::IsInvalidArgument(state.Apply(plans.Take()).status());
  };
  EXPECT_TRUE(refused(Speculate{kA, 5}));  // deeper than the description says
  EXPECT_TRUE(refused(Speculate{kB, 1}));  // a beam
  EXPECT_TRUE(refused(Speculate{kC, 1}));  // not open
  EXPECT_TRUE(refused(TrimBlocks{.sequence = kC, .group = GroupIndex(0), .count = 1}));
  EXPECT_TRUE(refused(TrimBlocks{.sequence = kA, .group = GroupIndex(0), .count = 1}));
  EXPECT_TRUE(refused(TrimBlocks{.sequence = kA, .group = GroupIndex(1), .count = 1}));
  EXPECT_TRUE(refused(TrimBlocks{.sequence = kA, .group = GroupIndex(0), .count = 0}));
}

TEST_F(SpeculationTest, ADraftTokenOutsideTheVocabularyIsRefused) {
  Start(kA, {1}, 10);
  Step();
  plans_.Add(Speculate{kA, 1});
  proposer_.drafts[kA] = {100};
  EXPECT_TRUE(absl::IsInvalidArgument(speculative_.Apply(plans_.Take()).status()));
}

// Returns the draft that NgramIndex promises, found by a search of all positions.
std::vector<TokenId> NaiveDraft(const std::vector<TokenId>& tokens, const NgramOptions& options,
                                std::uint32_t limit) {
  const std::size_t size = tokens.size();
  for (std::size_t n = std::min<std::size_t>(options.max_n, size); n >= options.min_n; --n) {
    for (std::size_t end = size - 1; end >= n; --end) {
      if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n)) continue;
      std::uint32_t common = 0;
      while (common < end && tokens[end - 1 - common] == tokens[size - 1 - common]) ++common;
      limit = std::min(limit, std::max<std::uint32_t>(common - 1, 1));
      std::vector<TokenId> all = tokens;
      for (std::uint32_t i = 0; i < limit; ++i) all.push_back(all[end + i]);
      return {all.end() - limit, all.end()};
    }
  }
  return {};
}

TEST(NgramIndex, FindsWhatTheObviousSearchFinds) {
  std::mt19937_64 random(7);
  std::size_t found = 0;
  for (int round = 0; round < 300; ++round) {
    NgramOptions options;
    options.min_n = static_cast<std::uint32_t>(1 + random() % 4);
    options.max_n = options.min_n + static_cast<std::uint32_t>(random() % 4);
    const auto vocabulary = static_cast<TokenId>(2 + random() % 12);
    NgramIndex index(options);
    std::vector<TokenId> tokens;
    for (int step = 0; step < 60; ++step) {
      for (std::uint64_t more = 1 + random() % 3; more > 0; --more) {
        tokens.push_back(static_cast<TokenId>(random() % vocabulary));
      }
      const auto limit = static_cast<std::uint32_t>(1 + random() % 8);
      const std::vector<TokenId> draft = index.Draft(tokens, limit);
      ASSERT_EQ(draft, NaiveDraft(tokens, options, limit)) << "round " << round << " step " << step;
      found += !draft.empty();
    }
  }
  EXPECT_GT(found, 5000u);
}

// A prompt of 131,072 tokens is not indexed within one step. Drafts come from the latest tokens at
// once, and from all of them in the end.
TEST(NgramIndex, ALongPromptIsIndexedInPartsFromItsEnd) {
  std::mt19937_64 random(11);
  std::vector<TokenId> tokens(131072);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 50000);
  const std::vector<TokenId> first(tokens.begin() + 2000, tokens.begin() + 2010);
  const std::vector<TokenId> late(tokens.end() - 500, tokens.end() - 490);
  tokens.insert(tokens.end(), late.begin(), late.begin() + 5);
  NgramIndex index({});
  EXPECT_THAT(index.Draft(tokens, 4), ElementsAre(late[5], late[6], late[7], late[8]));
  EXPECT_LE(index.new_entries(), NgramIndex::kMostNewEntries);
  EXPECT_GT(index.new_entries(), NgramIndex::kMostNewEntries / 2);

  tokens.insert(tokens.end(), first.begin(), first.begin() + 5);
  EXPECT_THAT(index.Draft(tokens, 4), IsEmpty());
  std::size_t entries = 0;
  int calls = 0;
  for (; calls < 200 && index.Draft(tokens, 4).empty(); ++calls) {
    EXPECT_LE(index.new_entries(), NgramIndex::kMostNewEntries);
    entries += index.new_entries();
  }
  EXPECT_THAT(index.Draft(tokens, 4), ElementsAre(first[5], first[6], first[7], first[8]));
  EXPECT_LE(calls, 4 * 131072 / static_cast<int>(NgramIndex::kMostNewEntries));
  EXPECT_LE(index.slots(), NgramIndex::kMostSlots);
}

// Tokens that came while nothing was drafted are indexed in parts, too.
TEST(NgramIndex, AGrowingSequenceKeepsItsBoundAndItsTableGrowsAlong) {
  std::mt19937_64 random(12);
  std::vector<TokenId> tokens;
  NgramIndex index({});
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 3000; ++i) tokens.push_back(static_cast<TokenId>(random() % 50000));
    index.Draft(tokens, 4);
    EXPECT_LE(index.new_entries(), NgramIndex::kMostNewEntries);
    EXPECT_LE(index.slots(), NgramIndex::kMostSlots);
  }
}

TEST(NgramIndex, GoesOnWithAPeriodAsLongAsItLasted) {
  NgramIndex index({.min_n = 2, .max_n = 4});
  EXPECT_THAT(index.Draft(std::vector<TokenId>{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2}, 9),
              ElementsAre(3, 1, 2, 3, 1, 2, 3));
}

TEST(NgramProposer, KeepsSequencesApartAndForgets) {
  NgramProposer proposer({.min_n = 1, .max_n = 2});
  const std::vector<TokenId> a = {1, 2, 1}, b = {1, 3, 1}, c = {4, 5};
  const auto draft = [&](SequenceHandle sequence, const std::vector<TokenId>& tokens) {
    std::vector<DraftRequest> requests = {{.sequence = sequence, .tokens = tokens, .limit = 1}};
    proposer.Propose(absl::MakeSpan(requests));
    return requests[0].drafts;
  };
  EXPECT_THAT(draft(kA, a), ElementsAre(2));
  EXPECT_THAT(draft(kB, b), ElementsAre(3));
  proposer.Forget(kA);
  EXPECT_THAT(draft(kA, c), IsEmpty());
}

}  // namespace
}  // namespace flotilla::worker
