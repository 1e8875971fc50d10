// RankGroup: the processes of one incarnation of a worker group: mpirun and its ranks, the
// sockets to them, and the directory that holds what they leave on disk.
//
// Owner: ProcessExecutor; its watch thread makes every call but Send. It decides
// nothing: it says what the members said and how they are, and kills them when told.
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
#include "worker/core/watch.h"
#include "worker/group/directory.h"
#include "worker/group/heartbeats.h"
#include "worker/group/launch.h"
#include "worker/group/log_tail.h"

namespace flotilla {

// A group whose ranks may be on other hosts: all of them talk to the agent by TCP, in
// plain text, and show a token that each incarnation makes anew.
struct HostOptions {
  std::string network;       // by which hosts reach each other, ADDRESS/BITS
  std::string hostfile;      // Open MPI's; empty: `hosts`, or as the environment says (Slurm)
  std::string hosts;         // HOST or HOST:RANKS, comma-separated
  std::string remote_shell;  // starts a process on a host; empty: Open MPI's choice
  EnvironmentSettings remote_shell_environment;
};

struct RankGroupOptions {
  // The program of a rank and its arguments; --group-dir DIR and --heartbeats PATH, or
  // --agent HOST:PORT, are added.
  std::vector<std::string> command;
  int ranks = 1;
  std::string launcher = "mpirun";  // found by PATH
  std::string temporary;            // where the group's directory is made
  std::optional<HostOptions> hosts;
};

class RankGroup {
 public:
  // Starts the job; the ranks connect by and by. NOT_FOUND: there is no such launcher;
  // INVALID_ARGUMENT: `temporary` is too long a path for a socket, or the network none that
  // this host is in; UNAVAILABLE: the system lacks something just now.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Launch(const RankGroupOptions& options);
  // Kills what lives.
  ~RankGroup();

  // Queues an encoded RankCommand of at most kMaxFrameBytes for every rank that has
  // connected; never blocks. What a socket does not take at once is kept, so the caller
  // bounds the commands that are unanswered. Any thread.
  void Send(absl::string_view message) ABSL_LOCKS_EXCLUDED(mu_);

  // What a rank said; INVALID_ARGUMENT: no message, and its socket is closed now.
  struct Message {
    int rank = 0;
    absl::StatusOr<RankEvent> event;
  };
  struct Received {
    std::vector<Message> events;  // in the order of each rank
    bool deaths = false;          // a member has ended or closed its socket
  };
  // Waits until there is something to receive, until `timeout_ms` has passed, or for Wake.
  Received Wait(int timeout_ms);
  // Ends a Wait, this one or the next. Any thread.
  void Wake();

  // How the members are now: the launcher, and the ranks in order.
  MemberSample Launcher() const;
  std::vector<MemberSample> Ranks() const;
  const HeartbeatSlot& slot(int rank) const { return page_.slot(rank); }
  bool all_connected() const { return connected_ == options_.ranks; }
  // Where ranks of other hosts connect, host:port.
  const std::string& agent() const { return agent_; }
  pid_t launcher_pid() const { return launcher_; }
  pid_t pid(int rank) const { return ranks_[rank].pid; }  // 0: has not connected
  // "rank 1 (pid 123): signal 6", as far as it is known; Verdict::kLauncher too.
  std::string ExitReport(int member);

  // Complete lines that members have printed since the last call: who, and the line.
  // A bounded number of them.
  std::vector<std::pair<std::string, std::string>> TakeLogLines();

  // Kills every member and waits until all are gone. What they said before their end can
  // still be had from TakeRest.
  void Kill();
  Received TakeRest();
  // Closes the sockets, so that the ranks end by themselves, gives them `grace_ms` for
  // it, and kills what is left.
  void Close(int grace_ms);

 private:
  struct Connection {
    UniqueFd socket;
    FrameReader reader;
    int rank = -1;  // until it has said hello
    pid_t pid = 0;
    absl::Time accepted;
  };
  struct Member {
    pid_t pid = 0;
    UniqueFd pidfd;     // none, if it may be on another host
    bool gone = false;  // its socket has closed
  };
  static bool Ended(const Member& member);

  RankGroup(RankGroupOptions options, GroupDirectory directory, HeartbeatPage page);
  absl::Status Listen();
  absl::Status ListenForHosts();
  // Where ranks knock.
  const UniqueFd& listener() const { return Remote() ? tcp_ : local_; }
  absl::Status Spawn();
  void Accept();
  // Reads what is there; false: the connection is over.
  bool Read(Connection& connection, std::vector<Message>* events);
  bool TakeHello(Connection& connection, const RankHello& hello);
  void TakeHeartbeat(int rank, const RankHeartbeat& beat);
  bool Remote() const { return options_.hosts.has_value(); }
  // Reads what ranks on other hosts still say until they have closed their sockets, for
  // `limit_ms` at most.
  void AwaitRemoteEnds(int limit_ms);
  void ReadAll(Received* received);
  void Drop(Connection& connection);
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void FlushRank(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Live processes of this job, by the directory that all their command lines name: known
  // ones, and ranks that have not connected yet.
  std::vector<pid_t> FindMembers() const;
  bool AllRanksGone() const;
  // Whether every known member is gone; those that are children are waited for.
  bool Reap();

  const RankGroupOptions options_;
  const GroupDirectory directory_;
  const HeartbeatPage page_;
  UniqueFd wake_;
  UniqueFd local_;
  UniqueFd tcp_;  // for ranks on other hosts
  pid_t launcher_ = 0;
  UniqueFd launcher_pidfd_;
  bool launcher_reaped_ = false;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Member> ranks_;
  std::vector<pid_t> strays_;  // members found that never said hello
  int connected_ = 0;
  std::vector<LogTail> logs_;  // of the ranks, then of the launcher
  std::string agent_, token_;  // what ranks of other hosts are told
  Received rest_;              // read while the group was killed

  absl::Mutex mu_;
  // By rank: where commands go, -1 if nowhere; and what the socket has not taken.
  std::vector<int> sockets_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> unsent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla
