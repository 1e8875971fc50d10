// What a worker sends as its tokenizer, and what a router makes of it.
#include <span>
#include <string>
#include <vector>

#include "cli/role_options.h"
#include "gtest/gtest.h"
#include "model/checkpoint.h"
#include "model/content_hash.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::cli {
namespace {

TEST(TokenizerContent, IsReadAsItWasSent) {
  const std::vector<std::byte> bytes = testing::TinyGguf();
  const TokenizerBundle tokenizer = *(*model::ParseCheckpoint(bytes))->ReadTokenizer();
  const TokenizerContent content = TokenizerContentOf(tokenizer, "tiny");
  EXPECT_EQ(content.model_id, "tiny");
  EXPECT_EQ(content.hash, model::TokenizerHash(tokenizer));
  const auto read = ReadTokenizerContent(content.content);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, tokenizer);
}

// During an upgrade a router of this version meets replicas of the one before.
TEST(TokenizerContent, OfAnEarlierVersionIsAModelFile) {
  const std::vector<std::byte> bytes = testing::TinyGguf();
  const auto read =
      ReadTokenizerContent({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *(*model::ParseCheckpoint(bytes))->ReadTokenizer());
}

TEST(TokenizerContent, ElseItIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTokenizerContent("nonsense").status()));
}

}  // namespace
}  // namespace flotilla::cli
