// Measures how well the KV pool is used on the real model: the waste, and how much the sequences
// of one request save by sharing. Prints Markdown tables on standard output.
//
//   memory_benchmark [requests of each short case, default 40] [of each long, 24]
//
// Exits 1 when a required figure (tests/support/memory_load.h) is missed. Run from
// the source folder, by scripts/bench_memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/support/memory_load.h"

namespace flotilla::testing {
namespace {

// The number of requests from whose lengths the saving of a preset is computed.
constexpr std::uint32_t kManyRequests = 20'000;

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// Prints the row of the case. Returns whether all required figures are reached.
bool Report(const MemoryCase& one, const MemoryRun& run, std::uint32_t requests) {
  const MemoryUse& use = run.use;
  const bool single = one.width == 1;
  const bool waste_bound = single && std::string(one.preset) == "long";
  const bool good = (single || use.saving() >= one.required_saving) &&
                    (!waste_bound || use.waste() < testing::kMostWaste) && use.worst_waste < 16 &&
                    use.mismatches == 0;
  const bool samples = !single && !one.beams;
  absl::PrintF("| %s | %d | %.1f | %.0f (%s) | %s | %d | %s | %s | %s | %s | %d | %.0f | %s |\n",
               one.Name(), requests, use.mean_sequences(), use.mean_blocks(),
               Percent(use.mean_blocks() / run.pool_blocks), Percent(use.waste()), use.worst_waste,
               single ? "–" : Percent(use.saving()), single ? "–" : Percent(one.required_saving),
               samples ? Percent(PossibleSaving(one, requests)) : "–",
               samples ? Percent(PossibleSaving(one, kManyRequests)) : "–", run.preemptions,
               static_cast<double>(run.output_tokens) / run.seconds, good ? "yes" : "**no**");
  std::fflush(stdout);
  return good;
}

bool RunAll(std::uint32_t short_requests, std::uint32_t long_requests) {
  const auto file = testing::OpenRealModel();
  if (file == nullptr) return false;
  absl::PrintF(
      "| case | requests | open sequences | blocks used (of the pool) | waste | most in one "
      "sequence, "
      "slots | saving | required | possible: drawn lengths | the preset's | preemptions | output "
      "tok/s | reached |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  bool good = true;
  for (const std::string preset : {"short", "long"}) {
    testing::MemoryLoad load(file, testing::MemoryPool(preset));
    const std::uint32_t requests = preset == "long" ? long_requests : short_requests;
    for (const MemoryCase& one : testing::kMemoryCases) {
      if (one.preset != preset) continue;
      good &= Report(one, load.Run(MakeMemoryRequests(one, requests)), requests);
    }
  }
  return good;
}

}  // namespace
}  // namespace flotilla::testing

int main(int argc, char** argv) {
  const auto count = [&](int index, std::uint32_t fallback) {
    return argc > index ? static_cast<std::uint32_t>(std::max(1, std::atoi(argv[index])))
                        : fallback;
  };
  return flotilla::testing::RunAll(count(1, 40), count(2, 24)) ? 0 : 1;
}
