// RankGroup: the processes of one incarnation of a worker group: mpirun and its ranks, the
// sockets to them, and the directory that holds their files.
//
// ProcessExecutor owns it; the watch thread makes every call but Send. A RankGroup decides
// nothing: it reports the members' messages and states, and kills the members on request.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rt/frames.h"
#include "common/rt/unique_fd.h"
#include "proto/codec/rank.h"
#include "worker/core/blame.h"
#include "worker/core/watch.h"
#include "worker/group/directory.h"
#include "worker/group/heartbeats.h"
#include "worker/group/launch.h"
#include "worker/group/log_tail.h"
#include "worker/group/oom_kills.h"

namespace flotilla::worker {

// Options of a group whose ranks may be on other hosts. All ranks talk to the agent by TCP,
// in plain text, and show it a token. Each incarnation makes a new token.
struct HostOptions {
  std::string network;       // the network that connects the hosts, ADDRESS/BITS
  std::string hostfile;      // in Open MPI's format; empty: `hosts`, or the environment (Slurm)
  std::string hosts;         // HOST or HOST:RANKS, comma-separated
  std::string remote_shell;  // starts a process on a host; empty: Open MPI's choice
  EnvironmentSettings remote_shell_environment;
};

struct RankGroupOptions {
  // The program of a rank and its arguments. Launch adds --group-dir DIR and
  // --heartbeats PATH, or --agent HOST:PORT.
  std::vector<std::string> command;
  int ranks = 1;
  std::string launcher = "mpirun";    // found by PATH
  std::string temporary;              // where the group's directory is made
  std::string cgroups = kCgroupRoot;  // where the kernel shows cgroups
  std::optional<HostOptions> hosts;
};

class RankGroup {
 public:
  // Starts the job; the ranks connect later. NOT_FOUND: there is no such launcher;
  // INVALID_ARGUMENT: `temporary` is too long a path for a socket, or this host is not in
  // the network; UNAVAILABLE: the system lacks something now.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Launch(const RankGroupOptions& options);
  // Kills all members that live.
  ~RankGroup();

  // Queues an encoded RankCommand of at most kMaxFrameBytes for every rank that has
  // connected; never blocks. Keeps what a socket does not take at once, so the caller must
  // bound the number of unanswered commands. Any thread may call it.
  void Send(absl::string_view message) ABSL_LOCKS_EXCLUDED(mu_);

  // A message of a rank. INVALID_ARGUMENT: it was not valid, and the rank's socket is closed
  // now.
  struct Message {
    int rank = 0;
    absl::StatusOr<codec::RankEvent> event;
  };
  struct Received {
    std::vector<Message> events;  // in the order of each rank
    bool deaths = false;          // a member has ended or closed its socket
  };
  // Waits until there is something to receive, until `timeout_ms` has passed, or for Wake.
  Received Wait(int timeout_ms);
  // Ends a Wait, this one or the next. Any thread.
  void Wake();

  // The present state of the members: the launcher, and the ranks in order.
  MemberSample Launcher() const;
  std::vector<MemberSample> Ranks() const;
  const HeartbeatSlot& slot(int rank) const { return page_.slot(rank); }
  bool all_connected() const { return connected_ == options_.ranks; }
  // The address where ranks of other hosts connect, host:port.
  const std::string& agent() const { return agent_; }
  pid_t launcher_pid() const { return launcher_; }
  pid_t pid(int rank) const { return ranks_[rank].pid; }  // 0: has not connected
  // Returns "rank 1 (pid 123): signal 6", as far as it is known. `member` is a rank or
  // Verdict::kLauncher.
  std::string ExitReport(int member);

  // Returns complete lines that members have printed since the last call, as pairs of the
  // member's name and the line. Returns a bounded number of them.
  std::vector<std::pair<std::string, std::string>> TakeLogLines();

  // Kills every member and waits until all are gone. TakeRest then returns what they sent
  // before their end, and HowItEnded how those ended that Kill did not end.
  void Kill();
  Received TakeRest();
  GroupEnd HowItEnded() const;
  // Closes the sockets, so that the ranks end by themselves. Gives them `grace_ms` to do
  // so, and kills those that are left.
  void Close(int grace_ms);

 private:
  struct Connection {
    UniqueFd socket;
    FrameReader reader;
    int rank = -1;  // -1 until it has said hello
    pid_t pid = 0;
    absl::Time accepted;
  };
  struct Member {
    pid_t pid = 0;
    UniqueFd pidfd;       // none if the process may be on another host
    bool gone = false;    // its socket has closed
    bool killed = false;  // it lived when Kill began
    OomKills oom_kills;   // of its cgroup, if it is on this host
  };
  MemberEnd EndOf(int rank) const;
  MemberEnd EndOfLauncher() const;
  // Notes which members have ended by themselves.
  void NoteEnds();
  static bool Ended(const Member& member);

  RankGroup(RankGroupOptions options, GroupDirectory directory, HeartbeatPage page);
  absl::Status Listen();
  absl::Status ListenForHosts();
  // The socket on which ranks connect.
  const UniqueFd& listener() const { return Remote() ? tcp_ : local_; }
  absl::Status Spawn();
  void Accept();
  // Reads what has arrived. Returns false if the connection is over.
  bool Read(Connection& connection, std::vector<Message>* events);
  bool TakeHello(Connection& connection, const codec::RankHello& hello);
  void TakeHeartbeat(int rank, const codec::RankHeartbeat& beat);
  bool Remote() const { return options_.hosts.has_value(); }
  // Reads what ranks on other hosts still send until they have closed their sockets, for
  // `limit_ms` at most.
  void AwaitRemoteEnds(int limit_ms);
  void ReadAll(Received* received);
  void Drop(Connection& connection);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void FlushRank(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finds the live processes of this job by the directory that all their command lines
  // name: known ones, and ranks that have not connected yet.
  std::vector<pid_t> FindMembers() const;
  bool AllRanksGone() const;
  // Returns whether every known member is gone. Reaps those that are children.
  bool Reap();

  const RankGroupOptions options_;
  const GroupDirectory directory_;
  const HeartbeatPage page_;
  UniqueFd wake_;
  UniqueFd local_;
  UniqueFd tcp_;  // for ranks on other hosts
  pid_t launcher_ = 0;
  UniqueFd launcher_pidfd_;
  MemberEnd launcher_end_;  // when Kill began
  bool launcher_reaped_ = false;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Member> ranks_;
  std::vector<pid_t> strays_;  // members found that never said hello
  int connected_ = 0;
  std::vector<LogTail> logs_;  // of the ranks, then of the launcher
  std::string agent_, token_;  // passed to ranks of other hosts
  Received rest_;              // read while the group was killed

  absl::Mutex mu_;
  // By rank: the socket for commands, -1 if there is none; and the bytes that the socket has
  // not taken.
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> unsent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::worker
