// SharedMemoryCommunicator: communicator and exchange of ranks on one host, over memory that they
// share. The ranks may be threads of one process or several processes. Only what a stage
// hands to the next is copied: a rank writes parts, logits and step metadata where the
// others read them.
//
// A wait spins at most for the time of one wake-up, then sleeps on a futex. It does not
// spin when the host has more compute threads than CPUs, and never between stages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/comm/communicator.h"
#include "worker/comm/exchange.h"
#include "worker/comm/limits.h"

namespace flotilla::worker {

// Zeroed memory that several communicators share. Pages that nobody writes cost nothing.
class SharedRegion {
 public:
  // Makes a region of this process alone. RESOURCE_EXHAUSTED: there is not enough memory.
  static absl::StatusOr<SharedRegion> Create(std::int64_t bytes);
  // Maps the file at `path`, which should be one in memory. The file is empty when the
  // first process opens it. All processes open it with the same size. RESOURCE_EXHAUSTED
  // or another errno code.
  static absl::StatusOr<SharedRegion> Open(const std::string& path, std::int64_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::int64_t bytes() const { return memory_.get_deleter().bytes; }

 private:
  struct Unmap {
    std::int64_t bytes = 0;
    void operator()(std::byte* memory) const;
  };
  explicit SharedRegion(void* memory, std::int64_t bytes)
      : memory_(static_cast<std::byte*>(memory), Unmap{bytes}) {}

  std::unique_ptr<std::byte, Unmap> memory_;
};

class SharedMemoryCommunicator final : public Communicator, public Exchange {
 public:
  // The bytes that a region for `shape` and `limits` needs.
  static std::int64_t RegionBytes(ParallelShape shape, const CommLimits& limits);

  // `region` has RegionBytes and was zeroed before the first communicator used it. The
  // shape's ranks share it, each with a `rank` of its own. `spin`: the host has a CPU for
  // each compute thread of all ranks.
  SharedMemoryCommunicator(std::shared_ptr<const SharedRegion> region, ParallelShape shape,
                           std::uint32_t rank, const CommLimits& limits, bool spin);

  // After Abort: brings the communicator back to its first state. It must be called on all
  // ranks, while no rank makes another call.
  void Reset();

  float* Partials() override;
  absl::Span<const float* const> SharePartials(std::int64_t count) override;
  float* Logits() override;
  void ShareLogits(std::int64_t rows, LogitReaders readers) override;
  void SendResidual(const float* data, std::int64_t count) override;
  void ReceiveResidual(float* data, std::int64_t count) override;
  void SendMetadata(absl::Span<const std::byte> metadata) override;
  absl::Span<const std::vector<std::byte>> TakeMetadata() override;
  void Abort() override;
  bool aborted() const override;

 private:
  // A number that one rank raises and others wait for. On a cache line of its own.
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value{0};
    std::atomic<std::uint32_t> sleepers{0};
  };
  // The counters of one rank.
  struct RankCounters {
    Counter met;            // shared partials and logits
    Counter sent;           // residuals for the next stage
    Counter received;       // residuals of the stage before
    Counter metadata_sent;  // step metadata sent
    Counter taken;          // step metadata taken
  };
  struct Header {
    std::atomic<std::uint32_t> aborted{0};
  };
  // Byte offsets into the region.
  struct Layout {
    Layout(ParallelShape shape, const CommLimits& limits);
    std::int64_t counters, partials, logits, residuals, metadata, end;
    std::int64_t partial_bytes, logit_bytes, residual_bytes, metadata_bytes;  // of one buffer
  };

  RankCounters& CountersOf(std::uint32_t rank) const;
  template <class T>
  T* At(std::int64_t offset) const {
    return reinterpret_cast<T*>(region_->data() + offset);
  }
  float* PartialBuffer(std::uint32_t rank, std::uint32_t parity) const;
  float* ResidualBuffer(std::uint32_t sender, std::uint32_t number) const;
  std::byte* MetadataBuffer(std::uint32_t rank, std::uint32_t number) const;
  // Returns once all ranks of this stage have called it.
  void Meet();
  static void Raise(Counter& counter);
  // Waits until the counter is `number` or more (modulo 2^32).
  void Await(Counter& counter, std::uint32_t number, bool spin) const;

  const std::shared_ptr<const SharedRegion> region_;
  const CommLimits limits_;
  const Layout layout_;
  const bool spin_;
  const std::uint32_t stage_begin_;  // first rank of this stage

  // The values of this rank's counters.
  std::uint32_t met_ = 0, sent_ = 0, received_ = 0, metadata_sent_ = 0, taken_ = 0;
  std::uint32_t tiles_ = 0;  // tiles of logits so far
  std::vector<const float*> parts_;
  std::vector<std::vector<std::byte>> metadata_;
};

}  // namespace flotilla::worker
