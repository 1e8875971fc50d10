// MpiCommunicator: a Communicator by MPI messages, for ranks that share no memory.
//
// All calls to MPI come from the thread that runs plans. Nothing is received that was
// not asked for, and waits poll: for one wake-up's time at first, then with naps between,
// so a wait that is long costs little. What was sent may still be on its way when a step
// is over: Progress moves it on. Abort ends this rank's waits only: others wait until
// the agent ends them.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "worker/aligned_buffer.h"
#include "worker/communicator.h"

namespace flotilla {

class MpiCommunicator final : public Communicator {
 public:
  // All ranks of MPI_COMM_WORLD, which are those of the shape, call it at the same time.
  // `columns`: of each rank of this one's stage, those of a row of `vocab` logits that it
  // fills. `spin`: the host has a CPU for each compute thread of its ranks.
  MpiCommunicator(ParallelShape shape, std::uint32_t rank, const Limits& limits,
                  std::vector<IndexRange> columns, std::int64_t vocab, bool spin);

  float* Outgoing() override;
  absl::Span<const float* const> Exchange(std::int64_t count) override;
  float* Logits() override;
  void ShareLogits(std::int64_t rows) override;
  void SendHidden(const float* data, std::int64_t count) override;
  void ReceiveHidden(float* data, std::int64_t count) override;
  void SendMetadata(absl::Span<const std::byte> metadata) override;
  absl::Span<const std::vector<std::byte>> TakeMetadata() override;
  bool Progress() override;
  void Abort() override { aborted_ = true; }
  bool aborted() const override { return aborted_; }

 private:
  using Buffer = AlignedBuffer<float>;
  // A message to one or several ranks, on its way.
  template <class Data>
  struct Sent {
    Data data;
    std::vector<MPI_Request> requests;
  };

  int RankOf(std::uint32_t tensor_rank) const {
    return static_cast<int>(stage_begin_ + tensor_rank);
  }
  MPI_Request Send(const void* data, std::int64_t count, MPI_Datatype type, int to, int tag);
  MPI_Request Receive(void* data, std::int64_t count, MPI_Datatype type, int from, int tag);
  // Until all have ended, and forgets them; or after Abort.
  void Await(std::vector<MPI_Request>& requests, bool spin);

  const Limits limits_;
  const bool spin_;
  const std::uint32_t stage_begin_;  // first rank of this stage
  const std::vector<IndexRange> columns_;
  MPI_Comm world_ = MPI_COMM_NULL;          // of these messages alone
  std::vector<MPI_Datatype> column_types_;  // [tensor] a rank's columns of a row
  std::atomic<bool> aborted_{false};

  // By number of the exchange, the tile, the hidden state, the step: each modulo how many
  // there are.
  std::uint32_t exchanges_ = 0, tiles_ = 0, sent_ = 0, metadata_sent_ = 0;
  std::vector<Buffer> outgoing_;                             // [2]
  std::vector<std::vector<Buffer>> parts_;                   // [2][tensor] of the others
  std::vector<Buffer> logits_;                               // [2]
  std::vector<Sent<Buffer>> hidden_;                         // [2]
  std::vector<Sent<std::vector<std::byte>>> sent_metadata_;  // [lag + 1]
  std::deque<std::vector<std::byte>> own_metadata_;          // not taken
  std::vector<std::vector<std::byte>> received_;  // [ranks] room for the metadata of a step
  std::vector<std::vector<std::byte>> metadata_;  // [ranks]
  std::vector<const float*> part_pointers_;
  std::vector<MPI_Request> requests_;  // of the call under way
  std::vector<MPI_Status> statuses_;   // of the last Await
};

// Whether all ranks of MPI_COMM_WORLD can share memory. All call it at the same time.
bool OnOneHost();

}  // namespace flotilla
