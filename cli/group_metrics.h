// The metrics of a worker group whose ranks are processes.
#pragma once

#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "worker/group/group_probe.h"

namespace flotilla {

// Reads `group`, which outlives the last Render, at each scrape from now on. `clock` is the
// clock of the group's heartbeats.
void WatchGroup(Metrics& metrics, const GroupProbe* group, const Clock* clock);

}  // namespace flotilla
