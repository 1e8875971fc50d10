#include "kernels/cuda/simulated/machine.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/noise.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace flotilla::kernels::cuda::simulated {
namespace {

constexpr int kWarpLanes = 32;
constexpr size_t kStackBytes = size_t{64} << 10;

// Fibers get slices of one allocation, which outlives them.
struct BorrowedStack {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) {}
};

// Tells the address sanitizer which stack comes next. `fake` is kept by who is left.
void LeaveFor([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom,
              [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, bottom, size);
#endif
}
void ComeBack([[maybe_unused]] void* fake, [[maybe_unused]] const void** from,
              [[maybe_unused]] size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, from, size);
#endif
}

enum class State : uint8_t { kReady, kInSyncThreads, kInWarp, kMisaligned, kEnded };

struct SimulatedThread {
  boost::context::fiber fiber;
  State state = State::kReady;
  Word word{};           // of the warp's call that it is in
  uint32_t gathers = 0;  // such calls that it has made
  void* fake_stack = nullptr;
};

struct Warp {
  alignas(16) std::byte lanes[2][kWarpLanes * 32];  // of this call and of the one before
  int waiting = 0;
};

class BlockRunner final : public Machine {
 public:
  BlockRunner(const KernelLaunch& launch, uint64_t seed)
      : launch_(launch),
        seed_(seed),
        threads_(launch.threads),
        warps_(launch.threads / kWarpLanes),
        stacks_(new std::byte[kStackBytes * launch.threads]),
        shared_(std::make_unique<std::byte[]>(launch.shared_bytes)) {
    for (int i = 0; i < launch.threads; ++i) threads_[i].fiber = MakeFiber(i);
  }

  // Returns what went wrong.
  std::optional<Fault> RunBlock(int64_t x, int y) {
    block_x_ = static_cast<int>(x);
    block_y_ = y;
    std::memset(shared_.get(), 0xFF, launch_.shared_bytes);
    for (Warp& warp : warps_) {
      std::memset(warp.lanes, 0xFF, sizeof warp.lanes);
      warp.waiting = 0;
    }
    in_sync_ = 0;
    ended_ = 0;
    ready_.resize(launch_.threads);
    std::iota(ready_.begin(), ready_.end(), 0);
    for (SimulatedThread& thread : threads_) thread.state = State::kReady;
    while (!ready_.empty()) {
      Resume(TakeNext());
      if (std::optional<Fault> fault = Release()) return fault;
    }
    if (ended_ < launch_.threads) return Stuck();
    return std::nullopt;
  }

  // Ends all fibers, which then wait for a block.
  void End() {
    ending_ = true;
    for (int i = 0; i < launch_.threads; ++i) Resume(i);
  }

  std::byte* shared() { return shared_.get(); }
  size_t shared_bytes() const { return launch_.shared_bytes; }

  void Wait(State state) {
    threads_[thread_].state = state;
    Yield();
  }

  std::byte* lanes() { return warps_[thread_ / kWarpLanes].lanes[threads_[thread_].gathers % 2]; }
  void Gathered(Word word) {
    SimulatedThread& thread = threads_[thread_];
    thread.word = word;
    ++thread.gathers;
    Wait(State::kInWarp);
  }

 private:
  std::byte* stack(int thread) { return stacks_.get() + kStackBytes * thread; }

  boost::context::fiber MakeFiber(int index) {
    boost::context::stack_context context;
    context.size = kStackBytes;
    context.sp = stack(index) + kStackBytes;
    return {std::allocator_arg, boost::context::preallocated(context.sp, context.size, context),
            BorrowedStack{}, [this](boost::context::fiber&& runner) {
              runner_ = std::move(runner);
              ComeBack(nullptr, &runner_stack_, &runner_stack_size_);
              while (!ending_) {
                launch_.kernel(launch_.args);
                Wait(State::kEnded);
              }
              LeaveFor(nullptr, runner_stack_, runner_stack_size_);
              return std::move(runner_);
            }};
  }

  void Resume(int index) {
    thread_ = index;
    SimulatedThread& thread = threads_[index];
    void* fake = nullptr;
    LeaveFor(&fake, stack(index), kStackBytes);
    thread.fiber = std::move(thread.fiber).resume();
    ComeBack(fake, nullptr, nullptr);
  }

  // Goes from a thread back to the runner, until it is resumed.
  void Yield() {
    SimulatedThread& thread = threads_[thread_];
    LeaveFor(&thread.fake_stack, runner_stack_, runner_stack_size_);
    runner_ = std::move(runner_).resume();
    ComeBack(thread.fake_stack, &runner_stack_, &runner_stack_size_);
  }

