// LoadProgress: how far one rank has got with loading its model.
//
// The threads that load write it, and any thread may read it. It may lie in memory that several
// processes share. All zero is the state before loading.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace flotilla {

enum class LoadPhase : std::uint32_t {
  kOpen,     // opens the model file
  kJoin,     // meets the other ranks of its group
  kWeights,  // reads its weights and brings them into the form that kernels read
  kHash,     // hashes the file
  kMemory,   // makes the KV memory and its tiers
  kWarmUp,   // runs the first steps, together with the other ranks
};
inline constexpr std::size_t kLoadPhases = 6;

// The phase as metrics and logs name it.
constexpr const char* LoadPhaseName(LoadPhase phase) {
  constexpr const char* kNames[kLoadPhases] = {"open", "join",   "weights",
                                               "hash", "memory", "warm_up"};
  const auto number = static_cast<std::size_t>(phase);
  return number < kLoadPhases ? kNames[number] : "unknown";  // another process may write anything
}

// Whether a rank in this phase may be waiting for other ranks.
constexpr bool WaitsForRanks(LoadPhase phase) {
  return phase == LoadPhase::kJoin || phase == LoadPhase::kWarmUp;
}

struct LoadProgress {
  std::atomic<LoadPhase> phase;
  std::atomic<std::uint64_t> loaded_bytes;  // of the phase, so far
  std::atomic<std::uint64_t> total_bytes;   // of the phase; 0: it has no bytes
  // Rises whenever the rank gets further, by any amount.
  std::atomic<std::uint64_t> moves;

  void Begin(LoadPhase next, std::uint64_t bytes) {
    phase = next;
    loaded_bytes = 0;
    total_bytes = bytes;
    ++moves;
  }
  // Says that `bytes` more are done; 0: that something else is.
  void Move(std::uint64_t bytes = 0) {
    loaded_bytes.fetch_add(bytes, std::memory_order_relaxed);
    moves.fetch_add(1, std::memory_order_relaxed);
  }

  static_assert(std::atomic<LoadPhase>::is_always_lock_free &&
                std::atomic<std::uint64_t>::is_always_lock_free);
};

}  // namespace flotilla
