#include "router/metrics.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_engine.h"

namespace flotilla::router {
namespace {

using ::testing::HasSubstr;

TEST(RouterMetricsTest, RefusalsAreCountedByReason) {
  Metrics registry(Metrics::Labels{{"model", "m"}});
  RouterMetrics metrics(registry);
  metrics.OnRefused(absl::ResourceExhaustedError("full"));
  metrics.OnRefused(absl::UnavailableError("draining"), /*draining=*/true);
  metrics.OnRefused(absl::UnavailableError("no scheduler is there"));
  metrics.OnRefused(absl::UnavailableError("no memory"));
  metrics.OnConnectionRefused();
  metrics.OnRefused(absl::OutOfRangeError("long"));
  metrics.OnRefused(absl::InvalidArgumentError("bad"));
  metrics.OnRefused(absl::NotFoundError("model"));
  metrics.OnRefused(absl::UnauthenticatedError("key"));
  metrics.OnRefused(absl::InternalError("?"));
  const std::string page = registry.Render();
  for (const auto& [reason, count] : {std::pair{"queue_full", "1"},
                                      {"draining", "1"},
                                      {"unavailable", "2"},
                                      {"connections", "1"},
                                      {"too_long", "1"},
                                      {"invalid", "2"},
                                      {"deadline", "0"},
                                      {"unauthenticated", "1"},
                                      {"other", "1"}}) {
    EXPECT_THAT(page,
                HasSubstr(std::string("flotilla_router_rejected_total{model=\"m\",reason=\"") +
                          reason + "\"} " + count + "\n"));
  }
}

TEST(RouterMetricsTest, RequestsInFlightComeAndGo) {
  Metrics registry(Metrics::Labels{{"model", "m"}});
  RouterMetrics metrics(registry);
  metrics.OnStarted();
  metrics.OnStarted();
  metrics.OnEnded();
  const std::string page = registry.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_router_requests_total{model=\"m\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_requests_in_flight{model=\"m\"} 1\n"));
}

TEST(RouterMetricsTest, ARouterIsReadyWhenItsEngineIs) {
  testing::FakeEngine engine;
  engine.SetReady(false);
  Metrics metrics;
  WatchEngine(metrics, &engine);
  const auto expect = [&metrics](const char* ready, const char* draining) {
    const std::string page = metrics.Render();
    EXPECT_THAT(page, HasSubstr(std::string("\nflotilla_router_ready ") + ready + "\n"));
    EXPECT_THAT(page, HasSubstr(std::string("\nflotilla_router_draining ") + draining + "\n"));
  };
  expect("0", "0");
  engine.SetReady(true);
  expect("1", "0");
  engine.Drain([] {});
  expect("0", "1");
}

TEST(RouterMetricsTest, ModelsOfOneRouterAreToldApart) {
  Metrics registry;
  RouterMetrics a(registry, {{"model", "a"}}), b(registry, {{"model", "b"}});
  b.OnReplayed();
  b.OnRefused(absl::ResourceExhaustedError("full"));
  const std::string page = registry.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_router_retries_total{model=\"a\"} 0"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_retries_total{model=\"b\"} 1"));
  EXPECT_THAT(page,
              HasSubstr("flotilla_router_rejected_total{model=\"b\",reason=\"queue_full\"} 1"));
}

}  // namespace
}  // namespace flotilla::router
