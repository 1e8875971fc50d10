// `flotilla simulate`: the real scheduler in virtual time, for people who want to know
// the effect before they buy hardware, change an option, or believe a claim.
#pragma once

#include "absl/status/status.h"
#include "cli/simulate_flags.h"

namespace flotilla::cli {

// Does what the flags say: a run, a comparison, a sweep, baselines, a fit or a
// measurement. The report goes to standard output, progress to standard error, and
// files to --out. Errors: something that the flags name does not exist, or cannot be
// read or written.
absl::Status RunSimulate(const SimulateFlags& flags);

}  // namespace flotilla::cli
