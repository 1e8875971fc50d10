// How a role ends: it refuses new requests, finishes the running ones, and closes.
#pragma once

#include <cstdint>
#include <functional>

#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/types/engine.h"

namespace flotilla::cli {

// Calls `drain` and waits until it calls `done`, for `drain_seconds` at most. False: some
// requests still run. A request to stop meanwhile ends the process at once, with exit code
// 130.
bool Drain(const std::function<void(std::function<void()> done)>& drain, Signals& signals,
           std::int64_t drain_seconds);

// Waits for a request to stop, calls `on_stop` unless it is empty, and then waits until the
// engine's requests have ended, for `drain_seconds` at most. False: some requests still run.
// Another request to stop ends the process at once, with exit code 130.
bool WaitAndDrain(Engine& engine, Signals& signals, std::int64_t drain_seconds, Logger& log,
                  const std::function<void()>& on_stop = {});

}  // namespace flotilla::cli
