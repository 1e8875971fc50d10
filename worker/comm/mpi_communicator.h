// MpiCommunicator: communicator and exchange by MPI messages, for ranks that share no memory.
//
// All calls to MPI come from the thread that runs plans. A rank receives only what it has
// asked for. A wait polls: without pauses for the time of one wake-up, then with naps in
// between, so that a long wait costs little. A message may still be on its way when a step
// is over; Progress moves it on. Abort ends the waits of this rank only: other ranks wait
// until the agent ends them.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/types/span.h"
#include "common/rt/aligned_buffer.h"
#include "worker/comm/communicator.h"
#include "worker/comm/exchange.h"
#include "worker/comm/limits.h"

namespace flotilla::worker {

class MpiCommunicator final : public Communicator, public Exchange {
 public:
  // All ranks of MPI_COMM_WORLD, which are those of the shape, call it at the same time.
  // `columns` says for each rank of this stage which columns of a row of `vocab` logits it
  // fills. `spin`: the host has a CPU for each compute thread of its ranks.
  MpiCommunicator(ParallelShape shape, std::uint32_t rank, const CommLimits& limits,
                  std::vector<IndexRange> columns, std::int64_t vocab, bool spin);

  float* Partials() override;
  absl::Span<const float* const> SharePartials(std::int64_t count) override;
  float* Logits() override;
  void ShareLogits(std::int64_t rows, LogitReaders readers) override;
  void SendResidual(const float* data, std::int64_t count) override;
  void ReceiveResidual(float* data, std::int64_t count) override;
  void SendMetadata(absl::Span<const std::byte> metadata) override;
  absl::Span<const std::vector<std::byte>> TakeMetadata() override;
  bool Progress() override;
  void Abort() override { aborted_ = true; }
  bool aborted() const override { return aborted_; }

 private:
  using Buffer = AlignedBuffer<float>;
  // A message on its way to one or several ranks.
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
  // Waits until all requests have ended, or until Abort. Then forgets them.
  void Await(std::vector<MPI_Request>& requests, bool spin);

  const CommLimits limits_;
  const bool spin_;
  const std::uint32_t stage_begin_;  // first rank of this stage
  const std::vector<IndexRange> columns_;
  const std::int64_t vocab_;
  MPI_Comm world_ = MPI_COMM_NULL;  // used by these messages alone
  // [tensor] a rank's columns of a row. Consecutive elements are consecutive rows, or every row
  // of one reader.
  std::vector<MPI_Datatype> column_types_, reader_column_types_;
  std::atomic<bool> aborted_{false};

  // How many exchanges, tiles, residuals and step metadata there were so far. Each
  // number, modulo the count of its buffers below, picks a buffer.
  std::uint32_t exchanges_ = 0, tiles_ = 0, sent_ = 0, metadata_sent_ = 0;
  std::vector<Buffer> outgoing_;                             // [2]
  std::vector<std::vector<Buffer>> parts_;                   // [2][tensor] parts of the others
  std::vector<Buffer> logits_;                               // [2]
  std::vector<Sent<Buffer>> residual_;                       // [2]
  std::vector<Sent<std::vector<std::byte>>> sent_metadata_;  // [lag + 1]
  std::deque<std::vector<std::byte>> own_metadata_;          // not taken yet
  std::vector<std::vector<std::byte>> received_;  // [ranks] room for the metadata of a step
  std::vector<std::vector<std::byte>> metadata_;  // [ranks]
  std::vector<const float*> part_pointers_;
  std::vector<MPI_Request> requests_;  // of the call under way
  std::vector<MPI_Status> statuses_;   // of the last Await
};

// Whether all ranks of MPI_COMM_WORLD can share memory. All call it at the same time.
bool OnOneHost();

}  // namespace flotilla::worker
