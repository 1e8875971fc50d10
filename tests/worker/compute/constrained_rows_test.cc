// Tests rows that are drawn under a constraint: what a mask leaves, and what late and refused masks
// make of a step's outputs, on one rank and on two.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/compute/sampler.h"
#include "worker/compute/step_outputs.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kVocab = 70;

const kernels::Ops& Ops() { return kernels::GetOps(kernels::Isa::kReference); }

std::vector<float> RandomRow(std::mt19937& random) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(kVocab);
  for (float& logit : row) logit = normal(random);
  return row;
}

std::vector<std::uint32_t> MaskOf(const std::vector<TokenId>& tokens) {
  std::vector<std::uint32_t> mask((kVocab + 31) / 32);
  for (const TokenId token : tokens) mask[token / 32] |= 1u << token % 32;
  return mask;
}

SampledToken Sampled(const std::vector<float>& row, const SamplingParams& sampling,
                     const std::vector<std::uint32_t>& mask, std::uint32_t index = 0) {
  const auto sampled =
      SampleRow(Ops(), row, kVocab, MakeDraw(sampling, {.output_index = index}), 3, mask);
  EXPECT_TRUE(sampled.ok()) << sampled.status();
  return sampled.ok() ? *sampled : SampledToken{};
}

// A token is drawn as from a row in which all others are -infinity; what is told of it is raw.
TEST(Mask, DrawsAreThoseOfTheRowWithoutTheOtherTokens) {
  std::mt19937 random(5);
  for (std::uint32_t round = 0; round < 200; ++round) {
    const std::vector<float> row = RandomRow(random);
    std::vector<TokenId> allowed;
    std::vector<float> left(kVocab, -kInfinity);
    for (TokenId token = 0; token < static_cast<TokenId>(kVocab); ++token) {
      if (random() % 4 != 0) continue;
      allowed.push_back(token);
      left[token] = row[token];
    }
    if (allowed.empty()) continue;
    SamplingParams sampling{.temperature = round % 3 == 0 ? 0.0f : 1.3f,
                            .top_k = round % 5 == 0 ? 4 : 0,
                            .top_p = round % 2 == 0 ? 0.8f : 1.0f,
                            .seed = round};
    const SampledToken masked = Sampled(row, sampling, MaskOf(allowed), round);
    EXPECT_EQ(masked.token, Sampled(left, sampling, {}, round).token);
    const SampledToken free = Sampled(row, sampling, {}, round);
    EXPECT_EQ(masked.top, free.top);
    const auto all = SampleRow(Ops(), row, kVocab, MakeDraw({.temperature = 0}, {}), 0);
    EXPECT_FLOAT_EQ(masked.logprob - all->logprob, row[masked.token] - row[all->token]);
  }
}

TEST(Mask, EditsActWithinIt) {
  std::vector<float> row(kVocab, 0);
  row[3] = 9;
  row[5] = 8;
  row[6] = 7;
  SamplingParams sampling{.temperature = 0};
  EXPECT_EQ(Sampled(row, sampling, MaskOf({5, 6, 69})).token, 5);
  sampling.logit_bias = {{.token = 6, .bias = 2}};
  EXPECT_EQ(Sampled(row, sampling, MaskOf({5, 6, 69})).token, 6);
  sampling.allowed_tokens = {3, 5};
  EXPECT_EQ(Sampled(row, sampling, MaskOf({5, 6, 69})).token, 5);
  sampling.allowed_tokens = {3, 4};  // they leave none, so the grammar wins
  EXPECT_EQ(Sampled(row, sampling, MaskOf({5, 6, 69})).token, 5);
  sampling.allowed_tokens.clear();
  sampling.bad_words = {{5}};
  EXPECT_EQ(Sampled(row, sampling, MaskOf({5, 69})).token, 69);
  EXPECT_EQ(Sampled(row, sampling, MaskOf({5})).token, 5);
}

TEST(Mask, TokensBeyondItAreNotAllowed) {
  std::vector<float> row(kVocab, 0);
  row[69] = 9;
  EXPECT_LT(Sampled(row, {.temperature = 0}, {0xFFFFFFFFu}).token, 32);
}

TEST(Mask, ARowOfWhichNothingIsAllowedFails) {
  const std::vector<float> row(kVocab, 0);
  EXPECT_FALSE(SampleRow(Ops(), row, kVocab, MakeDraw({}, {}), 0, MaskOf({})).ok());
}

