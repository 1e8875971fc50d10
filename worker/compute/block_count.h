// How many blocks the KV pool of a rank has where the operator names no number. Pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace flotilla::worker {

// What the sequences of a rank can use, and who else wants memory.
struct BlockNeeds {
  std::uint64_t one_sequence = 0;   // blocks of a sequence that is as long as it can be
  std::uint32_t max_sequences = 1;  // so many run at a time
  std::uint32_t host_blocks = 0;    // of the host's tier, outside the pool
  int sharers = 1;                  // ranks that share the memory, this one included
  int share_percent = 0;            // of --kv-memory-share; 0: the backend's own
};

// A number of blocks, the null block included, and what it comes from, for the log.
struct BlockChoice {
  std::uint32_t count = 0;
  std::string reason;  // e.g. "50 % of 21.5 GiB that this machine has available"
};

// A CPU's share without --kv-memory-share. The rest is for requests, activations, the files that
// the system keeps in memory, and other processes.
inline constexpr int kCpuSharePercent = 50;

// What a backend has for the pool.
struct BlockBudget {
  std::int64_t bytes = 0;  // that are available to this rank
  int share_percent = 100;
  std::int64_t bytes_per_block = 1;
  std::uint64_t one_sequence = 0;
  std::uint64_t most = UINT64_MAX;  // blocks that can be of use
};

// Returns the blocks that fit in the share of the bytes. One sequence of full length may have up to
// kOneSequencePercent of the bytes. Never more than `most` and the null block, and at least 2.
inline constexpr int kOneSequencePercent = 90;
std::uint32_t BlocksWithin(const BlockBudget& budget);

}  // namespace flotilla::worker
