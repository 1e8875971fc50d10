#include "router/remote/metrics.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace flotilla::router {
namespace {

// One replica as a router sees it.
struct ReplicaSeries {
  Gauge* up = nullptr;
  Gauge* outstanding = nullptr;
  Counter* requests = nullptr;
  std::uint64_t seen = 0;  // its requests that were counted; 0 again after a restart
};
ReplicaSeries AddReplica(Metrics& metrics, const std::string& address) {
  const Metrics::Labels labels = {{"replica", address}};
  return {
      .up = &metrics.AddGauge("flotilla_router_replica_up",
                              "1: the scheduler and its worker group are there.", labels),
      .outstanding = &metrics.AddGauge(
          "flotilla_router_replica_outstanding_tokens",
          "Outstanding tokens of the replica, as this router knows them.", labels),
      .requests = &metrics.AddCounter("flotilla_router_replica_requests_total",
                                      "Requests sent to the replica, replays included.", labels)};
}

}  // namespace

void WatchFleet(Metrics& metrics, const Fleet* fleet) {
  constexpr const char* kKinds[] = {"not_begun", "begun"};
  constexpr const char* kResults[kReplayResults] = {"sent", "resumed", "expired", "impossible"};
  std::array<std::array<Counter*, kReplayResults>, 2> replays;
  for (std::size_t kind = 0; kind < replays.size(); ++kind) {
    for (std::size_t result = 0; result < kReplayResults; ++result) {
      replays[kind][result] = &metrics.AddCounter(
          "flotilla_router_replays_total",
          "Requests that replicas gave back: whether tokens had been delivered, and what became of "
          "them.",
          {{"kind", kKinds[kind]}, {"result", kResults[result]}});
    }
  }
  // The series by address. Replicas come and go; a replica that has gone keeps its series, with
  // `up` 0.
  auto all = std::make_shared<std::map<std::string, ReplicaSeries>>();
  metrics.OnRender([&metrics, fleet, replays, all] {
    const FleetCounters counters = fleet->Counters();
    for (std::size_t kind = 0; kind < replays.size(); ++kind) {
      for (std::size_t result = 0; result < kReplayResults; ++result) {
        RaiseTo(*replays[kind][result], static_cast<double>(counters.replays[kind][result]));
      }
    }
    for (auto& [address, series] : *all) {
      series.up->Set(0);
      series.outstanding->Set(0);
    }
    for (const FleetReplica& replica : fleet->Replicas()) {
      const auto [at, fresh] = all->try_emplace(replica.address);
      ReplicaSeries& series = at->second;
      if (fresh) series = AddReplica(metrics, replica.address);
      series.up->Set(replica.view.up ? 1 : 0);
      series.outstanding->Set(static_cast<double>(replica.view.outstanding_tokens));
      if (replica.view.requests < series.seen) series.seen = 0;
      series.requests->Increment(static_cast<double>(replica.view.requests - series.seen));
      series.seen = replica.view.requests;
    }
  });
}

}  // namespace flotilla::router
