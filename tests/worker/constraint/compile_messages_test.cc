#include "worker/constraint/compile_messages.h"

#include "tests/worker/constraint/small_vocabulary.h"

namespace flotilla::worker {
namespace {

TEST(CompileMessages, KeepTheirValues) {
  const CompileSetup setup{.limits = {.cpu_us = 1, .memory_bytes = 2, .compiled_bytes = 3},
                           .vocabulary = SmallVocabulary()};
  const auto read = DecodeSetup(EncodeSetup(setup));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->vocabulary, setup.vocabulary);
  EXPECT_EQ(read->limits.cpu_us, 1);
  EXPECT_EQ(read->limits.memory_bytes, 2u);
  EXPECT_EQ(read->limits.compiled_bytes, 3u);
  const Constraint constraint{Constraint::Kind::kGrammar, std::string("a\0b", 3)};
  EXPECT_EQ(*DecodeConstraint(EncodeConstraint(constraint)), constraint);
  EXPECT_EQ(*DecodeCompiled(EncodeCompiled(std::string("text"))), "text");
  const absl::Status refused = absl::InvalidArgumentError("why");
  EXPECT_EQ(DecodeCompiled(EncodeCompiled(refused)).status(), refused);
}

TEST(CompileMessages, RefuseOthers) {
  const std::string message = EncodeSetup({.vocabulary = {.tokens = {"ab", "c"}, .stops = {1}}});
  for (std::size_t size = 0; size < message.size(); ++size) {
    EXPECT_FALSE(DecodeSetup(message.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeSetup(message + "x").ok());
  EXPECT_FALSE(DecodeConstraint("").ok());
  EXPECT_FALSE(DecodeConstraint("\x09text").ok());
  EXPECT_FALSE(DecodeCompiled("").ok());
}

}  // namespace
}  // namespace flotilla::worker
