// The metrics of the streams between the processes of a fleet. docs/api.md lists them.
#pragma once

#include "common/obs/metrics.h"
#include "rpc/credentials.h"

namespace flotilla::rpc {

// Shows at each scrape when the certificate of the fleet's streams expires; 0: there is none.
// `credentials` outlives the last Render.
void WatchCertificate(Metrics& metrics, const Credentials* credentials);

}  // namespace flotilla::rpc
