#include "worker/comm/mpi_communicator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace flotilla::worker {
namespace {

using std::chrono::microseconds;

// A wake-up takes about this long.
constexpr microseconds kSpin{30};
// The naps between two polls after that. A nap doubles from the short to the long one.
constexpr microseconds kShortNap{10}, kLongNap{160};
constexpr std::uint32_t kBuffers = 2;

enum Tag : int { kPartialsTag = 1, kLogitsTag, kResidualTag, kMetadataTag };

}  // namespace

bool OnOneHost() {
  MPI_Comm host = MPI_COMM_NULL;
  int size = 0, all = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &size);
  MPI_Comm_size(MPI_COMM_WORLD, &all);
  MPI_Comm_free(&host);
  return size == all;
}

MpiCommunicator::MpiCommunicator(ParallelShape shape, std::uint32_t rank, const CommLimits& limits,
                                 std::vector<IndexRange> columns, std::int64_t vocab, bool spin)
    : Communicator(shape, rank),
      limits_(limits),
      spin_(spin),
      stage_begin_(rank - tensor_rank()),
      columns_(std::move(columns)),
      vocab_(vocab),
      parts_(kBuffers),
      residual_(kBuffers),
      sent_metadata_(limits.lag + 1),
      received_(shape.ranks()),
      metadata_(shape.ranks()),
      part_pointers_(shape.tensor) {
  prctl(PR_SET_TIMERSLACK, 1'000);  // ns; naps are as short as the default of 50 us
  MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  for (std::uint32_t i = 0; i < kBuffers; ++i) {
    outgoing_.emplace_back(limits.partial_floats);
    logits_.emplace_back(limits.logit_floats);
    residual_[i].data = Buffer(limits.residual_floats);
    for (std::uint32_t t = 0; t < shape.tensor; ++t) {
      parts_[i].emplace_back(t == tensor_rank() ? 0 : limits.partial_floats);
    }
  }
  for (std::uint32_t r = 0; r < shape.ranks(); ++r) {
    if (r != rank) received_[r].resize(static_cast<std::size_t>(limits.metadata_bytes));
  }
  for (const IndexRange& range : columns_) {
    const auto columns_of_rows = [&](std::int64_t stride) {
      MPI_Datatype row = MPI_DATATYPE_NULL, type = MPI_DATATYPE_NULL;
      MPI_Type_contiguous(static_cast<int>(range.size()), MPI_FLOAT, &row);
      MPI_Type_create_resized(row, 0, stride * static_cast<MPI_Aint>(sizeof(float)), &type);
      MPI_Type_commit(&type);
      MPI_Type_free(&row);
      return type;
    };
    column_types_.push_back(columns_of_rows(vocab));
    reader_column_types_.push_back(columns_of_rows(vocab * shape.tensor));
  }
  // Two ranks connect at their first message to each other, and both must take part. So all
  // ranks exchange a message here.
  std::vector<int> greetings(2 * shape.ranks());
  MPI_Alltoall(greetings.data(), 1, MPI_INT, greetings.data() + shape.ranks(), 1, MPI_INT, world_);
}

MPI_Request MpiCommunicator::Send(const void* data, std::int64_t count, MPI_Datatype type, int to,
                                  int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(data, static_cast<int>(count), type, to, tag, world_, &request);
  return request;
}

MPI_Request MpiCommunicator::Receive(void* data, std::int64_t count, MPI_Datatype type, int from,
                                     int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(data, static_cast<int>(count), type, from, tag, world_, &request);
  return request;
}

void MpiCommunicator::Await(std::vector<MPI_Request>& requests, bool spin) {
  statuses_.resize(requests.size());
  const auto spin_until = std::chrono::steady_clock::now() + (spin ? kSpin : microseconds{0});
  for (microseconds nap = kShortNap; !aborted();) {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses_.data());
    if (done != 0) break;
    if (std::chrono::steady_clock::now() < spin_until) continue;
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongNap);
  }
  requests.clear();
}

// Two buffers suffice, because an exchange returns only when all of it is sent and received.
float* MpiCommunicator::Partials() { return outgoing_[exchanges_ % kBuffers].data(); }

absl::Span<const float* const> MpiCommunicator::SharePartials(std::int64_t count) {
  const std::uint32_t buffer = exchanges_ % kBuffers;
  for (std::uint32_t t = 0; t < shape().tensor; ++t) {
    if (t == tensor_rank()) {
      part_pointers_[t] = outgoing_[buffer].data();
      continue;
    }
    part_pointers_[t] = parts_[buffer][t].data();
    requests_.push_back(Receive(parts_[buffer][t].data(), limits_.partial_floats, MPI_FLOAT,
                                RankOf(t), kPartialsTag));
  }
  for (std::uint32_t t = 0; t < shape().tensor; ++t) {
    if (t == tensor_rank()) continue;
    requests_.push_back(Send(outgoing_[buffer].data(), count, MPI_FLOAT, RankOf(t), kPartialsTag));
  }
  Await(requests_, spin_);
  ++exchanges_;
  return part_pointers_;
}

