// Where the end of thoughts is forced.
#include "common/types/thinking_limit.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kBegin = 7, kEnd = 8, kWord = 1;
constexpr auto kFree = std::optional<TokenId>();

TEST(ThinkingLimit, CountsFromTheAnswersBeginWhereThePromptHasBegunThem) {
  const ThinkingLimit limit{.end = kEnd, .forced = {5, kEnd}, .budget = 3};
  EXPECT_EQ(ForcedToken(limit, {}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {1, 1}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {1, 1, 1}, {}), 5);
  EXPECT_EQ(ForcedToken(limit, {1, 1, 1, 5}, {}), kEnd);
  EXPECT_EQ(ForcedToken(limit, {1, 1, 1, 5, kEnd}, {}), kFree);
  // They ended before, or a constraint excluded what was forced.
  EXPECT_EQ(ForcedToken(limit, {1, kEnd, 1}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {1, 1, kEnd}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {1, 1, 1, 2}, {}), kFree);
  EXPECT_EQ(ForcedToken({}, {1, 1, 1}, {}), kFree);
}

TEST(ThinkingLimit, LooksForTheirBegin) {
  const ThinkingLimit limit{.begin = {6, kBegin}, .end = kEnd, .forced = {kEnd}, .budget = 2};
  EXPECT_EQ(ForcedToken(limit, {1, 1, 1, 1}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {6, kBegin, 1}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {6, kBegin, 1, 1}, {}), kEnd);
  EXPECT_EQ(ForcedToken(limit, {1, 6, kBegin, 1, 1}, {}), kEnd);
  EXPECT_EQ(ForcedToken(limit, {1, 6, kBegin, 1, kEnd}, {}), kFree);
  // An end in front of the begin is none.
  EXPECT_EQ(ForcedToken(limit, {kEnd, 6, kBegin, 1, 1}, {}), kEnd);
  std::vector<TokenId> late(ThinkingLimit::kMaxBefore - 1, kWord);
  late.insert(late.end(), {6, kBegin, 1, 1});
  EXPECT_EQ(ForcedToken(limit, late, {}), kEnd);
  late.insert(late.begin(), kWord);
  EXPECT_EQ(ForcedToken(limit, late, {}), kFree);
}

TEST(ThinkingLimit, NoneMayBeThought) {
  EXPECT_EQ(ForcedToken({.end = kEnd, .forced = {kEnd}, .budget = 0}, {}, {}), kEnd);
  const ThinkingLimit limit{.begin = {kBegin}, .end = kEnd, .forced = {kEnd}, .budget = 0};
  EXPECT_EQ(ForcedToken(limit, {}, {}), kFree);
  EXPECT_EQ(ForcedToken(limit, {kBegin}, {}), kEnd);
}

// Wherever the answer ends and the drafts begin.
TEST(ThinkingLimit, DraftsCountAsTheAnswer) {
  const ThinkingLimit limit{.begin = {kBegin}, .end = kEnd, .forced = {5, kEnd}, .budget = 2};
  const std::vector<TokenId> answer = {1, kBegin, 1, 1, 5, kEnd, 1};
  for (std::size_t size = 0; size <= answer.size(); ++size) {
    const auto tokens = absl::MakeConstSpan(answer).first(size);
    const auto expected = ForcedToken(limit, tokens, {});
    EXPECT_EQ(expected, size == 4 ? 5 : size == 5 ? kEnd : kFree) << size;
    for (std::size_t drafts = 1; drafts <= size; ++drafts) {
      EXPECT_EQ(ForcedToken(limit, tokens.first(size - drafts), tokens.last(drafts)), expected)
          << size << " tokens, " << drafts << " of them drafts";
    }
  }
}

TEST(ThinkingLimit, IsChecked) {
  const auto refusal = [](ThinkingLimit limit) {
    return std::string(CheckThinkingLimit(limit, 10).message());
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.begin = {9}, .end = 9, .forced = {9}, .budget = 1u << 31}), "");
  for (const TokenId bad : {-1, 10}) {
    EXPECT_THAT(refusal({.begin = {bad}, .forced = {1}}), HasSubstr("outside the vocabulary"));
    EXPECT_THAT(refusal({.end = bad, .forced = {1}}), HasSubstr("outside the vocabulary"));
    EXPECT_THAT(refusal({.forced = {1, bad}}), HasSubstr("outside the vocabulary"));
  }
  EXPECT_THAT(refusal({.begin = std::vector<TokenId>(17, 1), .forced = {1}}), HasSubstr("17"));
  EXPECT_THAT(refusal({.forced = std::vector<TokenId>(17, 1)}), HasSubstr("at most 16"));
}

}  // namespace
}  // namespace flotilla