// Gives the masks of a test, and notes what is asked for.
class ScriptedMasks final : public RowMasks {
 public:
  RowMask Wait(std::size_t item, std::uint32_t at, absl::Duration patience) override {
    patiences.push_back(patience);
    RowMask mask = masks[{item, at}];
    mask.was_awaited = waits && mask.state == RowMask::State::kLate;
    return mask;
  }

  std::map<std::pair<std::size_t, std::uint32_t>, RowMask> masks;
  std::vector<absl::Duration> patiences;
  bool waits = true;  // for masks that are late
};

// A batch of four sequences: the first and the third are free, the others are constrained, and the
// last one has two draft tokens.
class ConstrainedRows : public ::testing::Test {
 protected:
  ConstrainedRows() : shards_({{{0, kVocab}}}, kVocab) {
    constrained_.constraint = {.kind = Constraint::Kind::kRegex, .text = "a"};
    free_.top_k = 1;  // needs full rows, too
    batch_.tokens = {1, 2, 3, 4, 11, 12};
    for (std::uint32_t i = 0; i < 4; ++i) {
      const bool last = i == 3;
      batch_.items.push_back({.sequence = SequenceHandle(i),
                              .row_begin = i,
                              .row_count = last ? 3u : 1u,
                              .decode = true,
                              .drafts = last ? 2u : 0u,
                              .samples = true,
                              .known = known_,
                              .sampling = i % 2 == 1 ? &constrained_ : &free_,
                              .stop = &stop_,
                              .logprobs = &logprobs_});
    }
    for (const TokenId token : {20, 21, 22, 23}) allowed_.push_back(MaskOf({token}));
  }

  static RowMask Ready(const std::vector<std::uint32_t>& mask) {
    return {.state = RowMask::State::kReady, .allowed = mask, .reason = {}};
  }
  static RowMask Refused(const char* why, RowMask::State state = RowMask::State::kRefused) {
    return {.state = state, .allowed = {}, .reason = why};
  }

  // What rank `rank` of `ranks` draws, with the masks of `masks`. A backend would give it the rows.
  std::unique_ptr<StepOutputs> Draw(std::uint32_t rank, std::uint32_t ranks,
                                    std::vector<std::size_t>* constrained = nullptr) {
    auto outputs = std::make_unique<StepOutputs>(batch_, shards_, Ops());
    const std::vector<std::size_t> items = outputs->ConstrainedItems(rank, ranks);
    if (constrained != nullptr) *constrained = items;
    outputs->UseMasks(masks_);
    StepInputs inputs;
    outputs->AddRequests(
        batch_, [](std::int64_t, auto) { FAIL() << "no penalties"; }, inputs);
    EXPECT_EQ(inputs.requests.size(), 6u);
    for (std::uint32_t request = 0; request < 6; ++request) {
      if (request % ranks != rank) continue;
      outputs->TakeRow(static_cast<int>(request), std::vector<float>(kVocab, 1));
    }
    return outputs;
  }

  static std::vector<TokenId> TokensOf(const ItemOutput& output) {
    std::vector<TokenId> tokens;
    for (const SampledToken& token : output.sampled) tokens.push_back(token.token);
    return tokens;
  }

  SamplingParams free_, constrained_;
  const StopRule stop_;
  const LogprobSpec logprobs_;
  const std::vector<TokenId> known_ = {1};
  const VocabularyShards shards_;
  Batch batch_;
  std::vector<std::vector<std::uint32_t>> allowed_;
  std::shared_ptr<ScriptedMasks> masks_ = std::make_shared<ScriptedMasks>();
};

TEST_F(ConstrainedRows, EachRowHasItsMask) {
  masks_->masks = {{{0, 0}, Ready(allowed_[0])},
                   {{1, 0}, Ready(allowed_[1])},
                   {{1, 1}, Ready(allowed_[2])},
                   {{1, 2}, Ready(allowed_[3])}};
  std::vector<std::size_t> items;
  const auto drawn = Draw(0, 1, &items);
  EXPECT_THAT(items, ElementsAre(1, 3));
  const absl::Span<const ItemOutput> outputs = drawn->Finish();
  EXPECT_THAT(TokensOf(outputs[0]), ElementsAre(0));
  EXPECT_THAT(TokensOf(outputs[1]), ElementsAre(20));
  EXPECT_THAT(TokensOf(outputs[3]), ElementsAre(21, 22, 23));
}

