// How a role ends: refuse, finish, close.
#pragma once

#include <cstdint>

#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/types/engine.h"

namespace flotilla {

// Waits for a request to stop, then until the engine's requests have ended, for
// `drain_seconds` at most. False: some still run. Another request to stop ends the
// process at once, with exit code 130.
bool WaitAndDrain(Engine& engine, Signals& signals, std::int64_t drain_seconds, Logger& log);

}  // namespace flotilla
