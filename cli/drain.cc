#include "cli/drain.h"

#include <cstdlib>

#include "absl/time/time.h"

namespace flotilla {

bool WaitAndDrain(Engine& engine, Signals& signals, std::int64_t drain_seconds, Logger& log) {
  const int number = signals.WaitForStop();
  log.Info("stopping", {{"signal", number}, {"drain_seconds", drain_seconds}});
  engine.Drain([&signals] { signals.Wake(); });
  switch (signals.Wait(absl::Seconds(drain_seconds))) {
    case Signals::Event::kWoken:
      return true;
    case Signals::Event::kTimeout:
      return false;
    case Signals::Event::kStop:
      break;
  }
  std::_Exit(130);
}

}  // namespace flotilla
