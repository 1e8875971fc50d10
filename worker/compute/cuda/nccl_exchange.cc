#include "worker/compute/cuda/nccl_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rt/steady_now.h"

namespace flotilla::worker {
namespace {

using Queue = Device::Queue;

// How often a call that goes on is asked whether it has ended, and how often the watchdog looks.
constexpr absl::Duration kPoll = absl::Microseconds(20);
constexpr absl::Duration kLook = absl::Milliseconds(50);
// Floats of one launch of `add`, whose grid has at most 65,535 blocks of a row.
constexpr std::int64_t kMostAdded = 1 << 22;

std::size_t Bytes(std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); }

std::int64_t MostParts(const SumTree& tree) {
  std::int64_t most = 0;
  for (const SumTree::Part& part : tree.parts) most = std::max(most, std::int64_t{part.place} + 1);
  return most;
}

// `count` floats as slices of one size, of which the last may be shorter or empty.
struct Slices {
  Slices(std::int64_t all, std::uint32_t ranks) : count(all), size((all + ranks - 1) / ranks) {}

  std::int64_t begin(std::uint32_t rank) const { return std::min(rank * size, count); }
  std::int64_t size_of(std::uint32_t rank) const { return begin(rank + 1) - begin(rank); }

  std::int64_t count, size;
};

}  // namespace

NcclExchange::NcclExchange(NcclExchangeOptions options, Device& device)
    : options_(std::move(options)), api_(*options_.api), device_(device) {
  watchdog_ = std::thread([this] { Watch(); });
}

// An abort frees what the communicator has, and waits for no rank.
NcclExchange::~NcclExchange() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    AbortWith(absl::CancelledError("the exchange has ended"));
  }
  watchdog_.join();
}

// ---- The communicator.

absl::Status NcclExchange::Join(const NcclApi::UniqueId& id) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    ++under_way_;
    join_end_ = SteadyNow() + options_.call_limit;
    NcclApi::Config config;
    const int result = api_.comm_init_rank_config(&comm_, static_cast<int>(options_.shape.ranks()),
                                                  id, static_cast<int>(options_.rank), &config);
    Settle("joining the ranks", result);
    status = failure_;
  }
  if (status.ok()) status = Try();
  absl::MutexLock lock(&mu_);
  join_end_ = absl::InfiniteFuture();
  --under_way_;
  // What NCCL says of a failure says more than what it did to the queue.
  return failure_.ok() ? status : failure_;
}

absl::Status NcclExchange::Try() {
  const std::uint32_t tensor = options_.shape.tensor, ranks = options_.shape.ranks();
  const auto sent = device_.Allocate(sizeof(float));
  const auto pinned = device_.AllocatePinned(Bytes(ranks + 1));
  const auto received = device_.Allocate(Bytes(ranks));
  for (const absl::Status& made : {sent.status(), pinned.status(), received.status()}) {
    if (!made.ok()) return made;
  }
  auto* const host = pinned->as<float>();
  host[ranks] = static_cast<float>(options_.rank);
  device_.Upload(Queue::kCompute, sent->data(), host + ranks, sizeof(float));
  device_.Fill(Queue::kCompute, received->data(), 0xFF, Bytes(ranks));
  std::vector<Message> messages;
  std::vector<std::uint32_t> senders;
  const auto send = [&](std::uint32_t to) { messages.push_back({true, to, sent->as<float>(), 1}); };
  const auto receive = [&](std::uint32_t from) {
    messages.push_back({false, from, received->as<float>() + from, 1});
    senders.push_back(from);
  };
  for (std::uint32_t t = 0; t < tensor; ++t) {
    if (t == tensor_rank()) continue;
    send(PeerOf(t));
    receive(PeerOf(t));
  }
  if (options_.rank + tensor < ranks) send(options_.rank + tensor);
  if (options_.rank >= tensor) receive(options_.rank - tensor);
  absl::Status status = Move("trying the ways to other ranks", std::move(messages));
  device_.Download(Queue::kCompute, host, received->data(), Bytes(ranks));
  status.Update(device_.Synchronize(device_.Record(Queue::kCompute)));
  status.Update(this->status());
  if (!status.ok()) return status;
  for (const std::uint32_t from : senders) {
    if (host[from] == static_cast<float>(from)) continue;
    return absl::InternalError(
        absl::StrCat("NCCL has moved another number than rank ", from, " has sent"));
  }
  return absl::OkStatus();
}

void NcclExchange::AbortWith(const absl::Status& status) {
  if (failure_.ok()) failure_ = status;
  if (comm_ == nullptr) return;
  (void)api_.comm_abort(std::exchange(comm_, nullptr));
}

void NcclExchange::FailCall(std::string_view what, int result) {
  std::string why = api_.get_error_string(result);
  const char* const detail = comm_ == nullptr ? nullptr : api_.get_last_error(comm_);
  if (detail != nullptr && detail[0] != '\0') absl::StrAppend(&why, " (", detail, ")");
  AbortWith(absl::InternalError(absl::StrCat("NCCL failed in ", std::string(what), ": ", why)));
}

