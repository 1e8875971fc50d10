// SimulatedDevice: a Device without a GPU, for tests. Its queues are lists of work, which runs as
// late as callers allow: inside of Synchronize, up to the event, and a seeded number of pieces in
// other calls. Of the two queues that may go on, a seeded one does. With `goes_on` a thread of the
// device does pieces of work, too, so that queues get on while their owner waits elsewhere.
//
// Callers that break the contract get other bits, or an error that names what they did:
//   Memory begins with NaN in every number. So does what a Download will write, from the call on.
//   Work that names memory which nobody owns, or a part behind its end, is an error of the device.
//   A Wait for an event of later work, which would never happen, is one, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/simulated/machine.h"
#include "worker/device/device.h"

namespace flotilla::worker {

struct SimulatedDeviceOptions {
  std::uint64_t seed = 0;
  // What launches call: the kernels themselves on fibers (SimulatedOps), or other loops with their
  // bits.
  const kernels::cuda::Ops* ops = nullptr;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  std::string id = "simulated";
  int capability = 90;
  // What is used of the memory, by all devices that share it; null: the device has it alone.
  std::shared_ptr<std::atomic<std::int64_t>> used_bytes;
  // Where work waits for that of another device, whose owner may wait for this one's owner.
  bool goes_on = false;
};

class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(const SimulatedDeviceOptions& options);
  ~SimulatedDevice() override;

  const std::string& name() const override { return name_; }
  int capability() const override { return options_.capability; }
  const std::string& id() const override { return options_.id; }
  absl::StatusOr<Memory> Allocate(std::size_t bytes) override;
  absl::StatusOr<Memory> AllocatePinned(std::size_t bytes) override;
  std::int64_t FreeBytes() override { return options_.memory_bytes - *used_bytes_; }
  std::int64_t TotalBytes() override { return options_.memory_bytes; }
  void Upload(Queue queue, void* to, const void* from, std::size_t bytes) override;
  void Download(Queue queue, void* to, const void* from, std::size_t bytes) override;
  void Copy(Queue queue, void* to, const void* from, std::size_t bytes) override;
  void Fill(Queue queue, void* to, int byte, std::size_t bytes) override;
  void Launch(Queue queue, Launches launch) override;
  Event Record(Queue queue) override;
  void Wait(Queue queue, Event event) override;
  absl::Status Synchronize(Event event) override;
  absl::Status status() override;

  // The device fails with its n-th piece of work from now on (1: the next).
  void FailAfter(std::int64_t pieces);

 private:
  struct Work {
    std::function<absl::Status()> run;  // null: the event, or the wait for it
    Event event = 0;
    bool wait = false;
  };
  struct Block {
    std::size_t bytes;
    bool pinned;
  };

  absl::StatusOr<Memory> Make(std::size_t bytes, bool pinned);
  void Free(std::byte* data, bool pinned) override;
  void Enqueue(Queue queue, Work work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether [data, data + bytes) is owned memory of the kind.
  bool Owns(const void* data, std::size_t bytes, bool pinned) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Enqueues a copy between memory of these kinds.
  void Move(Queue queue, std::string what, void* to, bool to_pinned, const void* from,
            bool from_pinned, std::size_t bytes);
  // Does a piece of work of any queue that can go on. False: none can.
  bool Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a queue can go on.
  bool CanStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CanGoOn(int queue) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GoOn();
  // Does as much as a seeded number says.
  void Drift() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::uint64_t Draw() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SimulatedDeviceOptions options_;
  const std::string name_ = "simulated GPU";
  const std::shared_ptr<std::atomic<std::int64_t>> used_bytes_;
  const std::uint64_t most_drift_;

  absl::Mutex mu_;
  kernels::cuda::simulated::SimulatedStream stream_ ABSL_GUARDED_BY(mu_);
  std::uint64_t random_ ABSL_GUARDED_BY(mu_);
  std::map<const std::byte*, Block> blocks_ ABSL_GUARDED_BY(mu_);
  std::deque<Work> queues_[kQueues] ABSL_GUARDED_BY(mu_);
  Event last_event_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<Event> pending_ ABSL_GUARDED_BY(mu_);        // recorded, and not happened
  std::int64_t pieces_left_ ABSL_GUARDED_BY(mu_) = -1;  // until the device fails; negative: never
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // with goes_on
};

}  // namespace flotilla::worker
