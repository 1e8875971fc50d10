#include "router/dry_breakers.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/types/parameters.h"
#include "router/errors.h"
#include "tests/router/service_fixture.h"

namespace flotilla::router {
namespace {

class DryBreakersTest : public ServiceTest {
 protected:
  using Tail = std::vector<TokenId>;

  std::set<std::pair<TokenId, Tail>> Find(const std::vector<std::string>& texts) {
    const auto found = finder_.Find(texts);
    EXPECT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(CheckDryBreakers(*found, tokenizer_->vocab_size()), absl::OkStatus());
    std::set<std::pair<TokenId, Tail>> pairs;
    for (std::size_t i = 0; i < found->heads.size(); ++i) {
      pairs.emplace(found->heads[i], found->tails[found->tail_of[i]]);
    }
    return pairs;
  }

  DryBreakerFinder finder_{tokenizer_.get()};
};

// get_overlapping_token_sequences of llama.cpp, line by line.
TEST_F(DryBreakersTest, AreThoseOfLlamaCpp) {
  for (const std::string text : {"\n", "the", " is", "<|im_end|>", "User:", "aab", "é"}) {
    std::set<std::pair<TokenId, Tail>> expected;
    const auto vocab_size = static_cast<TokenId>(tokenizer_->vocab_size());
    for (TokenId token = 0; token < vocab_size; ++token) {
      const std::string word(tokenizer_->TokenBytes(token));
      if (word.find(text) != std::string::npos) {
        expected.emplace(token, Tail());
        continue;
      }
      for (std::size_t at = word.find(text[0]); at != std::string::npos;
           at = word.find(text[0], at + 1)) {
        std::size_t i = 1;
        while (i < text.size() && at + i < word.size() && word[at + i] == text[i]) ++i;
        if (at + i < word.size()) continue;
        const auto tail = tokenizer_->Encode(text.substr(i));
        if (tail.ok()) expected.emplace(token, *tail);
      }
    }
    EXPECT_EQ(Find({text}), expected) << text;
    EXPECT_FALSE(expected.empty()) << text;
  }
}

TEST_F(DryBreakersTest, OfNoTextsAreTheDefaultOnes) {
  const std::vector<std::string> names(std::begin(kDefaultDryBreakers),
                                       std::end(kDefaultDryBreakers));
  EXPECT_EQ(Find({}), Find(names));
  EXPECT_NE(Find({}), Find({"\n"}));
  for (const auto& [head, tail] : Find({})) EXPECT_TRUE(tail.empty());
}

TEST_F(DryBreakersTest, AreKeptForTheNextRequest) {
  EXPECT_GT(finder_.Cost({}), 0u);
  Find({});
  EXPECT_EQ(finder_.Cost({}), 0u);
  EXPECT_GT(finder_.Cost({"a", "b"}), finder_.Cost({"a"}));
  for (char c = 'a'; c < 'a' + 10; ++c) Find({std::string("x") + c});
  EXPECT_GT(finder_.Cost({}), 0u) << "the oldest ones went";
  EXPECT_EQ(finder_.Cost({"xj"}), 0u);
}

TEST_F(DryBreakersTest, OfTooManyTokensAreRefused) {
  const auto found = finder_.Find({"\n", " ", "e", "a", "t", "i"});
  ASSERT_TRUE(absl::IsInvalidArgument(found.status()));
  EXPECT_EQ(ErrorField(found.status()), "dry_sequence_breakers");
  EXPECT_NE(found.status().message().find("16384"), std::string::npos) << found.status();
}

}  // namespace
}  // namespace flotilla::router
