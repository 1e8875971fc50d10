#include "common/traces/request_trace.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCsv[] = R"(# recorded on a Tuesday
arrival_s, prompt_tokens, output_tokens, tenant, priority, deadline_s, prefix_group, prefix_tokens, n, beams
1.5, 10, 20, alice, 2, 0.25, 7, 4, 3, 0

0, 11, 21, bob, -1, 0, 0, 0, 1, 4
)";

TEST(RequestTraceTest, CsvIsReadAndSorted) {
  const absl::StatusOr<RequestTrace> w = ParseTrace(kCsv);
  ASSERT_TRUE(w.ok()) << w.status();
  EXPECT_THAT(w->tenants, ElementsAre("alice", "bob"));
  const TracedRequest bob{
      .prompt_tokens = 11, .output_tokens = 21, .tenant = 1, .priority = -1, .beams = 4};
  const TracedRequest alice{.arrival_ns = 1'500'000'000,
                            .prompt_tokens = 10,
                            .output_tokens = 20,
                            .priority = 2,
                            .deadline_ns = 250'000'000,
                            .prefix_group = 7,
                            .prefix_tokens = 4,
                            .sequences = 3};
  EXPECT_THAT(w->requests, ElementsAre(bob, alice));
}

TEST(RequestTraceTest, JsonLinesSayTheSame) {
  const absl::StatusOr<RequestTrace> w = ParseTrace(
      "{\"arrival_s\": 1.5, \"prompt_tokens\": 10, \"output_tokens\": 20, \"tenant\": \"alice\"}\n"
      "\n"
      "{\"arrival_s\": 0, \"prompt_tokens\": 11, \"output_tokens\": 21, \"tenant\": \"bob\"}\n");
  ASSERT_TRUE(w.ok()) << w.status();
  const absl::StatusOr<RequestTrace> csv = ParseTrace(
      "arrival_s,prompt_tokens,output_tokens,tenant\r\n1.5,10,20,alice\r\n0,11,21,bob\r\n");
  ASSERT_TRUE(csv.ok()) << csv.status();
  EXPECT_EQ(w->requests, csv->requests);
  EXPECT_EQ(w->tenants, csv->tenants);
}

TEST(RequestTraceTest, HostileInputIsRefusedByLineAndColumn) {
  const std::string head = "arrival_s,prompt_tokens,output_tokens\n";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "no header"},
      {head, "the trace has no requests"},
      {"arrival_s,prompt_tokens\n0,1\n", "column output_tokens is missing"},
      {"arrival_s,prompt_tokens,output_tokens,color\n", "line 1: unknown column \"color\""},
      {"arrival_s,arrival_s,output_tokens\n", "line 1: column \"arrival_s\" comes twice"},
      {head + "0,1,1\n0,1\n", "line 3: 2 cells, the header has 3"},
      {head + "0,1,1\n\n0,one,1\n", "line 4: column prompt_tokens: \"one\" is not a number"},
      {head + "-1,1,1\n", "line 2: column arrival_s"},
      {head + "nan,1,1\n", "line 2: column arrival_s"},
      {head + "1e300,1,1\n", "line 2: column arrival_s"},
      {head + "0,0,1\n", "line 2: column prompt_tokens"},
      {head + "0,1,99999999999\n", "line 2: column output_tokens"},
      {head + "0,1.5,1\n", "line 2: column prompt_tokens: the value is not a whole number"},
      {head + "0,\"1\",1\n", "line 2: quotes"},
      {head + "0,1,\x1b[2J\n", "line 2: column output_tokens"},
      {"{\"arrival_s\":0,\"prompt_tokens\":1,\"output_tokens\":1}\nnonsense",
       "line 2: the line is not JSON"},
      {"{\"arrival_s\":0,\"prompt_tokens\":1}", "line 1: column output_tokens is missing"},
      {"{\"arrival_s\":\"0\",\"prompt_tokens\":1,\"output_tokens\":1}", "line 1: column arrival_s"},
      {"{\"arrival_s\":0,\"prompt_tokens\":1,\"output_tokens\":1,\"x\":1}",
       "line 1: unknown column \"x\""},
      {"{\"arrival_s\":0,\"prompt_tokens\":1,\"output_tokens\":1,\"tenant\":[]}",
       "line 1: column tenant"},
      {"{\"arrival_s\":0}" + std::string(5000, ' ') + "{", "line 1"},
  };
  for (const auto& [text, message] : bad) {
    const absl::Status status = ParseTrace(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\x1b"))) << text;
  }
}

}  // namespace
}  // namespace flotilla
