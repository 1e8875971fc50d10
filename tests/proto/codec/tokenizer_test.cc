#include "proto/codec/tokenizer.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flotilla/v1/tokenizer.pb.h"

namespace flotilla::codec {
namespace {

using ::testing::HasSubstr;

TokenizerBundle Full() {
  return {.kind = "gpt2",
          .pretokenizer = "smollm",
          .tokens = {"<s>", std::string("\xff\0", 2), "ab"},  // bytes, not always UTF-8
          .kinds = {TokenKind::kControl, TokenKind::kByte, TokenKind::kNormal},
          .merges = {"a b"},
          .scores = {0, -1, 0.5f},
          .bos = 0,
          .eos = 1,
          .eot = 2,
          .eom = 0,
          .unknown = 1,
          .add_bos = false,
          .add_eos = true,
          .space_prefix = SpacePrefix::kTextWithout,
          .added_rules = {{.id = 2, .strips_left = true},
                          {.id = 0, .strips_right = true, .whole_word = true}},
          .chat_template = ""};
}

TEST(TokenizerCodec, BringsEveryField) {
  const auto full = ReadTokenizer(WriteTokenizer(Full()));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(*full, Full());
  // What a file does not say stays unsaid.
  const auto empty = ReadTokenizer(WriteTokenizer({}));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_EQ(*empty, TokenizerBundle{});
}

std::string Refusal(void (*change)(v1::TokenizerBundle&)) {
  v1::TokenizerBundle proto;
  EXPECT_TRUE(proto.ParseFromString(WriteTokenizer(Full())));
  change(proto);
  const auto read = ReadTokenizer(proto.SerializeAsString());
  EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
  return std::string(read.status().message());
}

TEST(TokenizerCodec, RefusalsNameTheField) {
  EXPECT_THAT(Refusal([](auto& p) { p.add_tokens("more"); }), HasSubstr("4 tokens and 3 kinds"));
  EXPECT_THAT(Refusal([](auto& p) { p.add_scores(1); }), HasSubstr("3 tokens and 4 scores"));
  EXPECT_THAT(Refusal([](auto& p) { p.set_kinds(1, 7); }), HasSubstr("token 1 has kind 7"));
  EXPECT_THAT(Refusal([](auto& p) { p.set_kinds(2, 0); }), HasSubstr("token 2 has kind 0"));
  EXPECT_THAT(Refusal([](auto& p) { p.set_eos_id(3); }), HasSubstr("eos_id = 3"));
  EXPECT_THAT(Refusal([](auto& p) { p.set_unknown_id(~0u); }), HasSubstr("unknown_id"));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTokenizer("GGUF, of an earlier version").status()));
}

}  // namespace
}  // namespace flotilla::codec
