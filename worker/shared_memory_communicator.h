// SharedMemoryCommunicator: a Communicator for ranks on one host, threads of one process
// or processes alike, over memory that they share. Nothing is copied but what a stage
// hands to the next: parts, logits and step metadata are written where the others read them.
//
// A wait spins for one wake-up at most (not at all when the host has more compute
// threads than CPUs; never between stages), then sleeps on a futex.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/communicator.h"

namespace flotilla {

// Zeroed memory that several communicators see. Pages that nobody writes cost nothing.
class SharedRegion {
 public:
  // Of this process alone. RESOURCE_EXHAUSTED.
  static absl::StatusOr<SharedRegion> Create(std::int64_t bytes);
  // The file at `path`, empty when the first opens it; one in memory is wanted. All open
  // it with the same size. RESOURCE_EXHAUSTED or another errno code.
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

class SharedMemoryCommunicator final : public Communicator {
 public:
  // What a region for `shape` and `limits` needs.
  static std::int64_t RegionBytes(ParallelShape shape, const Limits& limits);

  // `region` has RegionBytes, was zeroed before the first communicator used it, and is
  // shared by the shape's ranks, each with a number of its own. `spin`: the host has a
  // CPU for each compute thread of all ranks.
  SharedMemoryCommunicator(std::shared_ptr<const SharedRegion> region, ParallelShape shape,
                           std::uint32_t rank, const Limits& limits, bool spin);

  // As at the start, after Abort: while no rank makes a call, on all of them.
  void Reset();

  float* Outgoing() override;
  absl::Span<const float* const> Exchange(std::int64_t count) override;
  float* Logits() override;
  void ShareLogits(std::int64_t rows) override;
  void SendHidden(const float* data, std::int64_t count) override;
  void ReceiveHidden(float* data, std::int64_t count) override;
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
    Counter met;            // exchanges and shared logits
    Counter sent;           // hidden states for the next stage
    Counter received;       // hidden states of the stage before
    Counter metadata_sent;  // step metadata sent
    Counter taken;          // step metadata taken
  };
  struct Header {
    std::atomic<std::uint32_t> aborted{0};
  };
  // Byte offsets into the region.
  struct Layout {
    Layout(ParallelShape shape, const Limits& limits);
    std::int64_t counters, exchanges, logits, hidden, metadata, end;
    std::int64_t exchange_bytes, logit_bytes, hidden_bytes, metadata_bytes;  // of one buffer
  };

  RankCounters& CountersOf(std::uint32_t rank) const;
  template <class T>
  T* At(std::int64_t offset) const {
    return reinterpret_cast<T*>(region_->data() + offset);
  }
  float* ExchangeBuffer(std::uint32_t rank, std::uint32_t parity) const;
  float* HiddenBuffer(std::uint32_t sender, std::uint32_t number) const;
  std::byte* MetadataBuffer(std::uint32_t rank, std::uint32_t number) const;
  // All ranks of this stage have come here.
  void Meet();
  static void Raise(Counter& counter);
  // Until the counter is `number` or more (modulo 2^32).
  void Await(Counter& counter, std::uint32_t number, bool spin) const;

  const std::shared_ptr<const SharedRegion> region_;
  const Limits limits_;
  const Layout layout_;
  const bool spin_;
  const std::uint32_t stage_begin_;  // first rank of this stage

  // This rank's numbers, as its counters have them.
  std::uint32_t met_ = 0, sent_ = 0, received_ = 0, metadata_sent_ = 0, taken_ = 0;
  std::uint32_t tiles_ = 0;  // of logits
  std::vector<const float*> parts_;
  std::vector<std::vector<std::byte>> metadata_;
};

}  // namespace flotilla