TEST_F(ConstrainedRows, LateRowsGiveNothingAndNobodyWaitsTwice) {
  masks_->masks = {{{1, 0}, Ready(allowed_[1])}, {{1, 2}, Ready(allowed_[3])}};
  const auto drawn = Draw(0, 1);
  const absl::Span<const ItemOutput> outputs = drawn->Finish();
  EXPECT_THAT(TokensOf(outputs[0]), ElementsAre(0));
  EXPECT_THAT(TokensOf(outputs[1]), IsEmpty());
  EXPECT_FALSE(outputs[1].failed);
  EXPECT_THAT(TokensOf(outputs[3]), ElementsAre(21));
  EXPECT_FALSE(outputs[3].failed);
  EXPECT_GT(masks_->patiences[0], absl::ZeroDuration());
  EXPECT_LE(masks_->patiences[0], absl::Milliseconds(5));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(masks_->patiences[i], absl::ZeroDuration());
}

// A mask that an earlier step has waited for takes no time of the others.
TEST_F(ConstrainedRows, RowsBehindOneThatIsNotWaitedForHaveTheWholeTime) {
  masks_->waits = false;
  const auto drawn = Draw(0, 1);
  ASSERT_EQ(masks_->patiences.size(), 4u);
  for (const absl::Duration patience : masks_->patiences) EXPECT_GT(patience, absl::ZeroDuration());
}

// Behind a draft token that the grammar forbids, masks have no token. That means nothing if the row
// before gave none.
TEST_F(ConstrainedRows, NothingComesOfRowsBehindALateOne) {
  const std::vector<std::uint32_t> none = MaskOf({});
  masks_->masks = {{{0, 0}, Ready(allowed_[0])}, {{1, 1}, Ready(none)}, {{1, 2}, Ready(none)}};
  const auto drawn = Draw(0, 1);
  const absl::Span<const ItemOutput> outputs = drawn->Finish();
  EXPECT_THAT(TokensOf(outputs[3]), IsEmpty());
  EXPECT_FALSE(outputs[3].failed);
}

TEST_F(ConstrainedRows, ARefusalFailsItsItem) {
  masks_->masks = {{{0, 0}, Refused("too hard")},
                   {{1, 0}, Ready(allowed_[1])},
                   {{1, 1}, Ready(allowed_[2])},
                   {{1, 2}, Refused("full", RowMask::State::kNoRoom)}};
  const auto drawn = Draw(0, 1);
  const absl::Span<const ItemOutput> outputs = drawn->Finish();
  EXPECT_TRUE(outputs[1].failed);
  EXPECT_EQ(outputs[1].refused, "too hard");
  EXPECT_FALSE(outputs[1].is_overload);
  EXPECT_EQ(outputs[3].refused, "full");
  EXPECT_TRUE(outputs[3].is_overload);
  // The tokens before the row are good.
  EXPECT_THAT(TokensOf(outputs[3]), ElementsAre(21, 22));
  EXPECT_TRUE(outputs[3].failed);
}

// What a beam may go on with is the best of what its mask allows; log-probabilities are raw.
TEST(Mask, CandidatesAreTheBestOfIt) {
  std::vector<float> row(kVocab, 0);
  row[3] = 9;
  row[5] = 8;
  row[6] = row[40] = 7;
  const auto all = BestTokens(Ops(), row, kVocab, 4, MaskOf({3, 5, 6, 40, 69}));
  ASSERT_TRUE(all.ok()) << all.status();
  const auto some = BestTokens(Ops(), row, kVocab, 3, MaskOf({5, 6, 40, 69}));
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(*some, ElementsAre((*all)[1], (*all)[2], (*all)[3]));
  EXPECT_EQ(some->at(1).token, 6);
  const auto one = BestTokens(Ops(), row, kVocab, 3, MaskOf({69}));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->size(), 1u);
  EXPECT_FALSE(BestTokens(Ops(), row, kVocab, 3, MaskOf({})).ok());
  row[69] = -kInfinity;
  EXPECT_FALSE(BestTokens(Ops(), row, kVocab, 3, MaskOf({69})).ok());
}

