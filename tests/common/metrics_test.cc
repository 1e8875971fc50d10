#include "common/obs/metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, SeriesAreThereFromTheStart) {
  Metrics metrics;
  metrics.AddCounter("flotilla_router_rejected_total", "Refused.", {{"reason", "queue_full"}});
  metrics.AddHistogram("flotilla_step_seconds", "Steps.", {0.1, 1});
  const std::string page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("# TYPE flotilla_router_rejected_total counter"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_rejected_total{reason=\"queue_full\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_step_seconds_bucket{le=\"+Inf\"} 0"));
}

TEST(MetricsTest, CommonLabelsAreOnEverySeries) {
  Metrics metrics(Metrics::Labels{{"model", "m"}});
  metrics.AddGauge("flotilla_a", "A.");
  metrics.AddCounter("flotilla_b_total", "B.", {{"by", "client"}});
  metrics.AddHistogram("flotilla_c", "C.", {1});
  const std::string page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_a{model=\"m\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_b_total{model=\"m\",by=\"client\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_c_bucket{model=\"m\",le=\"1\"} 0"));
}

TEST(MetricsTest, HistogramsCount) {
  Metrics metrics;
  Histogram& steps = metrics.AddHistogram("flotilla_step_seconds", "Steps.", {0.1, 1});
  steps.Observe(0.05);
  steps.Observe(0.5);
  steps.Observe(5);
  const std::string page = metrics.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_step_seconds_bucket{le=\"0.1\"} 1"));
  EXPECT_THAT(page, HasSubstr("flotilla_step_seconds_bucket{le=\"1\"} 2"));
  EXPECT_THAT(page, HasSubstr("flotilla_step_seconds_count 3"));
}

TEST(MetricsTest, SnapshotsAreTakenAtEveryRender) {
  Metrics metrics;
  Gauge& depth = metrics.AddGauge("flotilla_depth", "Depth.");
  int value = 0;
  metrics.OnRender([&] { depth.Set(++value); });
  EXPECT_THAT(metrics.Render(), HasSubstr("flotilla_depth 1\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("flotilla_depth 2\n"));
}

TEST(MetricsTest, TotalsKeptElsewhereNeverGoBack) {
  Metrics metrics;
  Counter& total = metrics.AddCounter("flotilla_preemptions_total", "Preemptions.");
  RaiseTo(total, 5);
  RaiseTo(total, 3);
  EXPECT_EQ(total.Value(), 5);
  RaiseTo(total, 8);
  EXPECT_EQ(total.Value(), 8);
}

}  // namespace
}  // namespace flotilla
