#include "loadtest/core/prompt_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

std::vector<std::string> WordsOf(const LoadPlan& plan, std::size_t index) {
  return absl::StrSplit(PromptText(plan, index), ' ');
}

std::size_t CommonWords(const LoadPlan& plan, std::size_t a, std::size_t b) {
  const std::vector<std::string> left = WordsOf(plan, a), right = WordsOf(plan, b);
  const std::size_t most = std::min(left.size(), right.size());
  return static_cast<std::size_t>(
      std::mismatch(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(most), right.begin())
          .first -
      left.begin());
}

TEST(PromptTextTest, APromptHasItsWordsAndItsPrefix) {
  LoadPlan plan{.seed = 4};
  plan.requests = {{.prompt_words = 100, .prefix_group = 1, .prefix_words = 60},
                   {.prompt_words = 80, .prefix_group = 1, .prefix_words = 60},
                   {.prompt_words = 80, .prefix_group = 2, .prefix_words = 60},
                   {.prompt_words = 100}};
  EXPECT_EQ(WordsOf(plan, 0).size(), 100u);
  EXPECT_EQ(PromptText(plan, 0), PromptText(plan, 0));
  // Words after the common ones may be equal by chance, each with 1 %.
  EXPECT_GE(CommonWords(plan, 0, 1), 60u);
  EXPECT_LE(CommonWords(plan, 0, 1), 62u);
  EXPECT_LE(CommonWords(plan, 0, 2), 2u);
  EXPECT_LE(CommonWords(plan, 0, 3), 2u);
  const std::string before = PromptText(plan, 0);
  plan.seed = 5;
  EXPECT_NE(PromptText(plan, 0), before);
}

TEST(PromptTextTest, BlocksThatAreEqualHaveEqualWords) {
  LoadPlan plan{.seed = 4};
  plan.requests = {{.prompt_words = 1200, .blocks = {7, 8}},
                   {.prompt_words = 1200, .blocks = {7, 9}}};
  EXPECT_GE(CommonWords(plan, 0, 1), kTraceBlockTokens);
  EXPECT_LE(CommonWords(plan, 0, 1), kTraceBlockTokens + 2);
}

}  // namespace
}  // namespace flotilla::loadtest