absl::Status NcclExchange::TooLong(std::string_view what) const {
  return absl::DeadlineExceededError(absl::StrCat("NCCL has not ended ", std::string(what),
                                                  " within ",
                                                  absl::FormatDuration(options_.call_limit)));
}

void NcclExchange::Look() {
  if (!failure_.ok()) return;
  if (options_.ended != nullptr && options_.ended()) {
    return AbortWith(absl::UnavailableError("another rank of the group has failed"));
  }
  if (comm_ == nullptr) return;
  if (SteadyNow() > join_end_) return AbortWith(TooLong("trying the ways to other ranks"));
  int state = NcclApi::kSuccess;
  int result = api_.comm_get_async_error(comm_, &state);
  if (result == NcclApi::kSuccess) result = state;
  if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) {
    FailCall("work that it has begun", result);
  }
}

bool NcclExchange::Settle(std::string_view what, int result) {
  const absl::Time end = SteadyNow() + options_.call_limit;
  while (failure_.ok() && result == NcclApi::kInProgress) {
    if (options_.ended != nullptr && options_.ended()) {
      AbortWith(absl::UnavailableError("another rank of the group has failed"));
    } else if (SteadyNow() > end) {
      AbortWith(TooLong(what));
    } else {
      if (options_.progress != nullptr) options_.progress->Move();
      const auto failed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !failure_.ok(); };
      if (mu_.AwaitWithTimeout(absl::Condition(&failed), kPoll)) break;
      int state = NcclApi::kSuccess;
      result = api_.comm_get_async_error(comm_, &state);
      if (result == NcclApi::kSuccess) result = state;
    }
  }
  if (failure_.ok() && result != NcclApi::kSuccess) FailCall(what, result);
  return failure_.ok();
}

void NcclExchange::Watch() {
  absl::MutexLock lock(&mu_);
  const auto wakes = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || under_way_ > 0; };
  while (true) {
    mu_.Await(absl::Condition(&wakes));
    if (stopped_) return;
    Look();
    if (join_end_ != absl::InfiniteFuture() && options_.progress != nullptr) {
      options_.progress->Move();
    }
    (void)mu_.AwaitWithTimeout(absl::Condition(&stopped_), kLook);
  }
}

void NcclExchange::BeginStep() {
  absl::MutexLock lock(&mu_);
  ++under_way_;
}
void NcclExchange::EndStep() {
  absl::MutexLock lock(&mu_);
  --under_way_;
}

absl::Status NcclExchange::status() {
  absl::MutexLock lock(&mu_);
  return failure_;
}

void NcclExchange::Abort() {
  absl::MutexLock lock(&mu_);
  AbortWith(absl::CancelledError("the exchange was aborted"));
}

// ---- Messages.

absl::Status NcclExchange::Move(std::string_view what, std::vector<Message> messages) {
  std::erase_if(messages, [](const Message& message) { return message.count == 0; });
  if (messages.empty()) return status();
  device_.Launch(Queue::kCompute, [this, what, messages = std::move(messages)](
                                      const kernels::cuda::Ops&, kernels::cuda::Stream stream) {
    MoveNow(what, messages, stream);
    return 0;  // status() has the error
  });
  return status();
}

void NcclExchange::MoveNow(std::string_view what, const std::vector<Message>& messages,
                           kernels::cuda::Stream stream) {
  absl::MutexLock lock(&mu_);
  if (comm_ == nullptr && failure_.ok()) AbortWith(absl::InternalError("NCCL was not joined"));
  if (!failure_.ok()) return;
  int result = api_.group_start();
  if (result != NcclApi::kSuccess) return FailCall(what, result);
  for (const Message& message : messages) {
    const auto count = static_cast<std::size_t>(message.count);
    const auto peer = static_cast<int>(message.peer);
    result = message.send ? api_.send(message.data, count, NcclApi::kFloat32, peer, comm_, stream)
                          : api_.recv(message.data, count, NcclApi::kFloat32, peer, comm_, stream);
    if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) break;
    result = NcclApi::kSuccess;
  }
  // A group that has begun must end, whatever happened in it.
  const int ended = api_.group_end();
  Settle(what, result == NcclApi::kSuccess ? ended : result);
}

absl::Status NcclExchange::SendResidual(const float* data, std::int64_t count, Arena&) {
  return Move("sending the residual", {{.send = true,
                                        .peer = options_.rank + options_.shape.tensor,
                                        .data = const_cast<float*>(data),
                                        .count = count}});
}

absl::Status NcclExchange::ReceiveResidual(float* data, std::int64_t count, Arena&) {
  return Move("receiving the residual", {{.send = false,
                                          .peer = options_.rank - options_.shape.tensor,
                                          .data = data,
                                          .count = count}});
}

// ---- Sums.

