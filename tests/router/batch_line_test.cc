// The lines of a batch's files: what is read, what is refused, and what is written.
#include "router/batch/batch_line.h"

#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/batch/batch_report.h"

namespace flotilla::router {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Line(const std::string& members) {
  return R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"})" +
         members + "}";
}

TEST(BatchLineTest, ARequestIsRead) {
  const auto request =
      ParseBatchRequest(R"( {"body":{"seed":18446744073709551615,"t":0.1,"s":"é\n\u0000"},)"
                        R"("url":"/v1/chat/completions","custom_id":"id-\"1\""} )");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->custom_id, "id-\"1\"");
  EXPECT_EQ(request->url, "/v1/chat/completions");
  EXPECT_EQ(nlohmann::json::parse(request->body),
            nlohmann::json::parse(R"({"seed":18446744073709551615,"t":0.1,"s":"é\n\u0000"})"));
}

// Templates and schemas go by the order of members.
TEST(BatchLineTest, TheBodyIsWhatTheLineHas) {
  const std::string body = R"({"z": 1,  "a": {"y": [2 ,1], "b": "\u0041"}})";
  const auto request =
      ParseBatchRequest(R"({"body" : )" + body + R"( , "custom_id":"1","url":"/v1/completions"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->body, body);
}

TEST(BatchLineTest, WhatIsWrongIsNamed) {
  const std::string id(257, 'x');
  const std::vector<std::tuple<std::string, std::string>> lines = {
      {"", "the line is not a JSON object"},
      {"[1]", "not a JSON object"},
      {Line("}"), "not a JSON object"},
      {Line(R"(,"priority":1)"), "priority"},
      {R"({"url":"/v1/completions","body":{}})", "'custom_id' is missing"},
      {R"({"custom_id":"","url":"/v1/completions","body":{}})", "'custom_id' is missing"},
      {R"({"custom_id":7,"url":"/v1/completions","body":{}})", "custom_id"},
      {R"({"custom_id":")" + id + R"(","url":"/v1/completions","body":{}})",
       "'custom_id' has 257 bytes; at most 256"},
      {R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})", "must be POST"},
      {R"({"custom_id":"a","url":"/v1/embeddings","body":{}})", "'url' must be "},
      {R"({"custom_id":"a","url":"/v1/completions"})", "'body' is missing"},
      {R"({"custom_id":"a","url":"/v1/completions","body":[]})", "'body' must be an object"},
      {R"({"custom_id":"a","url":"/v1/completions","body":{"stream":true}})", "no streams"}};
  for (const auto& [line, said] : lines) {
    const auto request = ParseBatchRequest(line);
    ASSERT_FALSE(request.ok()) << line;
    EXPECT_TRUE(absl::IsInvalidArgument(request.status()));
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(said)) << line;
  }
}

TEST(BatchLineTest, AnAnswerThatIsWrittenIsReadBack) {
  const std::string body =
      R"({"id":"cmpl-1","custom_id":"no","status_code":1,"choices":[{"usage":{"prompt_tokens":9}}],)"
      R"("usage":{"prompt_tokens":12,"completion_tokens":3}})";
  const std::string line = BatchAnswerLine(7, "é\"", 200, body);
  ASSERT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["id"], "batch_req_7");
  EXPECT_EQ(json["response"]["request_id"], "é\"");
  EXPECT_EQ(json["response"]["body"], nlohmann::json::parse(body));
  EXPECT_TRUE(json["error"].is_null());
  const auto answer = ReadBatchAnswer(line.substr(0, line.size() - 1));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->custom_id, "é\"");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->prompt_tokens, 12u);
  EXPECT_EQ(answer->completion_tokens, 3u);
}

TEST(BatchLineTest, ALineMaySayThatThereIsNoAnswer) {
  const std::string line = BatchFailureLine(7, "é\"", "batch_expired", "too \"late\"");
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["id"], "batch_req_7");
  EXPECT_TRUE(json["response"].is_null());
  EXPECT_EQ(json["error"]["code"], "batch_expired");
  EXPECT_EQ(json["error"]["message"], "too \"late\"");
  const auto answer = ReadBatchAnswer(line);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->custom_id, "é\"");
  EXPECT_EQ(answer->status, 0);
}

TEST(BatchLineTest, WhatIsNoAnswerIsRefused) {
  const std::string whole = BatchAnswerLine(1, "a", 400, R"({"error":{"message":"no"}})");
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {  // a torn line
    EXPECT_FALSE(ReadBatchAnswer(whole.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(ReadBatchAnswer(whole).ok());
  for (const std::string& line :
       {Line(""), std::string(R"({"custom_id":"a","response":null,"error":{}})"),
        std::string(R"({"response":{"status_code":200}})"), std::string(100'000, '['),
        std::string(10, '\0')}) {
    EXPECT_FALSE(ReadBatchAnswer(line).ok()) << line.substr(0, 100);
  }
}

TEST(BatchReportTest, ProgressSaysRatesAndTheTimeLeft) {
  const BatchCounts before{.lines = 1000, .answered = 100, .completion_tokens = 50};
  BatchCounts now = before;
  EXPECT_EQ(ProgressText(before, now, 2), "100/1000 answered (10 %), 0 requests/s, 0 tokens/s");
  now.answered = 120;
  now.completion_tokens = 130;
  EXPECT_EQ(ProgressText(before, now, 2),
            "120/1000 answered (12 %), 10 requests/s, 40 tokens/s, 88 s left");
  EXPECT_THAT(ProgressText(before, now, 200), HasSubstr(", 2 h 26 min left"));
  now.answered = 999;
  EXPECT_THAT(ProgressText(before, now, 2), HasSubstr("(99 %)"));
  EXPECT_THAT(ProgressText({}, {}, 0), Not(HasSubstr("left")));
}

TEST(BatchReportTest, TheSummaryCountsByStatus) {
  const BatchCounts before{.lines = 10, .answered = 4, .by_status = {{200, 4}}};
  const BatchCounts now{.lines = 10,
                        .answered = 10,
                        .by_status = {{200, 9}, {400, 1}},
                        .prompt_tokens = 50,
                        .completion_tokens = 20};
  EXPECT_EQ(
      SummaryText(before, now, 2),
      "10 of 10 requests are answered: 9 with 200, 1 with 400; 50 prompt tokens, 20 completion "
      "tokens\nthis run: 6 requests in 2.0 s, 3 requests/s, 10 completion tokens/s\n");
  EXPECT_FALSE(AllSucceeded(now));
  EXPECT_TRUE(AllSucceeded({.lines = 2, .answered = 2, .by_status = {{200, 2}}}));
  EXPECT_FALSE(AllSucceeded({.lines = 2, .answered = 1, .by_status = {{200, 1}}}));
}

}  // namespace
}  // namespace flotilla::router
