#include "worker/device/simulated_device.h"

#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/noise.h"

namespace flotilla::worker {
namespace {

constexpr std::align_val_t kAlignment{256};
// A call that enqueues lets at most this many pieces of work run, which the seed chooses: none, so
// that all work waits for Synchronize; fewer than are enqueued, or more.
constexpr std::uint64_t kMostDrifts[] = {0, 1, 4};
// Between pieces of work of the device's own thread.
constexpr absl::Duration kPause = absl::Microseconds(20);

}  // namespace

SimulatedDevice::SimulatedDevice(const SimulatedDeviceOptions& options)
    : options_(options),
      used_bytes_(options.used_bytes != nullptr ? options.used_bytes
                                                : std::make_shared<std::atomic<std::int64_t>>(0)),
      most_drift_(kMostDrifts[kernels::Mix64(options.seed) % std::size(kMostDrifts)]),
      random_(kernels::Mix64(options.seed)) {
  stream_.seed = options.seed;
  if (options.goes_on) thread_ = std::thread([this] { GoOn(); });
}

SimulatedDevice::~SimulatedDevice() {
  {
    absl::MutexLock lock(&mu_);
    for (auto& queue : queues_) queue.clear();
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

std::uint64_t SimulatedDevice::Draw() { return random_ = kernels::Mix64(random_); }

absl::StatusOr<Device::Memory> SimulatedDevice::Allocate(std::size_t bytes) {
  return Make(bytes, /*pinned=*/false);
}
absl::StatusOr<Device::Memory> SimulatedDevice::AllocatePinned(std::size_t bytes) {
  return Make(bytes, /*pinned=*/true);
}

absl::StatusOr<Device::Memory> SimulatedDevice::Make(std::size_t bytes, bool pinned) {
  absl::MutexLock lock(&mu_);
  if (!failure_.ok()) return failure_;
  const auto size = static_cast<std::int64_t>(bytes);
  if (!pinned && used_bytes_->fetch_add(size) > options_.memory_bytes - size) {
    *used_bytes_ -= size;
    return absl::ResourceExhaustedError(absl::StrCat(name_, " has no room for ", bytes, " bytes; ",
                                                     FreeBytes(), " bytes are free"));
  }
  // Of the exact size, so that the address sanitizer sees what kernels reach behind its end.
  auto* const data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  std::memset(data, 0xFF, bytes);
  blocks_.emplace(data, Block{bytes, pinned});
  return Memory(this, data, bytes, pinned);
}

void SimulatedDevice::Free(std::byte* data, bool pinned) {
  absl::MutexLock lock(&mu_);
  const auto at = blocks_.find(data);
  if (at == blocks_.end()) return;
  if (!pinned) *used_bytes_ -= static_cast<std::int64_t>(at->second.bytes);
  std::memset(data, 0xFF, at->second.bytes);
  blocks_.erase(at);
  ::operator delete(data, kAlignment);
}

bool SimulatedDevice::Owns(const void* data, std::size_t bytes, bool pinned) const {
  const auto* const begin = static_cast<const std::byte*>(data);
  auto at = blocks_.upper_bound(begin);
  if (at == blocks_.begin()) return false;
  --at;
  return at->second.pinned == pinned && begin + bytes <= at->first + at->second.bytes;
}

void SimulatedDevice::Fail(const absl::Status& status) {
  if (failure_.ok()) failure_ = status;
}

void SimulatedDevice::FailAfter(std::int64_t pieces) {
  absl::MutexLock lock(&mu_);
  pieces_left_ = pieces;
}

bool SimulatedDevice::CanGoOn(int queue) const {
  if (queues_[queue].empty()) return false;
  const Work& work = queues_[queue].front();
  return !work.wait || pending_.count(work.event) == 0;
}

bool SimulatedDevice::CanStep() const {
  for (int i = 0; i < kQueues; ++i) {
    if (CanGoOn(i)) return true;
  }
  return false;
}

bool SimulatedDevice::Step() {
  int able[kQueues], count = 0;
  for (int i = 0; i < kQueues; ++i) {
    if (CanGoOn(i)) able[count++] = i;
  }
  if (count == 0) return false;
  std::deque<Work>& queue = queues_[able[Draw() % static_cast<std::uint64_t>(count)]];
  const Work work = std::move(queue.front());
  queue.pop_front();
  if (work.run == nullptr) {
    if (!work.wait) pending_.erase(work.event);
    return true;
  }
  if (pieces_left_ > 0 && --pieces_left_ == 0) {
    Fail(absl::InternalError("the simulated GPU fails, as the test wants it"));
  }
  if (!failure_.ok()) return true;  // what follows an error does not run
  if (const absl::Status status = work.run(); !status.ok()) Fail(status);
  return true;
}

// It pauses after each piece, so that the owner often finds work that is not done.
void SimulatedDevice::GoOn() {
  absl::MutexLock lock(&mu_);
  const auto wakes = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || CanStep(); };
  while (true) {
    mu_.Await(absl::Condition(&wakes));
    if (stopped_) return;
    Step();
    (void)mu_.AwaitWithTimeout(absl::Condition(&stopped_), kPause);
  }
}

void SimulatedDevice::Drift() {
  for (std::uint64_t left = Draw() % (most_drift_ + 1); left > 0 && Step(); --left) {
  }
}

void SimulatedDevice::Enqueue(Queue queue, Work work) {
  queues_[static_cast<int>(queue)].push_back(std::move(work));
  Drift();
}

void SimulatedDevice::Move(Queue queue, std::string what, void* to, bool to_pinned,
                           const void* from, bool from_pinned, std::size_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto check = [this, what = std::move(what), to, to_pinned, from, from_pinned, bytes]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    if (Owns(to, bytes, to_pinned) && Owns(from, bytes, from_pinned)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(what, " of ", bytes, " bytes that nobody owns"));
  };
  if (const absl::Status status = check(); !status.ok()) return Fail(status);
  if (to_pinned) std::memset(to, 0xFF, bytes);
  Enqueue(queue, {.run = [check, to, from, bytes]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
            absl::Status status = check();
            if (status.ok()) std::memcpy(to, from, bytes);
            return status;
          }});
}

