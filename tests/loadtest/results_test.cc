// Results as JSON, tables and a page.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loadtest/core/load_recorder.h"
#include "loadtest/html_report.h"
#include "loadtest/result_json.h"
#include "loadtest/result_table.h"

namespace flotilla::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMillisecond = 1'000'000;

LoadResult Measured(std::int64_t ttft_ms) {
  LoadRecorder recorder({});
  for (int i = 0; i < 50; ++i) {
    RequestMeter meter = recorder.OnSent(i * 10 * kMillisecond, i * 10 * kMillisecond);
    recorder.OnToken(meter, (i * 10 + ttft_ms) * kMillisecond);
    recorder.OnToken(meter, (i * 10 + ttft_ms + 20) * kMillisecond);
    recorder.OnFinished(meter, {}, (i * 10 + ttft_ms + 21) * kMillisecond);
  }
  recorder.OnSent(600 * kMillisecond, 600 * kMillisecond);
  recorder.OnFailed("HTTP 503 <queue>", 700 * kMillisecond);
  LoadResult result = recorder.Result();
  result.label = "run & <b>";
  result.settings = {{"server", "http://h:1"}};
  return result;
}

TEST(ResultsTest, JsonIsReadBack) {
  const std::vector<LoadResult> runs = {Measured(100), Measured(200)};
  const std::string json = ResultsJson(runs);
  const auto read = ParseResults(json);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ(ResultsJson(*read), json);
  EXPECT_NEAR((*read)[0].ttft_ms.p50, 100, 0.1);
  EXPECT_EQ((*read)[0].failures.at("HTTP 503 <queue>"), 1);
}

TEST(ResultsTest, OtherJsonIsRefused) {
  for (const char* bad : {"", "{}", "[]", "{\"runs\": []}", "{\"runs\": 7}", "nonsense"}) {
    EXPECT_EQ(ParseResults(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  // What a run lacks is 0, and what has another type is not read.
  const auto strange = ParseResults(
      R"({"runs": [7, {"label": 5, "requests": "x", "ttft_ms": {"curve": [1, [2]]}, "failures": [3],
          "intervals": [null]}]})");
  ASSERT_TRUE(strange.ok());
  EXPECT_EQ((*strange)[1].requests, 0);
}

TEST(ResultsTest, TwoRunsHaveTheirChange) {
  const std::vector<LoadResult> runs = {Measured(100), Measured(150)};
  const std::string table = ResultTable(runs);
  EXPECT_THAT(table, HasSubstr("change"));
  EXPECT_THAT(table, HasSubstr("+50.0 %"));
  EXPECT_THAT(table, HasSubstr("failed: HTTP 503 <queue>"));
  EXPECT_THAT(ResultTable({&runs[0], 1}), HasSubstr("TTFT"));
  EXPECT_THAT(SweepTable(runs), HasSubstr("good share"));
}

TEST(ResultsTest, ThePageIsWholeAndEscaped) {
  HtmlReport report{.title = "a <script>alert(1)</script>"};
  report.runs = {Measured(100)};
  report.predictions = {Measured(120)};
  const std::string page = report.Draw();
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<queue>")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  for (const char* part : {"TTFT, distribution", "ITL, distribution", "Requests in flight",
                           "Failures", "Throughput", "HTTP 503 &lt;queue&gt;", "simulated"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  report.sweep = true;
  report.knee = 3.5;
  report.predicted_knee = 4;
  EXPECT_THAT(report.Draw(), HasSubstr("Over the offered load"));
}

}  // namespace
}  // namespace flotilla::loadtest
