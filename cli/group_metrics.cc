#include "cli/group_metrics.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flotilla {
namespace {

double Seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

struct RankSeries {
  Gauge &up, &heartbeat_age, &resident_bytes;
  Counter& cpu;
};

RankSeries AddRank(Metrics& metrics, std::size_t rank) {
  const Metrics::Labels labels = {{"rank", std::to_string(rank)}};
  return {.up = metrics.AddGauge("flotilla_worker_up", "1 while the rank runs.", labels),
          .heartbeat_age = metrics.AddGauge("flotilla_worker_heartbeat_age_seconds",
                                            "Since the rank's last heartbeat.", labels),
          .resident_bytes = metrics.AddGauge("flotilla_worker_rank_resident_memory_bytes",
                                             "Resident memory of the rank's process.", labels),
          .cpu = metrics.AddCounter("flotilla_worker_rank_cpu_seconds_total",
                                    "User and system CPU time of the rank's processes.", labels)};
}

}  // namespace

void WatchGroup(Metrics& metrics, const GroupProbe* group, const Clock* clock) {
  std::vector<RankSeries> ranks;
  for (std::size_t rank = 0; rank < group->ranks.size(); ++rank) {
    ranks.push_back(AddRank(metrics, rank));
  }
  std::vector<Counter*> restarts;
  for (std::size_t i = 0; i < kFaults; ++i) {
    restarts.push_back(&metrics.AddCounter("flotilla_worker_restarts_total",
                                           "Times that the ranks were started again, by cause.",
                                           {{"cause", FaultName(static_cast<Fault>(i))}}));
  }
  metrics.OnRender([group, clock, ranks, restarts] {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const GroupProbe::Rank& one = group->ranks[rank];
      const std::int64_t beat = one.heartbeat_ns;
      ranks[rank].up.Set(one.up ? 1 : 0);
      ranks[rank].heartbeat_age.Set(beat == 0 ? 0 : Seconds(clock->NowNs() - beat));
      ranks[rank].resident_bytes.Set(static_cast<double>(one.resident_bytes));
      RaiseTo(ranks[rank].cpu, Seconds(one.cpu_ns));
    }
    for (std::size_t i = 0; i < kFaults; ++i) {
      RaiseTo(*restarts[i], static_cast<double>(group->restarts[i]));
    }
  });
}

}  // namespace flotilla