void SimulatedDevice::Upload(Queue queue, void* to, const void* from, std::size_t bytes) {
  Move(queue, "Upload", to, /*to_pinned=*/false, from, /*from_pinned=*/true, bytes);
}
void SimulatedDevice::Download(Queue queue, void* to, const void* from, std::size_t bytes) {
  Move(queue, "Download", to, /*to_pinned=*/true, from, /*from_pinned=*/false, bytes);
}
void SimulatedDevice::Copy(Queue queue, void* to, const void* from, std::size_t bytes) {
  Move(queue, "Copy", to, /*to_pinned=*/false, from, /*from_pinned=*/false, bytes);
}

void SimulatedDevice::Fill(Queue queue, void* to, int byte, std::size_t bytes) {
  absl::MutexLock lock(&mu_);
  Enqueue(
      queue, {.run = [this, to, byte, bytes]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        if (!Owns(to, bytes, /*pinned=*/false)) {
          return absl::InternalError(absl::StrCat("Fill of ", bytes, " bytes that nobody owns"));
        }
        std::memset(to, byte, bytes);
        return absl::OkStatus();
      }});
}

void SimulatedDevice::Launch(Queue queue, Launches launch) {
  absl::MutexLock lock(&mu_);
  Enqueue(queue, {.run = [this, launch = std::move(launch)]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
            if (launch(*options_.ops, &stream_) == 0) return absl::OkStatus();
            return absl::InternalError(stream_.fault.has_value()
                                           ? kernels::cuda::simulated::Describe(*stream_.fault)
                                           : "a kernel failed");
          }});
}

Device::Event SimulatedDevice::Record(Queue queue) {
  absl::MutexLock lock(&mu_);
  const Event event = ++last_event_;
  pending_.insert(event);
  Enqueue(queue, {.event = event});
  return event;
}

void SimulatedDevice::Wait(Queue queue, Event event) {
  absl::MutexLock lock(&mu_);
  if (event > last_event_) {
    return Fail(absl::InternalError("Wait for an event that was not recorded"));
  }
  Enqueue(queue, {.event = event, .wait = true});
}

absl::Status SimulatedDevice::Synchronize(Event event) {
  absl::MutexLock lock(&mu_);
  if (event == 0 || event > last_event_) {
    Fail(absl::InternalError("Synchronize with an event that was not recorded"));
  }
  while (failure_.ok() && pending_.count(event) != 0) {
    if (!Step()) Fail(absl::InternalError("no queue can go on"));
  }
  return failure_;
}

absl::Status SimulatedDevice::status() {
  absl::MutexLock lock(&mu_);
  return failure_;
}

}  // namespace flotilla::worker