// The first constrained sequence is a beam.
TEST_F(ConstrainedRows, BeamsTakeCandidatesUnderTheMask) {
  batch_.items[1].samples = false;
  batch_.items[1].candidates = 4;
  const std::vector<std::uint32_t> three = MaskOf({20, 30, 40});
  std::vector<std::unique_ptr<StepOutputs>> ranks;
  ranks.push_back(Draw(0, 2));
  masks_->masks[{0, 0}] = Ready(three);
  ranks.push_back(Draw(1, 2));
  masks_->masks.clear();
  ranks.push_back(Draw(1, 2));  // late
  std::vector<std::vector<std::byte>> metadata(3);
  for (std::uint32_t i = 0; i < 3; ++i) ranks[i]->Write(std::min(i, 1u), 2, metadata[i]);
  ASSERT_TRUE(ranks[0]->Read(0, 2, metadata[0]).ok());
  ASSERT_TRUE(ranks[0]->Read(1, 2, metadata[1]).ok());
  const absl::Span<const ItemOutput> outputs = ranks[0]->Finish();
  std::vector<TokenId> tokens;
  for (const TopLogprob& candidate : outputs[1].candidates) {
    tokens.push_back(candidate.token);
    EXPECT_FLOAT_EQ(candidate.logprob, -std::log(static_cast<float>(kVocab)));
  }
  EXPECT_THAT(tokens, ElementsAre(20, 30, 40));
  EXPECT_FALSE(outputs[1].failed);
  ASSERT_TRUE(ranks[2]->Read(0, 2, metadata[0]).ok());
  ASSERT_TRUE(ranks[2]->Read(1, 2, metadata[2]).ok());
  const absl::Span<const ItemOutput> late = ranks[2]->Finish();
  EXPECT_THAT(late[1].candidates, IsEmpty());
  EXPECT_FALSE(late[1].failed);
}

// The first constrained sequence is a beam. The other one samples, so it ends.
TEST_F(ConstrainedRows, ABeamAfterWhichNoTokenMayComeHasNoCandidates) {
  batch_.items[1].samples = false;
  batch_.items[1].candidates = 4;
  masks_->masks = {{{0, 0}, Refused("nothing", RowMask::State::kNoToken)},
                   {{1, 0}, Refused("nothing", RowMask::State::kNoToken)}};
  const auto expect = [](absl::Span<const ItemOutput> outputs) {
    EXPECT_THAT(outputs[1].candidates, IsEmpty());
    EXPECT_FALSE(outputs[1].failed);
    EXPECT_EQ(outputs[1].refused, "nothing");
    EXPECT_TRUE(outputs[3].failed);
    EXPECT_THAT(TokensOf(outputs[3]), IsEmpty());
    EXPECT_EQ(outputs[3].refused, "nothing");
  };
  expect(Draw(0, 1)->Finish());
  // Rank 1 of 2 draws the first rows of both.
  std::vector<std::unique_ptr<StepOutputs>> ranks;
  std::vector<std::vector<std::byte>> metadata(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(Draw(rank, 2));
    ranks[rank]->Write(rank, 2, metadata[rank]);
  }
  for (const auto& outputs : ranks) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(outputs->Read(rank, 2, metadata[rank]).ok());
    }
    expect(outputs->Finish());
  }
  // No row of a sequence that samples says so.
  batch_.items[1].samples = true;
  batch_.items[1].candidates = 0;
  EXPECT_FALSE(Draw(0, 2)->Read(1, 2, metadata[1]).ok());
}

// Request 1 is of the first constrained sequence, and 3 to 5 are of the second one.
TEST_F(ConstrainedRows, RanksTellEachOther) {
  const std::string reason(500, 'x');  // more than travels
  masks_->masks = {{{0, 0}, Refused(reason.c_str(), RowMask::State::kNoRoom)},
                   {{1, 0}, Ready(allowed_[1])}};
  std::vector<std::size_t> of_first, of_second;
  std::vector<std::unique_ptr<StepOutputs>> ranks;
  ranks.push_back(Draw(0, 2, &of_first));  // requests 0, 2, 4: token 1 of the drafts is late
  EXPECT_THAT(of_first, ElementsAre(3));
  // Its sequence is the second one of this rank's, and the first one of the other's.
  masks_->masks[{1, 2}] = Ready(allowed_[3]);
  ranks.push_back(Draw(1, 2, &of_second));
  EXPECT_THAT(of_second, ElementsAre(1, 3));
  std::vector<std::vector<std::byte>> metadata(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) ranks[rank]->Write(rank, 2, metadata[rank]);
  for (const auto& outputs : ranks) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(outputs->Read(rank, 2, metadata[rank]).ok());
    }
    const absl::Span<const ItemOutput> all = outputs->Finish();
    EXPECT_TRUE(all[1].failed);
    EXPECT_EQ(all[1].refused, std::string(SequenceResult::kMaxReason, 'x'));
    EXPECT_TRUE(all[1].is_overload);
    EXPECT_THAT(TokensOf(all[3]), ElementsAre(21));
    EXPECT_FALSE(all[3].failed);
  }
  // Metadata that lies about its length is refused.
  metadata[1].resize(metadata[1].size() - 1);
  EXPECT_FALSE(Draw(0, 2)->Read(1, 2, metadata[1]).ok());
}

}  // namespace
}  // namespace flotilla::worker
