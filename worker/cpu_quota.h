// How many threads this process may run at once: what `--threads 0` means.
// Reads the scheduler's affinity mask and the cgroup's CPU quota; any thread.
#pragma once

namespace flotilla {

// CPUs in the affinity mask, or the cgroup's quota rounded up where that is
// less (cgroup v2, every ancestor; v1's cpu controller). At least 1.
int AvailableCpus();

}  // namespace flotilla
