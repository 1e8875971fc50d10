// MemoryLoad: serves requests with the simulator's lengths on the real model, and
// measures what the KV pool holds meanwhile.
//
// Lengths come from the simulator's presets (simulator/workload.h) with kMemorySeed;
// answers have exactly the length drawn. All requests are submitted at once, so
// that the pool is busy throughout. A request starts when there is room for all that it
// will need, so that none is preempted. Prompts are pieces of the GPL. There is no
// prefix cache, so that only sequences of one request share blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/rt/clock.h"
#include "tests/support/engine_runner.h"
#include "tests/support/memory_meter.h"

namespace flotilla::testing {

inline constexpr std::uint64_t kMemorySeed = 1;
// The number of requests that run at once. It is small compared to the requests of a run,
// so that most of the run is neither its beginning, when all answers are short, nor its end.
inline constexpr std::uint32_t kMemorySequences = 24;

// One row of the table: each prompt has `width` samples, or `width` beams.
struct MemoryCase {
  const char* preset;
  std::uint32_t width;
  bool beams;
  // The saving of blocks by sharing inside a request that Kwon et al. 2023, section
  // 6.3, report for the same means.
  double required_saving;

  // "long, 4 beams"
  std::string Name() const;
};

inline constexpr MemoryCase kMemoryCases[] = {
    {"short", 1, false, 0},   {"short", 2, false, .06}, {"short", 4, false, .08},
    {"short", 6, false, .09}, {"short", 2, true, .37},  {"short", 4, true, .48},
    {"short", 6, true, .52},  {"long", 1, false, 0},    {"long", 2, false, .16},
    {"long", 4, false, .24},  {"long", 6, false, .30},  {"long", 2, true, .44},
    {"long", 4, true, .56},   {"long", 6, true, .64},
};
// The largest share of the allocated slots that may be wasted, in the long mix of single sequences.
inline constexpr double kMostWaste = 0.04;

// Makes `count` requests of the case, with temperature 1 and no stop tokens.
std::vector<TokenizedRequest> MakeMemoryRequests(const MemoryCase& one, std::uint32_t count);

// Returns the saving if `width` samples share every whole block of their prompts from the first
// output to the last. The lengths are those of the first `count` requests of the preset. No saving
// can be larger with a block size of 16.
double PossibleSaving(const MemoryCase& one, std::uint32_t count);

struct MemoryRun {
  MemoryUse use;
  std::uint32_t pool_blocks = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t output_tokens = 0;  // of all sequences
  double seconds = 0;
};

class MemoryLoad {
 public:
  // The pool has `blocks` blocks.
  MemoryLoad(std::shared_ptr<const model::Checkpoint> file, std::uint32_t blocks);
  ~MemoryLoad();

  // Serves the requests; checks that every sequence has the length drawn.
  MemoryRun Run(const std::vector<TokenizedRequest>& requests);

 private:
  const SteadyClock clock_;
  const std::uint32_t blocks_;
  MemoryMeter meter_;
  std::unique_ptr<EngineRunner> runner_;
};

// Returns the number of blocks of a pool that kMemorySequences sequences of a preset keep busy.
std::uint32_t MemoryPool(absl::string_view preset);

}  // namespace flotilla::testing
