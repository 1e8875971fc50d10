#include "cli/suggest.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kFlags = {"--model",     "--served-model-name", "--max-model-len",
                                         "--http-port", "--grpc-port",         "--host",
                                         "--tp",        "--max-seqs",          "--kv-blocks"};

TEST(SuggestTest, WhatIsWrittenAlikeIsMeant) {
  EXPECT_THAT(NamesLike("--modle", kFlags), ElementsAre("--model"));
  EXPECT_THAT(NamesLike("-model", kFlags), ElementsAre("--model"));
  EXPECT_THAT(NamesLike("--MODEL", kFlags), ElementsAre("--model"));
  EXPECT_THAT(NamesLike("--max_model_len", kFlags), ElementsAre("--max-model-len"));
  EXPECT_THAT(NamesLike("--htp-port", kFlags), ElementsAre("--http-port"));
  EXPECT_THAT(NamesLike("--kv-block", kFlags), ElementsAre("--kv-blocks"));
  EXPECT_THAT(NamesLike("--tpp", kFlags), ElementsAre("--tp"));
}

TEST(SuggestTest, OrWhatHasItsWords) {
  EXPECT_THAT(NamesLike("--port", kFlags), ElementsAre("--http-port", "--grpc-port"));
  EXPECT_THAT(NamesLike("--name", kFlags), ElementsAre("--served-model-name"));
}

TEST(SuggestTest, NothingIsGuessedFromAfar) {
  EXPECT_THAT(NamesLike("--frobnicate", kFlags), IsEmpty());
  EXPECT_THAT(NamesLike("--gpu", kFlags), IsEmpty());
  EXPECT_THAT(NamesLike("", kFlags), IsEmpty());
  EXPECT_THAT(NamesLike("--", kFlags), IsEmpty());
  EXPECT_THAT(NamesLike("--" + std::string(100, 'm'), kFlags), IsEmpty());
  EXPECT_THAT(NamesLike("x", {"y", "z"}), ElementsAre("y", "z"));  // one letter of one
  EXPECT_THAT(NamesLike("--model", {}), IsEmpty());
}

TEST(SuggestTest, ThreeAtMost) {
  EXPECT_THAT(NamesLike("--abcx", {"--abc1", "--abc2", "--abc3", "--abc4"}),
              ElementsAre("--abc1", "--abc2", "--abc3"));
}

}  // namespace
}  // namespace flotilla::cli
