#include "loadtest/core/answer_event.h"

#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

TEST(AnswerEventTest, TextOfBothRoutes) {
  const auto chat = ReadAnswerEvent(
      R"({"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"a \"b\"\n"},"finish_reason":null}]})");
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->text, "a \"b\"\n");
  EXPECT_FALSE(chat->finished);
  const auto completion =
      ReadAnswerEvent(R"({"choices":[{"text":" word","logprobs":null,"finish_reason":"length"}]})");
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->text, " word");
  EXPECT_TRUE(completion->finished);
  EXPECT_EQ(ReadAnswerEvent(R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})")->text, "hm");
}

TEST(AnswerEventTest, OnlyTheAnswerIsText) {
  const auto event = ReadAnswerEvent(
      R"({"content":"no","choices":[{"delta":{"tool":{"content":"no"}},"logprobs":{"content":[{"token":"no","text":"no"}]}}]})");
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->text, "");
}

TEST(AnswerEventTest, UsageIsTheServersCount) {
  const auto event = ReadAnswerEvent(
      R"({"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46,"prompt_tokens_details":{"cached_tokens":8}}})");
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->prompt_tokens, 12u);
  EXPECT_EQ(event->completion_tokens, 34u);
  EXPECT_EQ(event->cached_tokens, 8u);
  EXPECT_EQ(ReadAnswerEvent(R"({"usage":null})")->prompt_tokens, std::nullopt);
}

TEST(AnswerEventTest, ErrorsHaveTheirCode) {
  const auto code_of = [](const char* json) {
    const auto event = ReadAnswerEvent(json);
    return event.has_value() && event->failed ? event->error_code : "none";
  };
  EXPECT_EQ(code_of(R"({"error":{"message":"m","type":"server_error","code":"queue_full"}})"),
            "queue_full");
  EXPECT_EQ(code_of(R"({"error":{"type":"server_error","code":null}})"), "server_error");
  EXPECT_EQ(code_of(R"({"error":{"code":503}})"), "503");
  EXPECT_EQ(code_of(R"({"error":"out of memory"})"), "");
  EXPECT_EQ(code_of(R"({"error":null})"), "none");
}

TEST(AnswerEventTest, WhatIsNotJsonIsNoEvent) {
  EXPECT_FALSE(ReadAnswerEvent("").has_value());
  EXPECT_FALSE(ReadAnswerEvent("{\"choices\":").has_value());
  EXPECT_FALSE(ReadAnswerEvent("<html>").has_value());
  EXPECT_FALSE(ReadAnswerEvent("{\"a\":\"\xff\"}").has_value());
  EXPECT_FALSE(ReadAnswerEvent(std::string(100'000, '[')).has_value());
}

}  // namespace
}  // namespace flotilla::loadtest
