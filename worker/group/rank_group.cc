#include "worker/group/rank_group.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <variant>

extern "C" {  // glibc 2.36 does not say so itself
#include <sys/pidfd.h>
}

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/auth/random_token.h"
#include "common/auth/secret_digest.h"
#include "common/rt/clock.h"
#include "common/rt/steady_now.h"
#include "worker/group/hosts.h"
#include "worker/group/proc.h"

namespace flotilla::worker {
namespace {

// Killed processes are gone within milliseconds. Kill waits at most this long for a process that
// hangs in the kernel.
constexpr absl::Duration kKillLimit = absl::Seconds(5);
constexpr absl::Duration kKillPeriod = absl::Milliseconds(1);
constexpr int kLastBreathMs = 20;
// How long Kill waits for ranks on other hosts. A slower rank ends by itself later.
constexpr int kRemoteEndMs = 1000;
// How many reads, of 64 KiB each, one connection gets in a row. That is more than a socket
// holds, but a rank that never stops sending cannot make the other ranks and the watch wait.
constexpr int kMaxReads = 64;
// Limits of connections that have not said hello: their number, and the bytes and the time
// of a hello.
constexpr std::size_t kMaxStrangers = 16;
constexpr std::size_t kMaxHelloBytes = 4096;
constexpr absl::Duration kHelloLimit = absl::Seconds(5);

absl::Status GroupFailed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

RankGroup::RankGroup(RankGroupOptions options, GroupDirectory directory, HeartbeatPage page)
    : options_(std::move(options)),
      directory_(std::move(directory)),
      page_(std::move(page)),
      ranks_(options_.ranks),
      sockets_(options_.ranks, -1),
      unsent_(options_.ranks) {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    logs_.emplace_back(absl::StrCat("rank ", rank),
                       absl::StrCat(directory_.path, "/", RankLogName(rank)));
  }
  logs_.emplace_back("mpirun", absl::StrCat(directory_.path, "/", kLauncherLog));
}

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Launch(const RankGroupOptions& options) {
  auto page = HeartbeatPage::Create(options.ranks);
  if (!page.ok()) return page.status();
  auto directory = MakeGroupDirectory(options.temporary);
  if (!directory.ok()) return directory.status();
  std::unique_ptr<RankGroup> group(new RankGroup(options, *std::move(directory), *std::move(page)));
  if (absl::Status status = group->Listen(); !status.ok()) return status;
  if (absl::Status status = group->Spawn(); !status.ok()) return status;
  return group;
}

RankGroup::~RankGroup() {
  Kill();
  std::error_code ignored;
  std::filesystem::remove_all(directory_.path, ignored);
}

absl::Status RankGroup::Listen() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat(directory_.path, "/", kAgentSocket);
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("TMPDIR: '", path, "' is longer than the ",
                                                   sizeof(address.sun_path) - 1,
                                                   " bytes of a socket's name"));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  local_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!wake_.ok() || !local_.ok() ||
      bind(local_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(local_.get(), options_.ranks) != 0) {
    return GroupFailed("the agent's socket");
  }
  return Remote() ? ListenForHosts() : absl::OkStatus();
}

absl::Status RankGroup::ListenForHosts() {
  const auto address = AddressInNetwork(options_.hosts->network);
  if (!address.ok()) return absl::InvalidArgumentError(address.status().message());
  auto listener = ListenTcp(*address);
  if (!listener.ok()) return listener.status();
  auto token = RandomToken();
  if (!token.ok()) return token.status();
  tcp_ = *std::move(listener);
  token_ = *std::move(token);
  agent_ = absl::StrCat(*address, ":", PortOf(tcp_));
  return absl::OkStatus();
}

absl::Status RankGroup::Spawn() {
  // With this setting, ranks whose launcher has died become children of this process, which
  // can then reap them. Otherwise they would stay as zombies of the process that adopts them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  LaunchOptions launch{.launcher = options_.launcher,
                       .command = options_.command,
                       .ranks = options_.ranks,
                       .directory = directory_.path,
                       .heartbeats = page_.path(),
                       .remote = std::nullopt};
  if (Remote()) {
    launch.remote = RemoteLaunch{.agent = agent_,
                                 .token = token_,
                                 .network = options_.hosts->network,
                                 .hostfile = options_.hosts->hostfile,
                                 .hosts = options_.hosts->hosts,
                                 .remote_shell = options_.hosts->remote_shell,
                                 .environment = options_.hosts->remote_shell_environment};
  }
  auto launched = LaunchJob(launch);
  if (!launched.ok()) return launched.status();
  launcher_ = *launched;
  launcher_pidfd_.Reset(pidfd_open(launcher_, 0));
  return launcher_pidfd_.ok() ? absl::OkStatus() : GroupFailed("pidfd_open");
}

void RankGroup::Wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // full: it is awake anyway
}

