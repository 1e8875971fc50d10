#include "worker/exec/rank_process.h"

#include <fcntl.h>
#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "common/rt/frames.h"
#include "common/rt/unique_fd.h"
#include "proto/codec/rank.h"
#include "worker/group/directory.h"
#include "worker/group/heartbeats.h"
#include "worker/group/hosts.h"
#include "worker/group/launch.h"

namespace flotilla::worker {
namespace {

// The time between two calls of Progress while there is no plan.
constexpr int kProgressMs = 1;

// Signals that a rank can report in its slot before it dies of them.
constexpr int kDeadlySignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV,
                                  SIGBUS,  SIGFPE, SIGILL, SIGTRAP, SIGSYS};

// A signal handler takes no argument of ours, so this pointer has to be global.
HeartbeatSlot* g_slot = nullptr;

void NoteSignal(int number) {
  g_slot->signal.store(number, std::memory_order_relaxed);
  std::signal(number, SIG_DFL);
  raise(number);
}

// The handler needs a stack of its own: a thread whose stack is full has none.
void CatchDeadlySignals() {
  static char stack[64 << 10];
  const stack_t own{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
  sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_handler = NoteSignal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  for (const int number : kDeadlySignals) sigaction(number, &action, nullptr);
}

void NoteExit(int code, void*) { g_slot->exit_plus_one.store(code + 1, std::memory_order_relaxed); }

// Sends the output of this process to a file in the agent's directory. mpirun would block a
// rank whose output it does not read, and with files the agent can name the rank of a line.
void RedirectOutput(const std::string& directory) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string path =
      absl::StrCat(directory, "/", RankLogName(rank == nullptr ? 0 : std::atoi(rank)));
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return;
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
}

[[noreturn]] void Fail(const absl::Status& why) {
  std::fprintf(stderr, "rank: %s\n", std::string(why.message()).c_str());
  _exit(1);
}

absl::StatusOr<UniqueFd> ConnectToAgent(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is too long for a socket"));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  UniqueFd agent(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!agent.ok() ||
      connect(agent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat("no agent at '", path, "': ", std::strerror(errno)));
  }
  return agent;
}

std::int64_t MonotonicNs() { return SteadyClock().NowNs(); }

// The socket to the agent. Two threads write to it if it carries the heartbeats.
class AgentSocket {
 public:
  AgentSocket(UniqueFd socket, bool remote) : socket_(std::move(socket)), remote_(remote) {}

  int fd() const { return socket_.get(); }
  // True if the agent sees the heartbeat slot only by the messages that SendHeartbeat sends.
  bool remote() const { return remote_; }

  absl::Status Send(const codec::RankEvent& event) {
    const std::string frame = Frame(codec::Encode(event));
    absl::MutexLock lock(&mu_);
    return WriteAll(socket_.get(), frame);
  }
  absl::Status SendHeartbeat(const HeartbeatSlot& slot) {
    return Send(
        codec::RankHeartbeat{.phase = static_cast<std::uint32_t>(slot.phase.load()),
                             .epoch = slot.epoch,
                             .started_step = slot.started_step,
                             .done_step = slot.done_step,
                             .cpu_ns = slot.cpu_ns,
                             .resident_bytes = slot.resident_bytes,
                             .load_phase = static_cast<std::uint32_t>(slot.load.phase.load()),
                             .loaded_bytes = slot.load.loaded_bytes,
                             .load_bytes = slot.load.total_bytes,
                             .load_moves = slot.load.moves});
  }

 private:
  const UniqueFd socket_;
  const bool remote_;
  absl::Mutex mu_;
};

