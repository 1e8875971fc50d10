// SpeculationLoad: the same requests with and without speculation, at the Engine seam on the real
// model, in turns.
//
// Some answers copy from their prompt (a passage repeated, corrected, quoted). One hardly does: a
// small model that is asked to change a program writes another one. Sampled prose does not repeat
// itself. Prompts are in the prefix cache after the first round, so only decode is timed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/text/tokenizer.h"
#include "tests/support/engine_runner.h"

namespace flotilla::testing {

struct SpeculationTask {
  const char* name;
  std::string text;
  float temperature;
  std::uint32_t max_tokens;
  bool copies;  // the answer is a copy of text in the prompt
};
std::vector<SpeculationTask> SpeculationTasks();

// One entry for each round.
struct SpeculationTimes {
  std::vector<double> seconds, seconds_with;
  std::vector<double> cpu_seconds, cpu_seconds_with;
  std::uint64_t tokens = 0;  // of the answers of one round
  std::uint64_t drafted = 0, accepted = 0;

  // How much faster the fastest round with speculation is than the fastest one without. Other work
  // on the machine can only make a round longer.
  double Gain() const;
};

class SpeculationLoad {
 public:
  // `with` are the options of the engine that speculates. If a start fails, the test fails.
  SpeculationLoad(std::shared_ptr<const model::Checkpoint> file, EngineRunner::Options with);

  // Serves `batch` requests of the task once in each engine, then in `rounds` timed rounds.
  // INTERNAL: an answer differs.
  absl::StatusOr<SpeculationTimes> Measure(const SpeculationTask& task, int batch, int rounds);

 private:
  EngineRunner off_, on_;
  absl::StatusOr<model::Tokenizer> tokenizer_;
};

// The options of an engine with n-grams.
EngineRunner::Options NgramOptions(std::uint32_t draft_tokens);

}  // namespace flotilla::testing
