// ProcessExecutor, with fake ranks that mpirun starts, passes the contract.
#include "worker/exec/process_executor.h"

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/contract/executor_contract.h"
#include "tests/support/fake_group.h"

namespace flotilla::testing {
namespace {

// An executor whose last rank can be killed after a result has arrived.
class Killable final : public StepExecutor, private ExecutorListener {
 public:
  Killable(int ranks, std::optional<worker::HostOptions> hosts)
      : group_(ranks, std::move(hosts)), last_rank_(ranks - 1) {}

  void LoseDuring(Step step) {
    group_.AddFault(absl::StrCat("rank-0-step-", step.value()), "kill");
  }
  void LoseAfter(Step step) { lose_after_ = step; }

  absl::Status Start(ExecutorListener* listener) override {
    listener_ = listener;
    return group_.executor().Start(this);
  }
  absl::Status Execute(StepPlan plan) override {
    return group_.executor().Execute(std::move(plan));
  }
  void EndEpoch(Epoch epoch) override { group_.executor().EndEpoch(epoch); }
  void Stop() override { group_.executor().Stop(); }

 private:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override {
    listener_->OnReady(epoch, description);
    KillAfter(Step(0));
  }
  void OnResult(StepResult result) override {
    const Step step = result.step;
    listener_->OnResult(std::move(result));
    KillAfter(step);
  }
  void OnLost(const Lost& lost) override { listener_->OnLost(lost); }

  void KillAfter(Step step) {
    if (lose_after_ != step) return;
    lose_after_.reset();
    kill(group_.RankPid(last_rank_), SIGKILL);
  }

  FakeGroup group_;
  const int last_rank_;
  ExecutorListener* listener_ = nullptr;
  std::optional<Step> lose_after_;
};

ExecutorCase ProcessCase(int ranks, std::optional<worker::HostOptions> hosts = std::nullopt) {
  return {absl::StrCat("Ranks", ranks, hosts.has_value() ? "ByTcp" : ""), [ranks, hosts] {
            auto made = std::make_unique<Killable>(ranks, hosts);
            Killable* raw = made.get();
            return ContractExecutor{std::move(made), [raw](Step step) { raw->LoseDuring(step); },
                                    [raw](Step step) { raw->LoseAfter(step); }};
          }};
}

INSTANTIATE_TEST_SUITE_P(Process, ExecutorContract,
                         ::testing::Values(ProcessCase(1), ProcessCase(2), ProcessCase(3),
                                           ProcessCase(2, Loopback())),
                         ExecutorCaseName);
INSTANTIATE_TEST_SUITE_P(Process, ExecutorDeathContract,
                         ::testing::Values(ProcessCase(2), ProcessCase(2, Loopback())),
                         ExecutorCaseName);

}  // namespace
}  // namespace flotilla::testing
