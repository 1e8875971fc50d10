// `flotilla top`: a live view of a fleet in a terminal, from the metrics of its processes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

struct TopFlags {
  std::vector<std::string> metrics;  // host:port
  double interval_s = 2;
  bool once = false;
};

// Adds the flags to `app`; parsing fills `flags`, which outlives it.
void AddTopFlags(CLI::App& app, TopFlags* flags);

// Shows tables until the user presses q or a signal asks to stop; with `once`, shows one table.
// UNAVAILABLE: the one table is empty, because no process answered.
absl::Status RunTop(const TopFlags& flags);

}  // namespace flotilla::cli
