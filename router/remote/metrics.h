// The metrics of a router's replicas. docs/api.md lists them.
#pragma once

#include "common/obs/metrics.h"
#include "router/remote/fleet.h"

namespace flotilla::router {

// Shows the replicas of a router at each scrape from now on: which are up, their outstanding
// tokens, how many requests the router sent to each, and what became of requests that were given
// back. `fleet` outlives the last Render.
void WatchFleet(Metrics& metrics, const Fleet* fleet);

}  // namespace flotilla::router
