#include "tests/support/fake_nccl.h"

#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/noise.h"

namespace flotilla::testing {
namespace {

using worker::NcclApi;
constexpr int kInvalidUsage = 5, kRemoteError = 6;

struct Message {
  bool send;
  int peer;
  void* data;
  std::size_t count;
};

}  // namespace

struct FakeNccl::World {
  struct Rank {
    bool joined = false;
    int state = NcclApi::kSuccess;
    int pending = 0;     // messages of the call in progress
    int looks_left = 0;  // of the call in progress
    bool aborted = false;
    int aborts = 0, calls = 0;
    int dies_at = 0;  // a number of calls; 0: never
    std::string error;
  };

  bool Begin(Rank& rank) {
    ++rank.calls;
    rank.looks_left = 0;
    if (options.most_looks > 0) {
      random = kernels::Mix64(random);
      rank.looks_left = static_cast<int>(random % (options.most_looks + 1ul));
    }
    return rank.dies_at == 0 || rank.calls < rank.dies_at;
  }
  int Fail(Rank& rank, int state, std::string error) {
    rank.error = std::move(error);
    return rank.state = state;
  }
  int StateOf(const Rank& rank) const {
    if (rank.state != NcclApi::kSuccess) return rank.state;
    if (rank.dies_at > 0 && rank.calls >= rank.dies_at) return NcclApi::kInProgress;
    if (joined < static_cast<int>(ranks.size()) || rank.pending > 0 || rank.looks_left > 0) {
      return NcclApi::kInProgress;
    }
    return NcclApi::kSuccess;
  }
  // Moves a message if its other half is there.
  void Post(int own, const Message& message) {
    const int from = message.send ? own : message.peer, to = message.send ? message.peer : own;
    auto& others = posted[{from, to, !message.send}];
    ++ranks[own].pending;
    if (others.empty()) return posted[{from, to, message.send}].push_back(message);
    const Message other = others.front();
    others.pop_front();
    --ranks[own].pending;
    --ranks[message.peer].pending;
    const Message &send = message.send ? message : other, &receive = message.send ? other : message;
    if (send.count != receive.count) {
      const std::string error = absl::StrCat("rank ", from, " sends ", send.count,
                                             " floats, and rank ", to, " receives ", receive.count);
      Fail(ranks[from], kInvalidUsage, error);
      Fail(ranks[to], kInvalidUsage, error);
      return;
    }
    std::memcpy(receive.data, send.data, send.count * sizeof(float));
    ++messages;
    floats += static_cast<std::int64_t>(send.count);
  }

  FakeNcclOptions options;
  absl::Mutex mu;
  std::uint64_t random = 0;
  std::vector<Rank> ranks = std::vector<Rank>(16);
  bool sized = false;
  int joined = 0;
  int messages = 0;
  std::int64_t floats = 0;
  std::map<std::tuple<int, int, bool>, std::deque<Message>> posted;  // from, to, by the sender
};

namespace {

// A group belongs to the thread that has begun it, as in NCCL.
thread_local int group_rank = -1;
thread_local std::vector<Message> group_messages;

int RankOf(NcclApi::Comm comm) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(comm)) - 1;
}

}  // namespace