float* MpiCommunicator::Logits() { return logits_[tiles_ % kBuffers].data(); }

void MpiCommunicator::ShareLogits(std::int64_t rows, LogitReaders readers) {
  float* const tile = Logits();
  const std::int64_t ranks = shape().tensor;
  const auto& types = readers.all ? column_types_ : reader_column_types_;
  struct Rows {
    std::int64_t begin, count;
  };
  // The rows that rank `reader` of this stage reads.
  const auto rows_of = [&](std::int64_t reader) -> Rows {
    if (readers.all) return {0, rows};
    const std::int64_t begin = (reader + ranks - readers.first_owner % ranks) % ranks;
    return {begin, begin < rows ? (rows - begin - 1) / ranks + 1 : 0};
  };
  const Rows own = rows_of(tensor_rank());
  for (std::uint32_t t = 0; t < ranks && own.count > 0; ++t) {
    if (t == tensor_rank()) continue;
    float* const to = tile + own.begin * vocab_ + columns_[t].begin;
    requests_.push_back(Receive(to, own.count, types[t], RankOf(t), kLogitsTag));
  }
  for (std::uint32_t t = 0; t < ranks; ++t) {
    const Rows theirs = rows_of(t);
    if (t == tensor_rank() || theirs.count == 0) continue;
    const float* const from = tile + theirs.begin * vocab_ + columns_[tensor_rank()].begin;
    requests_.push_back(Send(from, theirs.count, types[tensor_rank()], RankOf(t), kLogitsTag));
  }
  Await(requests_, spin_);
  ++tiles_;
}

void MpiCommunicator::SendResidual(const float* data, std::int64_t count) {
  Sent<Buffer>& slot = residual_[sent_++ % kBuffers];
  Await(slot.requests, /*spin=*/false);
  std::copy_n(data, count, slot.data.data());
  slot.requests.push_back(Send(slot.data.data(), count, MPI_FLOAT,
                               static_cast<int>(rank() + shape().tensor), kResidualTag));
}

void MpiCommunicator::ReceiveResidual(float* data, std::int64_t count) {
  requests_.push_back(
      Receive(data, count, MPI_FLOAT, static_cast<int>(rank() - shape().tensor), kResidualTag));
  Await(requests_, /*spin=*/false);
}

void MpiCommunicator::SendMetadata(absl::Span<const std::byte> metadata) {
  if (static_cast<std::int64_t>(metadata.size()) > limits_.metadata_bytes) {
    Abort();  // the limit follows from the options, so this is a bug
    return;
  }
  Sent<std::vector<std::byte>>& slot = sent_metadata_[metadata_sent_++ % sent_metadata_.size()];
  Await(slot.requests, /*spin=*/false);
  slot.data.assign(metadata.begin(), metadata.end());
  for (std::uint32_t r = 0; r < shape().ranks(); ++r) {
    if (r == rank()) continue;
    slot.requests.push_back(Send(slot.data.data(), static_cast<std::int64_t>(metadata.size()),
                                 MPI_BYTE, static_cast<int>(r), kMetadataTag));
  }
  own_metadata_.push_back(slot.data);
}

absl::Span<const std::vector<std::byte>> MpiCommunicator::TakeMetadata() {
  for (std::uint32_t r = 0; r < shape().ranks(); ++r) {
    if (r == rank()) continue;
    requests_.push_back(Receive(received_[r].data(), limits_.metadata_bytes, MPI_BYTE,
                                static_cast<int>(r), kMetadataTag));
  }
  Await(requests_, spin_ && shape().pipeline == 1);
  if (aborted()) return metadata_;
  std::size_t at = 0;
  for (std::uint32_t r = 0; r < shape().ranks(); ++r) {
    if (r == rank()) continue;
    int size = 0;
    MPI_Get_count(&statuses_[at++], MPI_BYTE, &size);
    metadata_[r].assign(received_[r].begin(), received_[r].begin() + size);
  }
  metadata_[rank()] = std::move(own_metadata_.front());
  own_metadata_.pop_front();
  return metadata_;
}

bool MpiCommunicator::Progress() {
  bool pending = false;
  const auto move_on = [&](std::vector<MPI_Request>& requests) {
    if (requests.empty()) return;
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) requests.clear();
    pending |= done == 0;
  };
  for (auto& one : residual_) move_on(one.requests);
  for (auto& one : sent_metadata_) move_on(one.requests);
  return pending && !aborted();
}

}  // namespace flotilla::worker
