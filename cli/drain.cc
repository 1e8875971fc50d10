#include "cli/drain.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace flotilla::cli {

bool Drain(const std::function<void(std::function<void()> done)>& drain, Signals& signals,
           std::int64_t drain_seconds) {
  // `done` may be called after this has returned.
  const auto drained = std::make_shared<std::atomic<bool>>(false);
  drain([drained, &signals] {
    *drained = true;
    signals.Wake();
  });
  const absl::Time until = absl::Now() + absl::Seconds(drain_seconds);
  while (!*drained) {  // other callers of Wake end the wait too
    switch (signals.Wait(until - absl::Now())) {
      case Signals::Event::kWoken:
        break;
      case Signals::Event::kTimeout:
        return *drained;
      case Signals::Event::kStop:
        std::_Exit(130);
    }
  }
  return true;
}

bool WaitAndDrain(Engine& engine, Signals& signals, std::int64_t drain_seconds, Logger& log,
                  const std::function<void()>& on_stop) {
  const int number = signals.WaitForStop();
  log.Info("stopping", {{"signal", number}, {"drain_seconds", drain_seconds}});
  if (on_stop) on_stop();
  return Drain([&engine](std::function<void()> done) { engine.Drain(std::move(done)); }, signals,
               drain_seconds);
}

}  // namespace flotilla::cli