void RankGroup::Send(absl::string_view message) {
  const std::string frame = Frame(message);
  bool wake = false;
  absl::MutexLock lock(&mu_);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (sockets_[rank] < 0) continue;
    unsent_[rank] += frame;
    FlushRank(rank);
    wake |= !unsent_[rank].empty();
  }
  if (wake) Wake();  // to wait for room
}

void RankGroup::FlushRank(int rank) {
  std::string& bytes = unsent_[rank];
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t put =
        send(sockets_[rank], bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (put < 0) {  // its end will be read
      sent = bytes.size();
      break;
    }
    sent += static_cast<std::size_t>(put);
  }
  bytes.erase(0, sent);
}

void RankGroup::Flush() {
  absl::MutexLock lock(&mu_);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (sockets_[rank] >= 0) FlushRank(rank);
  }
}

RankGroup::Received RankGroup::Wait(int timeout_ms) {
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                {.fd = listener().get(), .events = POLLIN, .revents = 0},
                                {.fd = launcher_pidfd_.get(), .events = POLLIN, .revents = 0}};
  {
    absl::MutexLock lock(&mu_);
    for (const auto& connection : connections_) {
      const bool full = connection->rank >= 0 && !unsent_[connection->rank].empty();
      polled.push_back({.fd = connection->socket.get(),
                        .events = static_cast<short>(full ? POLLIN | POLLOUT : POLLIN),
                        .revents = 0});
    }
  }
  Received received;
  if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return received;
  const auto [wake, knock, launcher] = std::tie(polled[0], polled[1], polled[2]);
  std::uint64_t ignored = 0;
  if (wake.revents != 0) (void)!read(wake_.get(), &ignored, sizeof(ignored));
  received.deaths = launcher.revents != 0;
  const auto has_room = [](const pollfd& one) { return (one.revents & POLLOUT) != 0; };
  if (std::any_of(polled.begin(), polled.end(), has_room)) Flush();
  ReadAll(&received);
  if (knock.revents != 0) Accept();
  return received;
}

void RankGroup::Accept() {
  while (connections_.size() < ranks_.size() + kMaxStrangers) {
    UniqueFd socket(accept4(listener().get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.ok()) return;
    auto connection = std::make_unique<Connection>();
    if (Remote()) {
      TuneTcp(socket);
    } else {
      ucred peer{};
      socklen_t size = sizeof(peer);
      if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
          peer.uid != geteuid()) {
        continue;
      }
      connection->pid = peer.pid;
    }
    connection->socket = std::move(socket);
    connection->accepted = SteadyNow();
    connections_.push_back(std::move(connection));
  }
}

