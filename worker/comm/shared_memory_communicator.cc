#include "worker/comm/shared_memory_communicator.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

// A futex wake-up takes about this long; spinning longer never pays.
constexpr std::chrono::microseconds kSpin{30};
constexpr int kPausesPerCheck = 32;
// A sleeping rank looks at `aborted` this often, because the process that aborts may have
// died before it woke the sleepers.
constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};
constexpr std::int64_t kAlignment = 4096;
constexpr std::uint32_t kResidualBuffers = 2;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

std::int64_t Aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t FloatBytes(std::int64_t floats) {
  return Aligned(floats * static_cast<std::int64_t>(sizeof(float)));
}

// This does not use FUTEX_PRIVATE, because the sleepers may be other processes.
void FutexWait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &kLook, nullptr, 0);
}

void FutexWakeAll(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Reached(std::uint32_t value, std::uint32_t number) {
  return static_cast<std::int32_t>(value - number) >= 0;
}

}  // namespace

void SharedRegion::Unmap::operator()(std::byte* memory) const {
  munmap(memory, static_cast<std::size_t>(bytes));
}

absl::StatusOr<SharedRegion> SharedRegion::Create(std::int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot share ", bytes, " bytes"));
  }
  return SharedRegion(memory, bytes);
}

absl::StatusOr<SharedRegion> SharedRegion::Open(const std::string& path, std::int64_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  absl::StatusOr<SharedRegion> region =
      absl::ResourceExhaustedError(absl::StrCat("cannot share ", bytes, " bytes in ", path));
  if (ftruncate(file, bytes) == 0) {
    void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE, file, 0);
    if (memory != MAP_FAILED) region = SharedRegion(memory, bytes);
  }
  close(file);
  return region;
}

SharedMemoryCommunicator::Layout::Layout(ParallelShape shape, const CommLimits& limits)
    : counters(Aligned(sizeof(Header))),
      partial_bytes(FloatBytes(limits.partial_floats)),
      logit_bytes(FloatBytes(limits.logit_floats)),
      residual_bytes(FloatBytes(limits.residual_floats)),
      metadata_bytes(
          Aligned(limits.metadata_bytes + static_cast<std::int64_t>(sizeof(std::int64_t)))) {
  const std::int64_t ranks = shape.ranks();
  partials = counters + Aligned(ranks * static_cast<std::int64_t>(sizeof(RankCounters)));
  logits = partials + 2 * ranks * partial_bytes;
  residuals = logits + 2 * logit_bytes;
  metadata = residuals + (ranks - shape.tensor) * kResidualBuffers * residual_bytes;
  end = metadata + ranks * (limits.lag + 1) * metadata_bytes;
}

std::int64_t SharedMemoryCommunicator::RegionBytes(ParallelShape shape, const CommLimits& limits) {
  return Layout(shape, limits).end;
}

SharedMemoryCommunicator::SharedMemoryCommunicator(std::shared_ptr<const SharedRegion> region,
                                                   ParallelShape shape, std::uint32_t rank,
                                                   const CommLimits& limits, bool spin)
    : Communicator(shape, rank),
      region_(std::move(region)),
      limits_(limits),
      layout_(shape, limits),
      spin_(spin),
      stage_begin_(rank - tensor_rank()),
      parts_(shape.tensor),
      metadata_(shape.ranks()) {}

SharedMemoryCommunicator::RankCounters& SharedMemoryCommunicator::CountersOf(
    std::uint32_t rank) const {
  return At<RankCounters>(layout_.counters)[rank];
}

float* SharedMemoryCommunicator::PartialBuffer(std::uint32_t rank, std::uint32_t parity) const {
  return At<float>(layout_.partials + (2 * rank + parity) * layout_.partial_bytes);
}

float* SharedMemoryCommunicator::ResidualBuffer(std::uint32_t sender, std::uint32_t number) const {
  return At<float>(layout_.residuals + (sender * kResidualBuffers + number % kResidualBuffers) *
                                           layout_.residual_bytes);
}

std::byte* SharedMemoryCommunicator::MetadataBuffer(std::uint32_t rank,
                                                    std::uint32_t number) const {
  const std::uint32_t buffers = limits_.lag + 1;
  return At<std::byte>(layout_.metadata +
                       (rank * buffers + number % buffers) * layout_.metadata_bytes);
}

void SharedMemoryCommunicator::Raise(Counter& counter) {
  counter.value.fetch_add(1);
  if (counter.sleepers.load() > 0) FutexWakeAll(counter.value);
}

void SharedMemoryCommunicator::Await(Counter& counter, std::uint32_t number, bool spin) const {
  if (spin) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kPausesPerCheck; ++i) {
        if (Reached(counter.value.load(std::memory_order_acquire), number)) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  while (!aborted()) {
    const std::uint32_t seen = counter.value.load(std::memory_order_acquire);
    if (Reached(seen, number)) return;
    counter.sleepers.fetch_add(1);
    FutexWait(counter.value, seen);
    counter.sleepers.fetch_sub(1);
  }
}

