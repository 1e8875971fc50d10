#include "cli/metrics_page.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/obs/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr std::int64_t kSecond = 1'000'000'000;

MetricsPage Page(std::string_view text, std::int64_t time_ns = 0) {
  absl::StatusOr<MetricsPage> page = MetricsPage::Parse(text, time_ns);
  EXPECT_TRUE(page.ok()) << page.status();
  return *std::move(page);
}

TEST(MetricsPageTest, ReadsWhatTheFormatAllows) {
  const MetricsPage page = Page(
      "# HELP a_total Help, with { and }.\n"
      "# TYPE a_total counter\n"
      "a_total{model=\"m\",by=\"client\"} 3\n"
      "a_total{model=\"m\",by=\"deadline\",} 4 1700000000000\n"
      "\n"
      "b 2.5e-1\n"
      "c{text=\"a \\\"quoted\\\" \\\\ line\\nand }\"} +Inf\n"
      "d NaN");
  EXPECT_EQ(page.Sum("a_total"), 7);
  EXPECT_EQ(page.Sum("a_total", {{"by", "client"}}), 3);
  EXPECT_EQ(page.Sum("a_total", {{"by", "nobody"}}), 0);
  EXPECT_EQ(page.Sum("a_total", {{"other", "client"}}), 0);
  EXPECT_EQ(page.Sum("b"), 0.25);
  EXPECT_EQ(page.Label("c", "text"), "a \"quoted\" \\ line\nand }");
  EXPECT_EQ(page.Sum("c"), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(page.Has("d"));
  EXPECT_FALSE(page.Has("e"));
  EXPECT_EQ(page.Label("e", "text"), "");
  EXPECT_EQ(page.Label("b", "text"), "");
}

TEST(MetricsPageTest, RefusesWhatIsNotOfTheFormat) {
  for (const char* text : {"a", "a x", "a{", "a{b} 1", "a{b=1} 1", "a{b=\"1} 1", "a{b=\"1\\", " 1",
                           "<html>", "a{b=\"1\"", "{} 1"}) {
    const absl::StatusOr<MetricsPage> page = MetricsPage::Parse(absl::StrCat("b 1\n", text), 0);
    ASSERT_FALSE(page.ok()) << text;
    EXPECT_THAT(std::string(page.status().message()), HasSubstr("line 2")) << text;
  }
}

TEST(MetricsPageTest, ReadsWhatOurRegistryWrites) {
  Metrics metrics(Metrics::Labels{{"model", "a \"b\"\\"}});
  metrics.AddCounter("flotilla_a_total", "A.", {{"by", "client"}}).Increment(5);
  Histogram& seconds = metrics.AddHistogram("flotilla_b_seconds", "B.", {1, 2});
  seconds.Observe(0.5);
  seconds.Observe(9);
  const MetricsPage page = Page(metrics.Render());
  EXPECT_EQ(page.Sum("flotilla_a_total", {{"model", "a \"b\"\\"}}), 5);
  const std::map<double, double> expected = {
      {1, 1}, {2, 1}, {std::numeric_limits<double>::infinity(), 2}};
  EXPECT_EQ(page.Buckets("flotilla_b_seconds"), expected);
}

TEST(MetricsChangeTest, RatesArePerSecond) {
  const MetricsPage before = Page("a{x=\"1\"} 10\na{x=\"2\"} 100\nb 5\n", 1 * kSecond);
  const MetricsPage now = Page("a{x=\"1\"} 16\na{x=\"2\"} 100\nb 8\n", 3 * kSecond);
  const MetricsChange change(&before, now);
  EXPECT_THAT(change.Rate("a"), Optional(3.0));
  EXPECT_THAT(change.Rate("a", {{"x", "2"}}), Optional(0.0));
  EXPECT_THAT(change.Ratio("a", "b"), Optional(2.0));
  EXPECT_EQ(change.Ratio("b", "a", {}, {{"x", "2"}}), std::nullopt);  // it did not rise
}

TEST(MetricsChangeTest, OneLookHasNoRates) {
  const MetricsPage now = Page("a 16\n", 3 * kSecond);
  EXPECT_EQ(MetricsChange(nullptr, now).Rate("a"), std::nullopt);
  EXPECT_EQ(MetricsChange(&now, now).Rate("a"), std::nullopt);
  EXPECT_EQ(MetricsChange(nullptr, now).Ratio("a", "a"), std::nullopt);
  EXPECT_EQ(MetricsChange(nullptr, now).Quantile("h", 0.5), std::nullopt);
}

TEST(MetricsChangeTest, ARestartedProcessCountsFromZero) {
  const MetricsPage before =
      Page("a 1000\nh_bucket{le=\"1\"} 50\nh_bucket{le=\"+Inf\"} 50\n", 1 * kSecond);
  const MetricsPage now = Page(
      "a 4\nh_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 4\nh_bucket{le=\"+Inf\"} 4\n", 2 * kSecond);
  const MetricsChange change(&before, now);
  EXPECT_THAT(change.Rate("a"), Optional(4.0));
  EXPECT_THAT(change.Quantile("h", 0.5), Optional(1.5));
}

TEST(MetricsChangeTest, QuantilesAreOfWhatCameInBetween) {
  const auto page = [](int one, int two, int all, std::int64_t time_ns) {
    return Page(absl::StrCat("h_bucket{le=\"1\"} ", one, "\nh_bucket{le=\"2\"} ", two,
                             "\nh_bucket{le=\"+Inf\"} ", all, "\n"),
                time_ns);
  };
  const MetricsPage before = page(100, 100, 100, 0);
  const MetricsPage now = page(100, 108, 110, kSecond);  // 8 between 1 and 2, 2 beyond
  const MetricsChange change(&before, now);
  EXPECT_THAT(change.Quantile("h", 0.4), Optional(DoubleNear(1.5, 1e-9)));
  EXPECT_THAT(change.Quantile("h", 0.99), Optional(2.0));  // no more is known
  EXPECT_EQ(MetricsChange(&now, now).Quantile("h", 0.5), std::nullopt);
}

}  // namespace
}  // namespace flotilla::cli