void RankGroup::ReadAll(Received* received) {
  for (std::size_t i = 0; i < connections_.size();) {
    if (Read(*connections_[i], &received->events)) {
      ++i;
      continue;
    }
    received->deaths |= connections_[i]->rank >= 0;
    Drop(*connections_[i]);
    connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

bool RankGroup::Read(Connection& connection, std::vector<Message>* events) {
  for (int reads = 0; reads < kMaxReads; ++reads) {
    const auto read = connection.reader.ReadFrom(connection.socket.get());
    while (const auto message = connection.reader.Next()) {
      auto event = codec::DecodeRankEvent(*message);
      if (connection.rank < 0) {
        const auto* hello = event.ok() ? std::get_if<codec::RankHello>(&*event) : nullptr;
        if (hello == nullptr || !TakeHello(connection, *hello)) return false;
        continue;
      }
      if (const auto* beat = event.ok() ? std::get_if<codec::RankHeartbeat>(&*event) : nullptr;
          beat != nullptr && Remote()) {
        TakeHeartbeat(connection.rank, *beat);
        continue;
      }
      const bool garbage = !event.ok();
      events->push_back({.rank = connection.rank, .event = std::move(event)});
      if (garbage) return false;
    }
    if (connection.rank < 0 && (connection.reader.pending() > kMaxHelloBytes ||
                                SteadyNow() - connection.accepted > kHelloLimit)) {
      return false;
    }
    if (!read.ok()) {
      if (connection.rank >= 0 && absl::IsInvalidArgument(read.status())) {
        events->push_back({.rank = connection.rank, .event = read.status()});
      }
      return false;
    }
    if (!*read) return true;
  }
  return true;
}

bool RankGroup::TakeHello(Connection& connection, const codec::RankHello& hello) {
  if (hello.size != ranks_.size() || hello.rank >= ranks_.size()) return false;
  Member& member = ranks_[hello.rank];
  if (member.pid != 0) return false;
  if (Remote()) {
    if (!(SecretDigest::Of(hello.token) == SecretDigest::Of(token_)) || hello.pid == 0) {
      return false;
    }
    connection.pid = static_cast<pid_t>(hello.pid);
  } else {
    member.pidfd.Reset(pidfd_open(connection.pid, 0));
    if (!member.pidfd.ok()) return false;
    member.oom_kills = OomKills(connection.pid, options_.cgroups);
  }
  member.pid = connection.pid;
  connection.rank = static_cast<int>(hello.rank);
  ++connected_;
  absl::MutexLock lock(&mu_);
  sockets_[connection.rank] = connection.socket.get();
  return true;
}

// Writes the slot of a rank on another host, as a rank of this host does itself. The time is
// that of this host's clock.
void RankGroup::TakeHeartbeat(int rank, const codec::RankHeartbeat& beat) {
  HeartbeatSlot& slot = page_.slot(rank);
  slot.phase = static_cast<RankPhase>(beat.phase);
  slot.started_step = beat.started_step;
  slot.done_step = beat.done_step;
  slot.epoch = beat.epoch;
  slot.cpu_ns = beat.cpu_ns;
  slot.resident_bytes = beat.resident_bytes;
  slot.load.phase = static_cast<LoadPhase>(beat.load_phase);
  slot.load.loaded_bytes = beat.loaded_bytes;
  slot.load.total_bytes = beat.load_bytes;
  slot.load.moves = beat.load_moves;
  slot.time_ns = SteadyClock().NowNs();
}

void RankGroup::Drop(Connection& connection) {
  if (connection.rank < 0) return;
  ranks_[connection.rank].gone = true;
  absl::MutexLock lock(&mu_);
  sockets_[connection.rank] = -1;
  unsent_[connection.rank].clear();
}

MemberSample RankGroup::Launcher() const {
  if (launcher_reaped_ || HasEnded(launcher_pidfd_.get())) {
    return {.state = MemberSample::State::kGone};
  }
  return {.state = ProcessState(launcher_) == 'T' ? MemberSample::State::kStopped
                                                  : MemberSample::State::kAlive};
}

bool RankGroup::Ended(const Member& member) {
  return member.gone || (member.pidfd.ok() && HasEnded(member.pidfd.get()));
}

std::vector<MemberSample> RankGroup::Ranks() const {
  std::vector<MemberSample> samples(ranks_.size());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Member& member = ranks_[rank];
    MemberSample& sample = samples[rank];
    if (member.pid == 0) continue;
    if (Ended(member)) {
      sample.state = MemberSample::State::kGone;
      continue;
    }
    if (member.pidfd.ok() && ProcessState(member.pid) == 'T') {
      sample.state = MemberSample::State::kStopped;
    }
    const std::int64_t beat = page_.slot(static_cast<int>(rank)).time_ns;
    if (beat != 0) sample.heartbeat_ns = beat;
  }
  return samples;
}

MemberEnd RankGroup::EndOfLauncher() const {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(launcher_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != launcher_) {
    return {};
  }
  const bool exited = info.si_code == CLD_EXITED;
  return {.how = exited ? MemberEnd::How::kExit : MemberEnd::How::kSignal,
          .number = info.si_status};
}

// Whoever dies of a signal that no handler sees leaves no word. SIGKILL is one; a full stack is
// another reason, which only the kernel knows.
MemberEnd RankGroup::EndOf(int rank) const {
  using How = MemberEnd::How;
  const HeartbeatSlot& slot = page_.slot(rank);
  const Member& member = ranks_[rank];
  if (const int number = slot.signal; number != 0) return {.how = How::kSignal, .number = number};
  if (const int code = slot.exit_plus_one; code != 0) {
    return {.how = How::kExit, .number = code - 1};
  }
  if (const auto status = member.pidfd.ok() ? WaitStatus(member.pidfd.get()) : std::nullopt) {
    if (WIFSIGNALED(*status)) return {.how = How::kSignal, .number = WTERMSIG(*status)};
    return {.how = How::kExit, .number = WEXITSTATUS(*status)};
  }
  if (member.pid == 0 || member.killed || !Ended(member)) return {};
  if (Remote()) return {.how = How::kUnknown};
  return {.how = How::kSignal, .number = SIGKILL};
}

void RankGroup::NoteEnds() {
  launcher_end_ = EndOfLauncher();
  for (Member& member : ranks_) member.killed = !Ended(member);
}

GroupEnd RankGroup::HowItEnded() const {
  GroupEnd end{.launcher = launcher_end_};
  for (int rank = 0; rank < options_.ranks; ++rank) {
    end.ranks.push_back(EndOf(rank));
    end.out_of_memory |= ranks_[rank].oom_kills.HaveRisen();
  }
  return end;
}

std::string RankGroup::ExitReport(int member) {
  const bool launcher = member == Verdict::kLauncher;
  // A rank's socket closes some microseconds before its process has ended.
  pollfd ended{.fd = launcher ? -1 : ranks_[member].pidfd.get(), .events = POLLIN, .revents = 0};
  const bool has_ended = !launcher && poll(&ended, 1, kLastBreathMs) > 0;
  const MemberEnd end = launcher ? EndOfLauncher() : EndOf(member);
  const std::string who = launcher
                              ? absl::StrCat("mpirun (pid ", launcher_, "): ")
                              : absl::StrCat("rank ", member, " (pid ", ranks_[member].pid, "): ");
  if (end.how == MemberEnd::How::kExit) return absl::StrCat(who, "exit code ", end.number);
  if (launcher || (end.how == MemberEnd::How::kSignal && end.number != SIGKILL)) {
    return end.how == MemberEnd::How::kRuns ? absl::StrCat(who, "alive")
                                            : absl::StrCat(who, "signal ", end.number);
  }
  if (!has_ended) return absl::StrCat(who, "closed its socket");
  return absl::StrCat(who, ranks_[member].oom_kills.HaveRisen()
                               ? "killed by the kernel, because memory ran out"
                               : "ended without a word, as by signal 9");
}

std::vector<std::pair<std::string, std::string>> RankGroup::TakeLogLines() {
  std::vector<std::pair<std::string, std::string>> lines;
  for (LogTail& log : logs_) {
    for (std::string& line : log.TakeLines(/*at_end=*/launcher_reaped_)) {
      lines.emplace_back(log.name(), std::move(line));
    }
  }
  return lines;
}

std::vector<pid_t> RankGroup::FindMembers() const {
  return ProcessesWithArguments({"--group-dir", directory_.path});
}

bool RankGroup::Reap() {
  if (!launcher_reaped_ && launcher_ != 0) {
    if (waitpid(launcher_, nullptr, WNOHANG) == 0) return false;
    launcher_reaped_ = true;
  }
  // The launcher has ended. Its children are now children of this process, or the launcher
  // has reaped them itself.
  bool all = true;
  for (const Member& member : ranks_) {
    // A rank on another host, or one that its launcher has reaped, is no child.
    if (member.pid != 0) all &= waitpid(member.pid, nullptr, WNOHANG) != 0;
  }
  for (const pid_t stray : strays_) all &= waitpid(stray, nullptr, WNOHANG) != 0;
  return all;
}

void RankGroup::Kill() {
  if (launcher_reaped_ || launcher_ == 0) return;
  NoteEnds();
  const absl::Time limit = SteadyNow() + kKillLimit;
  do {
    // This also finds ranks that have not connected yet, and ranks that the launcher starts
    // meanwhile.
    for (const pid_t pid : FindMembers()) {
      kill(pid, SIGKILL);
      const bool known = pid == launcher_ ||
                         std::any_of(ranks_.begin(), ranks_.end(),
                                     [&](const Member& member) { return member.pid == pid; }) ||
                         std::count(strays_.begin(), strays_.end(), pid) > 0;
      if (!known) strays_.push_back(pid);
    }
    for (const Member& member : ranks_) {
      if (member.pidfd.ok()) pidfd_send_signal(member.pidfd.get(), SIGKILL, nullptr, 0);
    }
    if (Reap()) break;
    absl::SleepFor(kKillPeriod);
  } while (SteadyNow() < limit);
  if (!Remote()) return;
  AwaitRemoteEnds(kRemoteEndMs);
  // The launcher's remote shells, which start daemons on other hosts, are children of this
  // process now. It has no other children.
  kill(-launcher_, SIGKILL);
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

void RankGroup::AwaitRemoteEnds(int limit_ms) {
  // A rank ends when the agent closes its sending side. A stopped rank ends when Open MPI on
  // its host notices that the launcher here is gone.
  std::erase_if(connections_, [](const auto& connection) { return connection->rank < 0; });
  for (const auto& connection : connections_) shutdown(connection->socket.get(), SHUT_WR);
  const absl::Time limit = SteadyNow() + absl::Milliseconds(limit_ms);
  for (ReadAll(&rest_); !connections_.empty() && SteadyNow() < limit; ReadAll(&rest_)) {
    absl::SleepFor(kKillPeriod);
  }
}

RankGroup::Received RankGroup::TakeRest() {
  Received received = std::exchange(rest_, Received{});
  ReadAll(&received);
  return received;
}

bool RankGroup::AllRanksGone() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Member& member) {
    return member.pid != 0 && HasEnded(member.pidfd.get());
  });
}

void RankGroup::Close(int grace_ms) {
  if (Remote()) {
    AwaitRemoteEnds(grace_ms);
    return Kill();
  }
  for (const auto& connection : connections_) shutdown(connection->socket.get(), SHUT_RDWR);
  const absl::Time limit = SteadyNow() + absl::Milliseconds(grace_ms);
  while (all_connected() && !AllRanksGone() && SteadyNow() < limit) absl::SleepFor(kKillPeriod);
  Kill();
}

}  // namespace flotilla::worker
