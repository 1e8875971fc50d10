// How many threads this process may run at once, which is what `--threads 0` means.
// Reads the process's affinity mask and the cgroup's CPU quota. Any thread may call it.
#pragma once

namespace flotilla {

// Returns the number of CPUs in the affinity mask, or the cgroup's quota rounded up if
// that is less (cgroup v2, every ancestor; v1's cpu controller). At least 1.
int AvailableCpus();

}  // namespace flotilla