absl::Status NcclExchange::Reserve(const SumTree& tree, std::int64_t rows, std::int64_t columns) {
  const std::uint32_t ranks = options_.shape.tensor;
  const std::int64_t all = rows * columns;
  const std::int64_t whole = std::min(all, options_.whole_floats);
  // What a rank has of each part, of the largest sum that is made whole and of the largest slice.
  const std::int64_t piece = std::max(whole, Slices(all, ranks).size);
  const std::pair<Device::Memory*, std::int64_t> wanted[] = {
      {&received_, piece * MostParts(tree) * ranks},
      {&registers_, piece * std::max<std::int64_t>(tree.program.depth, 1)},
      {&total_, all}};
  for (const auto& [memory, floats] : wanted) {
    if (memory->bytes() >= Bytes(floats)) continue;
    auto made = device_.Allocate(Bytes(floats));
    if (!made.ok()) return made.status();
    *memory = *std::move(made);
  }
  return absl::OkStatus();
}

absl::StatusOr<const float*> NcclExchange::Sum(const SumTree& tree, const float* parts,
                                               std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = rows * columns;
  return count <= options_.whole_floats ? SumWhole(tree, parts, count)
                                        : SumSlices(tree, parts, count);
}

absl::StatusOr<const float*> NcclExchange::SumWhole(const SumTree& tree, const float* parts,
                                                    std::int64_t count) {
  const std::int64_t stride = MostParts(tree) * count;  // of a rank's parts
  auto* const received = received_.as<float>();
  std::vector<Message> messages;
  for (std::uint32_t t = 0; t < options_.shape.tensor; ++t) {
    if (t == tensor_rank()) continue;
    messages.push_back(
        {true, PeerOf(t), const_cast<float*>(parts), PartsOf(tree, tensor_rank()) * count});
    messages.push_back({false, PeerOf(t), received + t * stride, PartsOf(tree, t) * count});
  }
  if (absl::Status status = Move("sharing the parts of a sum", std::move(messages)); !status.ok()) {
    return status;
  }
  const auto part_at = [&](const SumTree::Part& part) {
    const float* const from = part.rank == tensor_rank() ? parts : received + part.rank * stride;
    return from + part.place * count;
  };
  Add(tree, part_at, count, total_.as<float>());
  return total_.as<float>();
}

absl::StatusOr<const float*> NcclExchange::SumSlices(const SumTree& tree, const float* parts,
                                                     std::int64_t count) {
  const std::uint32_t own = tensor_rank();
  const Slices slices(count, options_.shape.tensor);
  const std::int64_t stride = MostParts(tree) * slices.size;  // of a rank's parts of the slice
  auto* const received = received_.as<float>();
  auto* const total = total_.as<float>();
  const float* const own_slice = parts + slices.begin(own);
  std::vector<Message> messages, sums;
  for (std::uint32_t t = 0; t < options_.shape.tensor; ++t) {
    if (t == own) continue;
    for (std::int64_t place = 0; place < PartsOf(tree, own); ++place) {
      const float* const part = parts + place * count + slices.begin(t);
      messages.push_back({true, PeerOf(t), const_cast<float*>(part), slices.size_of(t)});
    }
    for (std::int64_t place = 0; place < PartsOf(tree, t); ++place) {
      messages.push_back(
          {false, PeerOf(t), received + t * stride + place * slices.size, slices.size_of(own)});
    }
    sums.push_back({true, PeerOf(t), total + slices.begin(own), slices.size_of(own)});
    sums.push_back({false, PeerOf(t), total + slices.begin(t), slices.size_of(t)});
  }
  absl::Status status = Move("sharing slices of parts", std::move(messages));
  if (!status.ok()) return status;
  const auto part_at = [&](const SumTree::Part& part) {
    return part.rank == own ? own_slice + part.place * count
                            : received + part.rank * stride + part.place * slices.size;
  };
  if (slices.size_of(own) > 0) Add(tree, part_at, slices.size_of(own), total + slices.begin(own));
  status = Move("sharing slices of a sum", std::move(sums));
  if (!status.ok()) return status;
  return total;
}

void NcclExchange::Add(const SumTree& tree,
                       const std::function<const float*(const SumTree::Part&)>& part_at,
                       std::int64_t count, float* out) {
  const auto register_at = [&](std::uint32_t i) {
    return i == 0 ? out : registers_.as<float>() + (i - 1) * count;
  };
  for (const TreeStep& step : tree.program.steps) {
    if (step.load) {
      device_.Copy(Queue::kCompute, register_at(step.to), part_at(tree.parts[step.from]),
                   Bytes(count));
      continue;
    }
    for (std::int64_t begin = 0; begin < count; begin += kMostAdded) {
      const std::int64_t n = std::min(kMostAdded, count - begin);
      const kernels::cuda::AddArgs args{.x = register_at(step.to + 1) + begin,
                                        .x_stride = n,
                                        .y = register_at(step.to) + begin,
                                        .y_stride = n,
                                        .n = static_cast<int>(n),
                                        .rows = 1};
      device_.Launch(Queue::kCompute,
                     [args](const kernels::cuda::Ops& ops, kernels::cuda::Stream stream) {
                       return ops.add(args, stream);
                     });
    }
  }
}

}  // namespace flotilla::worker