void SharedMemoryCommunicator::Meet() {
  ++met_;
  Raise(CountersOf(rank()).met);
  for (std::uint32_t t = 0; t < shape().tensor; ++t) {
    if (t != tensor_rank()) Await(CountersOf(stage_begin_ + t).met, met_, spin_);
  }
}

void SharedMemoryCommunicator::Reset() {
  At<Header>(0)->aborted.store(0);
  RankCounters& counters = CountersOf(rank());
  for (Counter* counter : {&counters.met, &counters.sent, &counters.received,
                           &counters.metadata_sent, &counters.taken}) {
    counter->value.store(0);
  }
  met_ = sent_ = received_ = metadata_sent_ = taken_ = tiles_ = 0;
}

// Two buffers suffice. Before a rank fills a buffer again it has met all others (Meet), and
// they came to that meeting after they had read the buffer.
float* SharedMemoryCommunicator::Partials() { return PartialBuffer(rank(), met_ % 2); }

absl::Span<const float* const> SharedMemoryCommunicator::SharePartials(std::int64_t) {
  const std::uint32_t parity = met_ % 2;
  Meet();
  for (std::uint32_t t = 0; t < shape().tensor; ++t) {
    parts_[t] = PartialBuffer(stage_begin_ + t, parity);
  }
  return parts_;
}

float* SharedMemoryCommunicator::Logits() {
  return At<float>(layout_.logits + (tiles_ % 2) * layout_.logit_bytes);
}

void SharedMemoryCommunicator::ShareLogits(std::int64_t, LogitReaders) {
  ++tiles_;
  Meet();
}

void SharedMemoryCommunicator::SendResidual(const float* data, std::int64_t count) {
  RankCounters& next = CountersOf(rank() + shape().tensor);
  Await(next.received, sent_ + 1 - kResidualBuffers, /*spin=*/false);
  std::memcpy(ResidualBuffer(rank(), sent_), data, static_cast<std::size_t>(count) * sizeof(float));
  ++sent_;
  Raise(CountersOf(rank()).sent);
}

void SharedMemoryCommunicator::ReceiveResidual(float* data, std::int64_t count) {
  const std::uint32_t sender = rank() - shape().tensor;
  Await(CountersOf(sender).sent, received_ + 1, /*spin=*/false);
  std::memcpy(data, ResidualBuffer(sender, received_),
              static_cast<std::size_t>(count) * sizeof(float));
  ++received_;
  Raise(CountersOf(rank()).received);
}

void SharedMemoryCommunicator::SendMetadata(absl::Span<const std::byte> metadata) {
  auto size = static_cast<std::int64_t>(metadata.size());
  if (size > limits_.metadata_bytes) {  // the limit follows from the options, so this is a bug
    Abort();
    return;
  }
  // Waits until all ranks have read the metadata that the buffer last held.
  for (std::uint32_t r = 0; r < shape().ranks(); ++r) {
    Await(CountersOf(r).taken, metadata_sent_ - limits_.lag, /*spin=*/false);
  }
  std::byte* buffer = MetadataBuffer(rank(), metadata_sent_);
  std::memcpy(buffer, &size, sizeof(size));
  if (size > 0) std::memcpy(buffer + sizeof(size), metadata.data(), metadata.size());
  ++metadata_sent_;
  Raise(CountersOf(rank()).metadata_sent);
}

absl::Span<const std::vector<std::byte>> SharedMemoryCommunicator::TakeMetadata() {
  const bool spin = spin_ && shape().pipeline == 1;
  for (std::uint32_t r = 0; r < shape().ranks(); ++r) {
    Await(CountersOf(r).metadata_sent, taken_ + 1, spin);
    const std::byte* buffer = MetadataBuffer(r, taken_);
    std::int64_t size = 0;
    std::memcpy(&size, buffer, sizeof(size));
    const std::byte* begin = buffer + sizeof(size);
    metadata_[r].assign(begin, begin + std::clamp<std::int64_t>(size, 0, limits_.metadata_bytes));
  }
  ++taken_;
  Raise(CountersOf(rank()).taken);
  return metadata_;
}

void SharedMemoryCommunicator::Abort() {
  At<Header>(0)->aborted.store(1);
  for (std::uint32_t r = 0; r < shape().ranks(); ++r) {
    RankCounters& counters = CountersOf(r);
    for (Counter* counter : {&counters.met, &counters.sent, &counters.received,
                             &counters.metadata_sent, &counters.taken}) {
      FutexWakeAll(counter->value);
    }
  }
}

bool SharedMemoryCommunicator::aborted() const {
  return At<Header>(0)->aborted.load(std::memory_order_relaxed) != 0;
}

}  // namespace flotilla::worker
