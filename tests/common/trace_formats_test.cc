#include "common/traces/trace_formats.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kSecond = 1'000'000'000;

absl::StatusOr<RequestTrace> Read(const std::string& text) {
  return ReadTrace(text, DetectTraceFormat(text));
}

TEST(TraceFormatsTest, MooncakeHasBlocks) {
  const auto trace = Read(
      "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, "
      "47]}\n"
      "{\"timestamp\": 25482, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": []}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(trace->requests, ElementsAre(TracedRequest{.prompt_tokens = 10, .output_tokens = 1},
                                           TracedRequest{.arrival_ns = 2 * kSecond,
                                                         .prompt_tokens = 6955,
                                                         .output_tokens = 52,
                                                         .blocks = {46, 47}}));
}

TEST(TraceFormatsTest, BurstGptLeavesFailuresOut) {
  const auto trace = Read(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
      "5,ChatGPT,472,18,490,Conversation log\r\n"
      "45,ChatGPT,1087,0,1087,Conversation log\r\n"
      "118.5,GPT-4,417,276,693,API log\r\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(trace->requests, ElementsAre(TracedRequest{.prompt_tokens = 472, .output_tokens = 18},
                                           TracedRequest{.arrival_ns = 113 * kSecond + kSecond / 2,
                                                         .prompt_tokens = 417,
                                                         .output_tokens = 276}));
}

TEST(TraceFormatsTest, AzureCountsFromTheFirstDate) {
  const auto trace = Read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-12-31 23:59:59.5000000,4808,10\n"
      "2024-01-01 00:00:00.250000+00:00,3180,8\n"
      "2024-03-01 00:00:00,110,27\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(
      trace->requests,
      ElementsAre(
          TracedRequest{.prompt_tokens = 4808, .output_tokens = 10},
          TracedRequest{.arrival_ns = 3 * kSecond / 4, .prompt_tokens = 3180, .output_tokens = 8},
          // 2024 has a 29th of February.
          TracedRequest{.arrival_ns = 60 * 86400 * kSecond + kSecond / 2,
                        .prompt_tokens = 110,
                        .output_tokens = 27}));
}

TEST(TraceFormatsTest, OwnTracesAreDetected) {
  const auto trace = Read("arrival_s,prompt_tokens,output_tokens\n1,2,3\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests[0].arrival_ns, kSecond);
  EXPECT_TRUE(Read("{\"arrival_s\":0,\"prompt_tokens\":1,\"output_tokens\":1}").ok());
}

TEST(TraceFormatsTest, HostileInputIsRefusedByLine) {
  const std::string mooncake = "{\"timestamp\":1,\"input_length\":";
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::string burst = "Timestamp,Request tokens,Response tokens\n";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {mooncake + "0,\"output_length\":1}", "line 1: input_length"},
      {mooncake + "1}", "line 1: output_length"},
      {mooncake + "1,\"output_length\":1,\"hash_ids\":7}", "line 1: hash_ids"},
      {mooncake + "1,\"output_length\":1,\"hash_ids\":[-7]}", "line 1: hash_ids"},
      {mooncake + "1,\"output_length\":1}\n" + std::string(20000, '['), "line 2: the line is long"},
      {mooncake + "1,\"output_length\":1}\n[[[", "line 2: the line is not JSON"},
      {azure, "the trace has no requests"},
      {azure + "yesterday,1,1\n", "line 2: column TIMESTAMP"},
      {azure + "2023-13-16 18:15:46,1,1\n", "line 2: column TIMESTAMP"},
      {azure + "2023-11-16 18:15:nan,1,1\n", "line 2: column TIMESTAMP"},
      {azure + "2023-11-16 18:15:46,1,\x1b[2J\n", "line 2: column GeneratedTokens"},
      {"TIMESTAMP,ContextTokens\n", "column GeneratedTokens is missing"},
      {burst + "1e300,1,1\n", "line 2: column Timestamp"},
      {burst + "1,-1,1\n", "line 2: column Request tokens"},
      {burst + "1,1,0\n", "the trace has no requests"},
  };
  for (const auto& [text, message] : bad) {
    const absl::Status status = Read(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text.substr(0, 100);
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\x1b"))) << text.substr(0, 100);
  }
}

TEST(TraceFormatsTest, NamesAreFound) {
  for (const std::string& name : TraceFormatNames()) EXPECT_TRUE(FindTraceFormat(name).ok());
  EXPECT_EQ(FindTraceFormat("csv").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace flotilla
