// Runs kernels on the CPU: each thread of a block is a fiber, and blocks run one after the other.
//
// Threads go on in an order that the stream's seed chooses, up to the next call in which they wait
// for others. So one run with a seed sees one schedule: a barrier that is missing shows as wrong
// bits under some of them. Shared memory begins with 0xFF in every byte, which is NaN in every
// number. What the simulation cannot see is in docs/gpu.md.
//
// One launch runs at a time per thread of the host; several such threads may simulate at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace flotilla::kernels::cuda::simulated {

// What an error of a kernel is: the first thread that is not where the others are.
struct Fault {
  std::string kernel;
  int64_t block_x = 0;
  int block_y = 0;
  int thread = 0;
  std::string what;
};
// E.g. "rms_norm, block (3, 0), thread 17: it ended, while 63 threads wait in SyncThreads".
std::string Describe(const Fault& fault);

// What Run returns of a kernel with a fault. No error of CUDA has this number.
inline constexpr int kFault = 100'000;

// What a `Stream` is in the simulation. Owned by the caller; launches of one stream run at once.
struct SimulatedStream {
  // 0: threads run in ascending order, 1: in descending order; others: at random.
  uint64_t seed = 0;
  std::optional<Fault> fault;  // the first one; later launches do nothing
};

// What the lanes of a warp do together.
enum class Word : uint8_t { kSyncWarp, kShuffleXor, kShuffleDown, kMultiplyS8, kMultiplyU8 };

struct KernelLaunch {
  const char* name = "";
  int64_t blocks_x = 1;
  int blocks_y = 1;
  int threads = 0;  // a multiple of 32, at most 1,024
  size_t shared_bytes = 0;
  void (*kernel)(const void* args) = nullptr;
  const void* args = nullptr;
};

// Runs all threads. Returns 0 or kFault.
int Run(const KernelLaunch& launch, SimulatedStream& stream);

// What a thread of a kernel sees of its block. Only kernels that run call these.
class Machine {
 public:
  static Machine& Current();

  int thread() const { return thread_; }
  int block_x() const { return block_x_; }
  int block_y() const { return block_y_; }
  std::byte* shared(size_t bytes);

  void SyncThreads();

  // A thread whose address is not a multiple of the alignment is a fault.
  void CheckAlignment(const void* address, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(address) % alignment != 0) Misalign();
  }

  // The values of all lanes of the warp, which make this call together. They stay until the lane's
  // call after the next one.
  template <class T>
  const T* Gather(Word word, const T& value) {
    static_assert(sizeof(T) <= kLaneBytes);
    std::byte* const lanes = BeginGather();
    std::memcpy(lanes + thread_ % 32 * sizeof(T), &value, sizeof(T));
    EndGather(word);
    return reinterpret_cast<const T*>(lanes);
  }

 protected:
  static constexpr size_t kLaneBytes = 32;
  Machine() = default;
  ~Machine() = default;

  void Misalign();
  std::byte* BeginGather();
  void EndGather(Word word);

  int thread_ = 0;
  int block_x_ = 0;
  int block_y_ = 0;
};

}  // namespace flotilla::kernels::cuda::simulated
