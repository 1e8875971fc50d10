// ProcessExecutor: the StepExecutor whose ranks are processes, started by mpirun. It is
// the main part of a worker group's agent.
//
// The thread that calls Execute sends the plan to every rank over the rank's socket. One
// thread of this class, the watch thread, listens to the ranks, watches their health, and
// starts the processes again when a member dies, is stopped, falls silent or is stuck.
// When an epoch ends for another reason (the two sides disagree), the processes stay.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"
#include "worker/core/watch.h"
#include "worker/exec/load_log.h"
#include "worker/exec/metrics.h"
#include "worker/group/rank_group.h"

namespace flotilla::worker {

struct ProcessExecutorOptions {
  RankGroupOptions group;
  WatchOptions watch;
};

class ProcessExecutor final : public StepExecutor {
 public:
  // `clock` is the system's monotonic clock, because ranks write its times too. `clock`
  // and `log` outlive the executor.
  ProcessExecutor(ProcessExecutorOptions options, const Clock* clock, Logger* log);
  ~ProcessExecutor() override;

  // Waits for the first Ready, and starts processes that die before it again. Fails when a
  // new start makes no sense: a rank says that it cannot load the model, or there is no
  // mpirun. CANCELLED: another thread has called Stop meanwhile.
  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  // Gives the ranks a second to end by themselves. Any thread may call it, but a listener's
  // method must not.
  void Stop() override;

  const WorkerProbe& probe() const { return probe_; }
  const GroupProbe& group_probe() const { return group_probe_; }

 private:
  // The stage that the processes have reached.
  enum class Stage : std::uint8_t {
    kStarting,   // until all have loaded the model
    kBeginning,  // until all have said that the epoch has begun
    kReady,
  };
  // How far a rank was with loading when the agent last looked.
  struct Loading {
    std::uint64_t moves = 0;
    std::int64_t moved_ns = 0;  // when this was new; 0: not seen yet
  };
  // The state of one incarnation of the processes. Only the watch thread uses it.
  struct Incarnation {
    std::unique_ptr<RankGroup> group;
    GroupWatch watch{WatchOptions{}};
    Stage stage = Stage::kStarting;
    bool was_ready = false;
    WorkUnderway beginning;  // in kStarting: the connecting
    std::vector<std::optional<codec::RankLoaded>> loaded;
    std::vector<std::optional<ExecutorDescription>> begun;
    std::vector<std::int64_t> cpu_ns;  // of each rank, as last added to the probe
    std::vector<Loading> loading;
    LoadLog load_log;
    std::int64_t launched_ns = 0;
    std::int64_t next_look_ns = 0;
  };
  // Why an incarnation ends.
  struct End {
    std::optional<Fault> fault;  // none: Stop, or a rank refused
    std::string detail;
    absl::Status refused;                                // a rank can never serve, for this reason
    std::optional<bool> blames_requests = std::nullopt;  // as a rank says; none: none has said
  };
  // What a Lost says of the steps that had started.
  enum class Report : std::uint8_t { kNoSteps, kSteps, kBlamedSteps };
  struct Unanswered {
    Step step;
    std::int64_t sent_ns;
    std::int64_t predicted_ns;
  };
  // A background copy that has not been reported done.
  struct Copy {
    std::uint64_t id;
    std::int64_t predicted_ns;
  };

  void Loop();
  bool WaitToLaunch(int failures) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs one incarnation, from launch to removal. Returns OK if it became ready.
  absl::Status Live();
  std::optional<End> Turn();
  std::optional<End> Take(const RankGroup::Message& update);
  std::optional<End> TakeGroupEvent(int rank, const codec::GroupEvent& event);
  std::optional<End> TakeResult(const StepResult& result) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<End> Look(std::int64_t now_ns);
  void NoteCopies(const StepPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<WorkUnderway> Underway(std::vector<MemberSample>* ranks) ABSL_LOCKS_EXCLUDED(mu_);
  std::string Describe(const Verdict& verdict);
  void NoteRanks(const std::vector<MemberSample>& ranks);
  void NoteUsage();
  // Sets what `ranks` say of loading, and shows it in metrics and log.
  void NoteLoading(std::int64_t now_ns, std::vector<MemberSample>* ranks);
  void BeginNextEpoch(std::int64_t outstanding_ns);
  std::optional<End> FinishBeginning();
  void EndEpochAsAsked() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the epoch for both sides and drops its plans. Returns the time that those plans
  // were predicted to take. Called only in kReady.
  std::int64_t LoseEpoch(Lost::Cause cause, std::string detail, Report report,
                         std::optional<Step> refused = std::nullopt) ABSL_LOCKS_EXCLUDED(mu_);
  void TearDown(const End& end);
  void ForwardLogs();
  bool Stopped() const ABSL_LOCKS_EXCLUDED(mu_);

  const ProcessExecutorOptions options_;
  const Clock* const clock_;
  Logger* const log_;
  ExecutorListener* listener_ = nullptr;
  WorkerProbe probe_;
  GroupProbe group_probe_;
  std::thread thread_;  // started under mu_, joined under join_mu_
  absl::Mutex join_mu_;

  // Only the watch thread uses these.
  Incarnation incarnation_;
  Epoch last_epoch_{0};  // the highest that was begun

  mutable absl::Mutex mu_;
  RankGroup* reachable_ ABSL_GUARDED_BY(mu_) = nullptr;  // incarnation_.group, while it lives
  Epoch epoch_ ABSL_GUARDED_BY(mu_){0};                  // accepting plans; 0: none
  std::uint32_t lag_ ABSL_GUARDED_BY(mu_) = 1;
  std::deque<Unanswered> unanswered_ ABSL_GUARDED_BY(mu_);
  std::vector<Copy> copies_ ABSL_GUARDED_BY(mu_);  // of plans of the epoch
  std::vector<KvTier> tiers_ ABSL_GUARDED_BY(mu_);
  std::int64_t last_result_ns_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // EndEpoch was called
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ready_once_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status refused_ ABSL_GUARDED_BY(mu_);  // why it will never be ready
};

}  // namespace flotilla::worker