  int TakeNext() {
    size_t at = 0;
    if (seed_ > 1) {
      random_ = Mix64(random_ ^ seed_);
      at = static_cast<size_t>(random_ % ready_.size());
      std::swap(ready_[at], ready_.back());
    } else {
      const auto less = [this](int a, int b) { return seed_ == 0 ? a > b : a < b; };
      std::iter_swap(std::max_element(ready_.begin(), ready_.end(), less), ready_.end() - 1);
    }
    const int thread = ready_.back();
    ready_.pop_back();
    return thread;
  }

  // Counts the thread that has just stopped, and makes those ready that waited for it.
  std::optional<Fault> Release() {
    const State state = threads_[thread_].state;
    if (state == State::kMisaligned) {
      return FaultOf(thread_, "it loads from an address that is no multiple of the size");
    }
    if (state == State::kEnded) {
      ++ended_;
    } else if (state == State::kInSyncThreads) {
      if (++in_sync_ < launch_.threads) return std::nullopt;
      in_sync_ = 0;
      MakeReady(0, launch_.threads);
    } else {
      Warp& warp = warps_[thread_ / kWarpLanes];
      if (++warp.waiting < kWarpLanes) return std::nullopt;
      warp.waiting = 0;
      const int first = thread_ / kWarpLanes * kWarpLanes;
      for (int i = first; i < first + kWarpLanes; ++i) {
        if (threads_[i].word != threads_[first].word) {
          return FaultOf(i, "it makes another call than the first lane of its warp");
        }
      }
      MakeReady(first, first + kWarpLanes);
    }
    return std::nullopt;
  }

  void MakeReady(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      threads_[i].state = State::kReady;
      ready_.push_back(i);
    }
  }

  // Why no thread can go on.
  Fault Stuck() const {
    const auto count = [this](State state) {
      return std::to_string(
          std::count_if(threads_.begin(), threads_.end(),
                        [&](const auto& thread) { return thread.state == state; }));
    };
    const std::string others = count(State::kInSyncThreads) + " threads wait in SyncThreads and " +
                               count(State::kInWarp) + " for lanes of their warps";
    for (int i = 0; i < launch_.threads; ++i) {
      if (threads_[i].state == State::kEnded) return FaultOf(i, "it ended, while " + others);
    }
    for (int i = 0; i < launch_.threads; ++i) {
      if (threads_[i].state == State::kInWarp)
        return FaultOf(i, "it waits for its warp: " + others);
    }
    return FaultOf(0, others);
  }

  Fault FaultOf(int thread, std::string what) const {
    return {launch_.name, block_x_, block_y_, thread, std::move(what)};
  }

  const KernelLaunch& launch_;
  const uint64_t seed_;
  uint64_t random_ = 0;
  std::vector<SimulatedThread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<std::byte[]> stacks_;
  std::unique_ptr<std::byte[]> shared_;
  boost::context::fiber runner_;
  const void* runner_stack_ = nullptr;
  size_t runner_stack_size_ = 0;
  std::vector<int> ready_;
  int in_sync_ = 0;
  int ended_ = 0;
  bool ending_ = false;
};

thread_local BlockRunner* current = nullptr;

}  // namespace

std::string Describe(const Fault& fault) {
  return fault.kernel + ", block (" + std::to_string(fault.block_x) + ", " +
         std::to_string(fault.block_y) + "), thread " + std::to_string(fault.thread) + ": " +
         fault.what;
}

Machine& Machine::Current() { return *current; }

std::byte* Machine::shared(size_t) { return current->shared(); }

void Machine::Misalign() { current->Wait(State::kMisaligned); }

void Machine::SyncThreads() { current->Wait(State::kInSyncThreads); }

std::byte* Machine::BeginGather() { return current->lanes(); }

void Machine::EndGather(Word word) { current->Gathered(word); }

int Run(const KernelLaunch& launch, SimulatedStream& stream) {
  if (stream.fault) return kFault;
  BlockRunner runner(launch, stream.seed);
  current = &runner;
  const int64_t blocks = launch.blocks_x * launch.blocks_y;
  for (int64_t i = 0; i < blocks && !stream.fault; ++i) {
    const int64_t block = stream.seed == 1 ? blocks - 1 - i : i;
    stream.fault =
        runner.RunBlock(block % launch.blocks_x, static_cast<int>(block / launch.blocks_x));
  }
  // Fibers of a block with a fault are unwound by their destructors.
  if (!stream.fault) runner.End();
  current = nullptr;
  return stream.fault ? kFault : 0;
}

}  // namespace flotilla::kernels::cuda::simulated
