#include "proto/codec/tokenizer.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flotilla/v1/tokenizer.pb.h"

namespace flotilla::codec {
namespace {

using ::testing::HasSubstr;

TokenizerBundle Full() {
  using Kind = TextStep::Kind;
  return {.kind = "gpt2",
          .steps = TextSteps{.normalizer = {{.kind = Kind::kPrecompiled, .text = {"\0\xff", 2}},
                                            {.kind = Kind::kReplace,
                                             .flags = TextStep::kRegex,
                                             .pattern = " +",
                                             .text = " "}},
                             .pre_tokenizer = {{.kind = Kind::kSplit,
                                                .behavior = TextStep::Behavior::kContiguous}},
                             .decoder = {{.kind = Kind::kStrip, .start = 1, .stop = 2}}},
          .pretokenizer = "smollm",
          .tokens = {"<s>", std::string("\xff\0", 2), "ab"},  // bytes, not always UTF-8
          .kinds = {TokenKind::kControl, TokenKind::kByte, TokenKind::kNormal},
          .merges = {"a b"},
          .scores = {0, -1, 0.1},  // the last one is none in single precision
          .bos = 0,
          .eos = 1,
          .eot = 2,
          .eom = 0,
          .unknown = 1,
          .pad = 2,
          .more_ends = {1, 2},
          .add_bos = false,
          .add_eos = true,
          .prefix = {2, 0},
          .suffix = {1},
          .fuses_unknown = false,
          .word_prefix = "##",
          .max_word_characters = 100,
          .space_prefix = SpacePrefix::kTextWithout,
          .added_rules = {{.id = 2, .strips_left = true, .normalized = true},
                          {.id = 1, .byte = true},
                          {.id = 0, .strips_right = true, .whole_word = true, .in_model = true}},
          .chat_template = "",
          .more_templates = {{.name = "tool_use", .text = "x"}, {.name = "rag", .text = ""}},
          .sampling = {{.name = "temperature", .value = 0.6}, {.name = "top_k", .value = 20}}};
}

TEST(TokenizerCodec, BringsEveryField) {
  const auto full = ReadTokenizer(WriteTokenizer(Full()));
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(*full, Full());
  TokenizerBundle single = Full();
  single.scores[2] = 0.5;
  EXPECT_EQ(*ReadTokenizer(WriteTokenizer(single)), single);
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
  EXPECT_THAT(Refusal([](auto& p) { p.add_suffix_ids(3); }), HasSubstr("suffix_ids = 3"));
  EXPECT_THAT(Refusal([](auto& p) { p.mutable_steps()->add_decoder(); }),
              HasSubstr("steps.decoder: step 1 of kind 0"));
  EXPECT_THAT(Refusal([](auto& p) { p.mutable_steps()->mutable_normalizer(0)->set_behavior(5); }),
              HasSubstr("steps.normalizer: step 0 of kind 9, behavior 5"));
  EXPECT_THAT(
      Refusal([](auto& p) { p.mutable_steps()->mutable_normalizer(0)->set_flags(1 << 17); }),
      HasSubstr("and flags 131072 is unknown"));
  EXPECT_THAT(Refusal([](auto& p) {
                for (int i = 0; i < 16; ++i) p.mutable_steps()->add_decoder()->set_kind(1);
              }),
              HasSubstr("steps.decoder has 17 steps, not at most 16"));
  EXPECT_THAT(Refusal([](auto& p) { p.add_more_end_ids(3); }), HasSubstr("more_end_ids = 3"));
  EXPECT_THAT(Refusal([](auto& p) {
                for (int i = 0; i < 63; ++i) p.add_more_end_ids(0);
              }),
              HasSubstr("more_end_ids has 65 tokens, not at most 64"));
  EXPECT_THAT(Refusal([](auto& p) { p.set_unknown_id(~0u); }), HasSubstr("unknown_id"));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTokenizer("GGUF, of an earlier version").status()));
}

}  // namespace
}  // namespace flotilla::codec