FakeNccl::FakeNccl(const FakeNcclOptions& options)
    : world_(std::make_shared<World>()), api_(std::make_shared<NcclApi>()) {
  world_->options = options;
  world_->random = options.seed;
  const auto world = world_;
  api_->get_version = [world](int* version) {
    *version = world->options.version;
    return NcclApi::kSuccess;
  };
  api_->get_error_string = [](int result) {
    return result == kInvalidUsage  ? "invalid usage"
           : result == kRemoteError ? "remote process exited"
                                    : "unhandled error";
  };
  api_->get_last_error = [world](NcclApi::Comm comm) {
    absl::MutexLock lock(&world->mu);
    return world->ranks[RankOf(comm)].error.c_str();
  };
  api_->get_unique_id = [](NcclApi::UniqueId* id) {
    std::memset(id->bytes, 7, sizeof id->bytes);
    return NcclApi::kSuccess;
  };
  api_->comm_init_rank_config = [world](NcclApi::Comm* comm, int ranks, NcclApi::UniqueId id,
                                        int rank, NcclApi::Config* config) -> int {
    absl::MutexLock lock(&world->mu);
    if (!std::exchange(world->sized, true)) world->ranks.resize(ranks);
    if (static_cast<int>(world->ranks.size()) != ranks || id.bytes[127] != 7 ||
        config->blocking != 0 || world->ranks[rank].joined) {
      return kInvalidUsage;
    }
    *comm = reinterpret_cast<NcclApi::Comm>(static_cast<std::intptr_t>(rank) + 1);
    World::Rank& own = world->ranks[rank];
    own.joined = true;
    if (world->Begin(own)) ++world->joined;
    return world->StateOf(own);
  };
  api_->comm_get_async_error = [world](NcclApi::Comm comm, int* state) -> int {
    absl::MutexLock lock(&world->mu);
    World::Rank& rank = world->ranks[RankOf(comm)];
    if (rank.aborted) return kInvalidUsage;
    *state = world->StateOf(rank);
    if (rank.pending == 0 && rank.looks_left > 0) --rank.looks_left;
    return NcclApi::kSuccess;
  };
  api_->comm_abort = [world](NcclApi::Comm comm) -> int {
    absl::MutexLock lock(&world->mu);
    World::Rank& rank = world->ranks[RankOf(comm)];
    ++rank.aborts;
    rank.aborted = true;
    // Its memory may go now.
    for (auto& [key, messages] : world->posted) {
      if ((std::get<2>(key) ? std::get<0>(key) : std::get<1>(key)) == RankOf(comm))
        messages.clear();
    }
    return NcclApi::kSuccess;
  };
  api_->group_start = []() -> int {
    if (group_rank != -1) return kInvalidUsage;
    group_rank = -2;
    return NcclApi::kSuccess;
  };
  const auto add = [](Message message, int type, NcclApi::Comm comm) -> int {
    if (group_rank == -1 || type != NcclApi::kFloat32) return kInvalidUsage;
    group_rank = RankOf(comm);
    group_messages.push_back(message);
    return NcclApi::kSuccess;
  };
  api_->send = [add](const void* data, std::size_t count, int type, int peer, NcclApi::Comm comm,
                     kernels::cuda::Stream) {
    return add({true, peer, const_cast<void*>(data), count}, type, comm);
  };
  api_->recv = [add](void* data, std::size_t count, int type, int peer, NcclApi::Comm comm,
                     kernels::cuda::Stream) {
    return add({false, peer, data, count}, type, comm);
  };
  api_->group_end = [world]() -> int {
    const int own = std::exchange(group_rank, -1);
    const std::vector<Message> messages = std::exchange(group_messages, {});
    if (own < 0) return own == -1 ? kInvalidUsage : NcclApi::kSuccess;
    absl::MutexLock lock(&world->mu);
    World::Rank& rank = world->ranks[own];
    if (rank.aborted) return kInvalidUsage;
    if (world->StateOf(rank) == NcclApi::kInProgress) {
      return world->Fail(rank, kInvalidUsage, "a call begins before the last one has ended");
    }
    if (!world->Begin(rank)) return NcclApi::kInProgress;
    for (const Message& message : messages) world->Post(own, message);
    return world->StateOf(rank);
  };
  checked_ = worker::CheckNccl(*api_);
}

absl::StatusOr<std::shared_ptr<const NcclApi>> FakeNccl::Open() const {
  if (!checked_.ok()) return checked_;
  return api();
}

void FakeNccl::DieAt(int rank, int call) {
  absl::MutexLock lock(&world_->mu);
  world_->ranks[rank].dies_at = world_->ranks[rank].calls + call;
}
void FakeNccl::FailLater(int rank) {
  absl::MutexLock lock(&world_->mu);
  world_->Fail(world_->ranks[rank], kRemoteError, "");
}
int FakeNccl::aborts(int rank) const {
  absl::MutexLock lock(&world_->mu);
  return world_->ranks[rank].aborts;
}
int FakeNccl::messages() const {
  absl::MutexLock lock(&world_->mu);
  return world_->messages;
}
std::int64_t FakeNccl::floats() const {
  absl::MutexLock lock(&world_->mu);
  return world_->floats;
}
int FakeNccl::calls(int rank) const {
  absl::MutexLock lock(&world_->mu);
  return world_->ranks[rank].calls;
}

}  // namespace flotilla::testing
