#include "cli/measure_steps.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"

namespace flotilla::cli {
namespace {

constexpr std::uint32_t kMaxSeqs = 64, kMaxStepTokens = 256, kKvBlocks = 4096;

// Computes and times each batch.
class TimedSteps final : public simulator::StepRunner {
 public:
  TimedSteps(worker::Rank& rank, const Clock& clock, double seconds,
             std::vector<simulator::MeasuredStep>* steps)
      : rank_(rank), clock_(clock), steps_(steps) {
    end_ns_ = clock.NowNs() + static_cast<std::int64_t>(1e9 * seconds);
  }

  bool TimeLeft() const { return clock_.NowNs() < end_ns_; }

  simulator::StepCost Run(const worker::Batch& batch, const simulator::StepShape& shape) override {
    const std::int64_t start = clock_.NowNs();
    (void)rank_.Finish(*rank_.Start(batch));  // the backend of CPUs does not fail
    const std::int64_t ns = std::max<std::int64_t>(1, clock_.NowNs() - start);
    if (steps_ != nullptr && shape.rows() > 0) steps_->push_back({.shape = shape, .ns = ns});
    return {.ns = ns};
  }

 private:
  worker::Rank& rank_;
  const Clock& clock_;
  std::vector<simulator::MeasuredStep>* const steps_;
  std::int64_t end_ns_;
};

}  // namespace

StepMeter::StepMeter(std::unique_ptr<worker::Rank> rank, const Clock* clock,
                     simulator::Machine machine)
    : rank_(std::move(rank)), clock_(clock), machine_(std::move(machine)) {}

absl::StatusOr<StepMeter> StepMeter::Create(const std::string& model_path, int threads,
                                            const Clock* clock) {
  const auto file = model::OpenCheckpoint(model_path);
  if (!file.ok()) return file.status();
  const std::string name = std::filesystem::path(model_path).stem().string();
  worker::RankOptions options;
  options.model_id = name;
  options.threads = threads;
  options.kv_blocks = kKvBlocks;
  options.max_step_tokens = kMaxStepTokens;
  options.max_sequences = 2 * kMaxSeqs + 1;
  auto rank = worker::Rank::Create(*file, options, *clock);
  if (!rank.ok()) return rank.status();
  const ExecutorDescription& d = (*rank)->description();
  if (d.vocab_size < simulator::kSimulatedVocabulary) {
    return absl::FailedPreconditionError(absl::StrCat("the model's vocabulary has ", d.vocab_size,
                                                      " tokens; measuring takes ",
                                                      simulator::kSimulatedVocabulary));
  }
  simulator::Machine machine;
  machine.name = "measured";
  machine.model = absl::StrCat(name, ", this CPU (fitted)");
  machine.block_tokens = d.groups[0].tokens_per_block;
  machine.kv_tokens = (d.block_count - 1) / d.groups.size() * machine.block_tokens;
  machine.kv_windows.clear();
  for (const KvGroup& group : d.groups) machine.kv_windows.push_back(group.window);
  machine.max_context = d.max_context;
  machine.max_seqs = kMaxSeqs;
  machine.max_step_tokens = kMaxStepTokens;
  return StepMeter(*std::move(rank), clock, std::move(machine));
}

absl::StatusOr<simulator::RunRecord> StepMeter::Run(const simulator::Workload& workload,
                                                    const simulator::SimulationOptions& options,
                                                    double seconds,
                                                    std::vector<simulator::MeasuredStep>* steps) {
  TimedSteps timed(*rank_, *clock_, seconds, steps);
  simulator::SimulationOptions with_end = options;
  with_end.progress = [&timed](const simulator::SimulationProgress&) { return timed.TimeLeft(); };
  with_end.progress_events = 1;
  return simulator::SimulateWith(timed, machine_, workload, with_end);
}

std::vector<simulator::Workload> MeasuringWorkloads() {
  struct Load {
    std::uint32_t concurrency;
    double prompt, output;
  };
  std::vector<simulator::Workload> workloads;
  for (const Load& load : {Load{1, 40, 60},
                           {2, 160, 100},
                           {4, 160, 200},
                           {8, 160, 200},
                           {16, 160, 200},
                           {32, 160, 200},
                           {64, 40, 100},
                           {4, 1000, 300},
                           {12, 600, 500}}) {
    simulator::SyntheticOptions options;
    options.name = absl::StrCat(load.concurrency, " at once");
    options.arrivals = simulator::SyntheticOptions::Arrivals::kClosed;
    options.concurrency = load.concurrency;
    options.requests = 100'000;  // more than can end in the time
    options.prompt = {.mean = load.prompt, .sigma = 0.8, .max = 1024};
    options.output = {.mean = load.output, .sigma = 0.8, .max = 1000};
    options.seed = 100 + load.concurrency;
    workloads.push_back(simulator::MakeWorkload(options).value());
  }
  return workloads;
}

}  // namespace flotilla::cli