// Enters the CPU time and memory of this process in its slot.
void NoteUsage(int statm, HeartbeatSlot* slot) {
  timespec used{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0) {
    slot->cpu_ns = used.tv_sec * std::int64_t{1'000'000'000} + used.tv_nsec;
  }
  char text[128] = {};  // pages: all, resident, ...
  long long all = 0, resident = 0;
  if (pread(statm, text, sizeof(text) - 1, 0) > 0 &&
      std::sscanf(text, "%lld %lld", &all, &resident) == 2) {
    slot->resident_bytes = resident * sysconf(_SC_PAGESIZE);
  }
}

struct HeartArguments {
  HeartbeatSlot* slot;
  AgentSocket* agent;
};

// Writes the heartbeat, and ends the process when the agent is gone. The plain thread that
// runs it waits for nothing but the time, so it beats as long as the system lets the process
// run (and, if it beats by the socket, as long as the agent reads).
void* Beat(void* argument) {
  const HeartArguments heart = *static_cast<HeartArguments*>(argument);
  const UniqueFd statm(open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  while (true) {
    NoteUsage(statm.get(), heart.slot);
    heart.slot->time_ns.store(MonotonicNs(), std::memory_order_release);
    pollfd agent{.fd = heart.agent->fd(), .events = POLLRDHUP, .revents = 0};
    const bool gone = poll(&agent, 1, kHeartbeatPeriodMs) > 0;
    if (gone || (heart.agent->remote() && !heart.agent->SendHeartbeat(*heart.slot).ok())) {
      NoteExit(0, nullptr);
      _exit(0);
    }
  }
}

class RankProcess {
 public:
  RankProcess(AgentSocket* agent, HeartbeatSlot* slot) : agent_(*agent), slot_(*slot) {}

  // Serves until the agent goes away or sends an invalid message.
  absl::Status Serve(int rank, int size, const MakeRunner& make) {
    slot_.phase = RankPhase::kLoading;
    auto runner = make(rank, size, &slot_.load);
    if (!runner.ok()) {
      (void)Send(codec::RankRefused{.why = runner.status()});
      return Drain();
    }
    runner_ = *std::move(runner);
    slot_.phase = RankPhase::kWaiting;
    const RankDevice device = runner_->device();
    absl::Status sent = Send(codec::RankLoaded{.weight_bytes = runner_->weight_bytes(),
                                               .buffer_bytes = runner_->buffer_bytes(),
                                               .device = device.name,
                                               .no_gpu = device.no_gpu,
                                               .exchange = device.exchange,
                                               .no_nccl = device.no_nccl,
                                               .kv_memory = device.kv_memory});
    while (sent.ok()) {
      const auto message = Receive();
      if (!message.ok()) return message.status();
      auto command = codec::DecodeRankCommand(*message);
      if (!command.ok()) return command.status();
      sent = Handle(*command);
    }
    return sent;
  }

 private:
  absl::Status Handle(const codec::RankCommand& command) {
    if (const auto* begin = std::get_if<codec::BeginEpoch>(&command)) return Begin(begin->epoch);
    const auto& plan = std::get<StepPlan>(command);
    // Such a plan belongs to the rest of an epoch that has failed.
    if (!epoch_.has_value() || plan.epoch != *epoch_) return absl::OkStatus();
    return Run(plan);
  }

  absl::Status Begin(Epoch epoch) {
    epoch_ = epoch;
    runner_->BeginEpoch(epoch);
    slot_.started_step = 0;
    slot_.done_step = 0;
    slot_.epoch = epoch.value();
    return Send(codec::GroupEvent(
        codec::GroupReady{.epoch = epoch, .description = runner_->description()}));
  }

  absl::Status Run(const StepPlan& plan) {
    slot_.started_step = plan.step.value();
    slot_.phase = RankPhase::kRunning;
    absl::Status sent;
    // If the step ends this process, the agent then knows that the step had started.
    if (agent_.remote()) sent = agent_.SendHeartbeat(slot_);
    if (!sent.ok()) return sent;
    auto result = runner_->Run(plan);
    // The agent then starts another process.
    if (!result.ok() && runner_->failed()) return absl::InternalError(result.status().message());
    if (!result.ok()) {
      const Lost::Cause cause = LostCauseOf(result.status());
      std::optional<Step> refused;
      if (cause != Lost::Cause::kDied) refused = plan.step;
      sent = Send(codec::GroupEvent(Lost{.epoch = *std::exchange(epoch_, std::nullopt),
                                         .cause = cause,
                                         .detail = std::string(result.status().message()),
                                         .started = {},
                                         .blames_requests = absl::IsAborted(result.status()),
                                         .refused = refused}));
    } else if (result->has_value()) {
      sent = Send(codec::GroupEvent(**std::move(result)));
    }
    slot_.done_step = plan.step.value();
    slot_.phase = RankPhase::kWaiting;
    return sent;
  }

  absl::Status Send(const codec::RankEvent& event) { return agent_.Send(event); }

  absl::StatusOr<std::string> Receive() {
    while (true) {
      if (auto message = reader_.Next()) return *std::move(message);
      while (runner_ != nullptr && runner_->Progress()) {
        pollfd agent{.fd = agent_.fd(), .events = POLLIN, .revents = 0};
        if (poll(&agent, 1, kProgressMs) != 0) break;
      }
      if (const auto read = reader_.ReadFrom(agent_.fd()); !read.ok()) return read.status();
    }
  }

  // Waits for the agent to close the socket.
  absl::Status Drain() {
    while (true) {
      if (const auto message = Receive(); !message.ok()) return message.status();
    }
  }

  AgentSocket& agent_;
  HeartbeatSlot& slot_;
  FrameReader reader_;
  std::unique_ptr<StepRunner> runner_;
  std::optional<Epoch> epoch_;
};

}  // namespace

void RunRankProcess(const RankProcessOptions& options, const MakeRunner& make) {
  const bool remote = !options.agent.empty();
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // in case mpirun dies and ends no rank
  std::signal(SIGPIPE, SIG_IGN);
  if (!remote) RedirectOutput(options.group_directory);  // else mpirun forwards the output

  int provided = 0, rank = 0, size = 0;
  // Only the thread that runs plans calls MPI.
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS ||
      MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS ||
      MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS) {
    Fail(absl::UnavailableError("MPI does not start"));
  }
  static auto page =
      remote ? HeartbeatPage::Create(size) : HeartbeatPage::Open(options.heartbeats, size);
  if (!page.ok()) Fail(page.status());
  g_slot = &page->slot(rank);
  CatchDeadlySignals();
  on_exit(NoteExit, nullptr);

  auto socket = remote ? ConnectTcp(options.agent)
                       : ConnectToAgent(absl::StrCat(options.group_directory, "/", kAgentSocket));
  if (!socket.ok()) Fail(socket.status());
  static AgentSocket agent(*std::move(socket), remote);
  const char* token = std::getenv(kTokenVariable);
  // The hello goes out before any heartbeat.
  const absl::Status hello =
      agent.Send(codec::RankHello{.rank = static_cast<std::uint32_t>(rank),
                                  .size = static_cast<std::uint32_t>(size),
                                  .token = token == nullptr ? "" : token,
                                  .pid = static_cast<std::uint32_t>(getpid())});
  if (!hello.ok()) Fail(hello);
  static HeartArguments heart{.slot = g_slot, .agent = &agent};
  pthread_t thread;
  if (pthread_create(&thread, nullptr, Beat, &heart) != 0) {
    Fail(absl::ResourceExhaustedError("no thread for the heartbeat"));
  }
  pthread_setname_np(thread, "heartbeat");
  pthread_detach(thread);

  RankProcess process(&agent, g_slot);
  const absl::Status ended = process.Serve(rank, size, make);
  if (!absl::IsUnavailable(ended)) Fail(ended);
  // This skips MPI_Finalize, which would wait for ranks that may be dead, and destructors,
  // because the system frees the memory with the process.
  _exit(0);
}

}  // namespace flotilla::worker
