// Machine: the machine that is simulated: a cost model, the KV memory beside the weights,
// and the limits of its worker group.
//
// Built-in machines have names; machine_json.h reads others. docs/simulate.md has the
// sources of the figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types/executor.h"
#include "scheduler/core/options.h"
#include "simulator/cost_model.h"

namespace flotilla::simulator {

// The size of the simulated vocabulary. It is small enough for any real model, and large
// enough that prompts share a prefix by design only.
inline constexpr std::uint32_t kSimulatedVocabulary = 32'000;

inline constexpr std::size_t kMostKvGroups = 8;
// The most positions of a KV pool, each counted once in every KV group.
inline constexpr std::uint64_t kMostKvPositions = std::uint64_t{1} << 30;

struct Machine {
  std::string name;
  std::string model;  // for people: the model and where the figures are from
  CostModel cost;
  // The positions that the KV pool holds if all layers keep all of them.
  std::uint64_t kv_tokens = 65536;
  std::uint32_t block_tokens = 16;
  // [KV groups] The window of a group, or 0 if it keeps every position (model/kv_groups.h). All
  // groups have equally many layers. There are 1 to kMostKvGroups of them.
  std::vector<std::uint32_t> kv_windows = {0};
  // The positions that host memory (a tier, see docs/scheduler.md) holds for preempted
  // requests and old prefixes, and the rate of the link to it. 0: there is no such tier.
  std::uint64_t host_tokens = 0;
  double link_bytes_per_second = 50e9;  // PCIe 5.0 x16: 64 GB/s, less overheads
  std::uint32_t max_context = 8192;
  // Pipeline stages (ExecutorDescription::lag).
  std::uint32_t lag = 1;
  // Defaults of CoreOptions on this machine.
  std::uint32_t max_seqs = 64;
  std::uint32_t max_step_tokens = 256;
};

// The machines of this build, in the order in which --help lists them.
std::vector<Machine> BuiltInMachines();

// NOT_FOUND lists the known names.
absl::StatusOr<Machine> FindMachine(absl::string_view name);

// How the machine's worker group describes itself. It takes as many sequences and rows as
// `core` may ask for.
ExecutorDescription Describe(const Machine& machine, const scheduler::CoreOptions& core);

// The core options that `machine` suggests. The queue is practically unbounded, because a
// simulation usually shows how long requests wait, not which ones are refused.
scheduler::CoreOptions DefaultOptions(const Machine& machine);

}  // namespace flotilla::simulator
