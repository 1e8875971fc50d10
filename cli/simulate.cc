#include "cli/simulate.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/machine_file.h"
#include "cli/measure_steps.h"
#include "cli/progress.h"
#include "cli/text_file.h"
#include "common/rt/clock.h"
#include "common/traces/lengths.h"
#include "common/traces/trace_formats.h"
#include "simulator/machine_json.h"
#include "simulator/plots.h"
#include "simulator/report.h"
#include "simulator/reservation.h"
#include "simulator/simulator.h"
#include "simulator/step_fit.h"
#include "simulator/variants.h"

namespace flotilla::cli {
namespace {

using simulator::Machine;
using simulator::RunRecord;
using simulator::SimulationOptions;
using simulator::Summary;
using simulator::SyntheticOptions;
using simulator::Workload;

// One invocation, with the objects that its flags name.
class SimulateCommand {
 public:
  explicit SimulateCommand(const SimulateFlags& flags) : flags_(flags) {}

  absl::Status Run();

 private:
  absl::Status Resolve();
  absl::StatusOr<Workload> MakeWorkloadAt(double rate, double concurrency) const;
  Machine MachineOf(const simulator::Variant& variant) const;
  SimulationOptions OptionsOf(const simulator::Variant& variant) const;
  absl::StatusOr<RunRecord> RunOne(const std::string& label, const Machine& machine,
                                   const Workload& workload, SimulationOptions options);
  absl::Status RunVariants();
  absl::Status RunSweep();
  absl::Status RunMemoryBaselines();
  absl::Status Report(const std::vector<Summary>& runs,
                      const std::vector<simulator::NamedPlot>& plots) const;
  void PrintSpeed() const;

  const SimulateFlags& flags_;
  const SteadyClock clock_;
  Machine machine_;
  std::vector<simulator::Variant> variants_;
  std::string trace_;

  // Real time and simulated work of all runs.
  std::int64_t spent_ns_ = 0;
  std::uint64_t requests_ = 0, tokens_ = 0, steps_ = 0;
};

absl::Status SimulateCommand::Resolve() {
  absl::StatusOr<Machine> machine = LoadMachine(flags_.machine);
  if (!machine.ok()) return machine.status();
  machine_ = *std::move(machine);
  if (flags_.kv_tokens > 0) machine_.kv_tokens = static_cast<std::uint64_t>(flags_.kv_tokens);
  if (!flags_.kv_windows.empty()) machine_.kv_windows = flags_.kv_windows;
  machine_.host_tokens = static_cast<std::uint64_t>(flags_.host_tokens);
  if (machine_.kv_tokens < machine_.block_tokens) {
    return absl::InvalidArgumentError("--kv-tokens is below one block");
  }
  if (machine_.kv_windows.size() > simulator::kMostKvGroups) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-windows has ", machine_.kv_windows.size(),
                                                   " KV groups; the most are ",
                                                   simulator::kMostKvGroups));
  }
  const std::uint64_t most = simulator::kMostKvPositions / machine_.kv_windows.size();
  if (machine_.kv_tokens > most || machine_.host_tokens > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("with ", machine_.kv_windows.size(),
                     " KV groups --kv-tokens and --host-tokens are at most ", most));
  }
  scheduler::CoreOptions core = simulator::DefaultOptions(machine_);
  for (const std::string& setting : flags_.set) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    if (absl::Status s = simulator::SetCoreOption(parts.first, parts.second, &core); !s.ok()) {
      return s;
    }
  }
  auto variants = simulator::ExpandVariants(core, flags_.compare, flags_.policies);
  if (!variants.ok()) return variants.status();
  variants_ = *std::move(variants);
  if (flags_.memory_baselines && (flags_.turns > 1 || flags_.think_s > 0)) {
    return absl::InvalidArgumentError(
        "--memory-baselines cannot be used with --turns and --think, because the emulation has no "
        "chats");
  }
  if (!flags_.sweep_rate.empty() && !flags_.sweep_concurrency.empty()) {
    return absl::InvalidArgumentError("give --sweep-rate or --sweep-concurrency, not both");
  }
  if (!flags_.sweep_concurrency.empty() && flags_.arrivals != "closed") {
    return absl::InvalidArgumentError("--sweep-concurrency needs --arrivals closed");
  }
  if (flags_.trace.empty()) return absl::OkStatus();
  if (!flags_.sweep_rate.empty() || !flags_.sweep_concurrency.empty()) {
    return absl::InvalidArgumentError(
        "a sweep cannot be used with --trace, because a trace has its own load");
  }
  absl::StatusOr<std::string> trace = ReadTextFile(flags_.trace);
  if (!trace.ok()) return trace.status();
  trace_ = *std::move(trace);
  return absl::OkStatus();
}

absl::StatusOr<Workload> SimulateCommand::MakeWorkloadAt(double rate, double concurrency) const {
  if (!flags_.trace.empty()) {
    const absl::StatusOr<RequestTrace> trace = ReadTrace(trace_, DetectTraceFormat(trace_));
    if (trace.ok()) return simulator::WorkloadOf(*trace);
    return absl::InvalidArgumentError(absl::StrCat(flags_.trace, ": ", trace.status().message()));
  }
  absl::StatusOr<SyntheticOptions> preset = simulator::FindPreset(flags_.preset);
  if (!preset.ok()) return preset.status();
  SyntheticOptions o = *std::move(preset);
  if (flags_.arrivals == "gamma") o.arrivals = SyntheticOptions::Arrivals::kGamma;
  if (flags_.arrivals == "closed") o.arrivals = SyntheticOptions::Arrivals::kClosed;
  o.rate = rate;
  o.gamma_shape = flags_.burstiness;
  o.concurrency = static_cast<std::uint32_t>(concurrency);
  o.think_ns = static_cast<std::int64_t>(flags_.think_s * 1e9);
  o.turns = static_cast<std::uint32_t>(flags_.turns);
  o.max_chat_tokens = machine_.max_context;
  o.requests = static_cast<std::uint32_t>(flags_.requests);
  o.seed = static_cast<std::uint64_t>(flags_.seed);
  // A mean that the user gives also raises the preset's maximum.
  const auto set_mean = [](double mean, LengthDistribution& d) {
    if (mean <= 0) return;
    d.max = std::max(d.max, static_cast<std::uint32_t>(mean * 4));
    d.mean = mean;
  };
  set_mean(flags_.prompt_mean, o.prompt);
  set_mean(flags_.output_mean, o.output);
  if (flags_.prompt_sigma >= 0) o.prompt.sigma = flags_.prompt_sigma;
  if (flags_.output_sigma >= 0) o.output.sigma = flags_.output_sigma;
  o.tenants = static_cast<std::uint32_t>(flags_.tenants);
  o.priorities = static_cast<std::uint32_t>(flags_.priorities);
  o.prefix_groups = static_cast<std::uint32_t>(flags_.prefix_groups);
  o.prefix_tokens = static_cast<std::uint32_t>(flags_.prefix_tokens);
  o.deadline_ns = static_cast<std::int64_t>(flags_.deadline_s * 1e9);
  o.last_deadline_ns = static_cast<std::int64_t>(flags_.last_deadline_s * 1e9);
  return simulator::MakeWorkload(o);
}

Machine SimulateCommand::MachineOf(const simulator::Variant& variant) const {
  Machine machine = machine_;
  machine.host_tokens = variant.host_tokens.value_or(machine.host_tokens);
  return machine;
}

SimulationOptions SimulateCommand::OptionsOf(const simulator::Variant& variant) const {
  SimulationOptions options;
  options.core = variant.core;
  options.policy = variant.policy;
  options.round_trip_ns = static_cast<std::int64_t>(flags_.round_trip_us * 1000);
  options.lengths_known = flags_.known_lengths;
  options.max_tokens = static_cast<std::uint32_t>(flags_.max_tokens);
  return options;
}

absl::StatusOr<RunRecord> SimulateCommand::RunOne(const std::string& label, const Machine& machine,
                                                  const Workload& workload,
                                                  SimulationOptions options) {
  const std::int64_t start = clock_.NowNs();
  absl::StatusOr<RunRecord> record;
  {
    ProgressLine line(&clock_, label.empty() ? "simulating" : label);
    options.progress = [&line](const simulator::SimulationProgress& p) {
      line.Update(p.ended, p.requests);
      return true;
    };
    record = simulator::Simulate(machine, workload, options);
  }
  if (!record.ok()) return record.status();
  spent_ns_ += clock_.NowNs() - start;
  requests_ += workload.requests.size();
  steps_ += record->group.steps;
  for (const simulator::RequestRecord& request : record->requests) tokens_ += request.output_tokens;
  return record;
}

absl::Status SimulateCommand::RunVariants() {
  absl::StatusOr<Workload> workload =
      MakeWorkloadAt(flags_.rate, static_cast<double>(flags_.concurrency));
  if (!workload.ok()) return workload.status();
  std::vector<Summary> runs;
  std::vector<RunRecord> records;
  std::vector<std::string> labels;
  for (const simulator::Variant& variant : variants_) {
    absl::StatusOr<RunRecord> record =
        RunOne(variant.label, MachineOf(variant), *workload, OptionsOf(variant));
    if (!record.ok()) return record.status();
    runs.push_back(
        simulator::Summarize(*workload, *record, {flags_.slo_ttft_ms, flags_.slo_itl_ms}));
    runs.back().label = variant.label;
    labels.push_back(variant.label);
    records.push_back(*std::move(record));
  }
  if (!flags_.out.empty() && records.size() == 1) {
    absl::Status s =
        WriteTextFile(flags_.out, "requests.csv", simulator::RequestsCsv(*workload, records[0]));
    if (!s.ok()) return s;
  }
  return Report(runs, simulator::PlotRuns(labels, records));
}

absl::Status SimulateCommand::RunSweep() {
  const bool users = !flags_.sweep_concurrency.empty();
  std::vector<simulator::Sweep> sweeps;
  std::vector<Summary> runs;
  for (const simulator::Variant& variant : variants_) {
    simulator::Sweep& sweep = sweeps.emplace_back();
    sweep.label = variant.label;
    sweep.loads = users ? flags_.sweep_concurrency : flags_.sweep_rate;
    for (const double load : sweep.loads) {
      absl::StatusOr<Workload> workload =
          users ? MakeWorkloadAt(flags_.rate, load)
                : MakeWorkloadAt(load, static_cast<double>(flags_.concurrency));
      if (!workload.ok()) return workload.status();
      const std::string label = absl::StrCat(variant.label, variant.label.empty() ? "" : " ",
                                             absl::StrFormat("%g", load), users ? " users" : "/s");
      absl::StatusOr<RunRecord> record =
          RunOne(label, MachineOf(variant), *workload, OptionsOf(variant));
      if (!record.ok()) return record.status();
      runs.push_back(
          simulator::Summarize(*workload, *record, {flags_.slo_ttft_ms, flags_.slo_itl_ms}));
      runs.back().label = label;
      sweep.runs.push_back(runs.back());
    }
  }
  return Report(runs, simulator::PlotSweeps(sweeps, users ? "users" : "arrivals, requests/s"));
}

absl::Status SimulateCommand::RunMemoryBaselines() {
  absl::StatusOr<Workload> workload =
      MakeWorkloadAt(flags_.rate, static_cast<double>(flags_.concurrency));
  if (!workload.ok()) return workload.status();
  const auto slots = static_cast<std::uint32_t>(flags_.reserve);
  const std::string max = absl::StrCat("max ", slots);
  SimulationOptions options = OptionsOf(variants_[0]);
  options.core.prefix_cache = false;  // the runs compare allocation only
  std::vector<Summary> runs;
  std::vector<RunRecord> records;
  std::vector<std::string> labels;
  const auto add = [&](const std::string& label, absl::StatusOr<RunRecord> record) {
    if (!record.ok()) return record.status();
    runs.push_back(
        simulator::Summarize(*workload, *record, {flags_.slo_ttft_ms, flags_.slo_itl_ms}));
    runs.back().label = label;
    labels.push_back(label);
    records.push_back(*std::move(record));
    return absl::OkStatus();
  };
  absl::Status s = add("paged", RunOne("paged", machine_, *workload, options));
  const Machine reserving = simulator::MachineWithReservation(machine_, slots);
  SimulationOptions no_watermark = options;
  no_watermark.core.watermark_blocks = 0;  // one block holds all that a request will need
  no_watermark.core.expected_output_permille = 0;
  if (s.ok()) s = add(max, RunOne(max, reserving, *workload, no_watermark));
  const auto emulate = [&](simulator::Reservation kind) {
    return simulator::SimulateReservation(machine_, *workload, options, kind, slots);
  };
  if (s.ok()) s = add(max + " (emulated)", emulate(simulator::Reservation::kMax));
  if (s.ok()) s = add("power of two", emulate(simulator::Reservation::kPowerOfTwo));
  if (s.ok()) s = add("oracle", emulate(simulator::Reservation::kOracle));
  if (!s.ok()) return s;
  std::vector<simulator::NamedPlot> plots = simulator::PlotRuns(labels, records);
  plots.push_back(simulator::PlotMemory(runs));
  return Report(runs, plots);
}

absl::Status SimulateCommand::Report(const std::vector<Summary>& runs,
                                     const std::vector<simulator::NamedPlot>& plots) const {
  const std::string json = simulator::ReportJson(runs);
  std::fputs(flags_.json ? json.c_str() : simulator::ReportTable(runs).c_str(), stdout);
  if (!flags_.out.empty()) {
    absl::Status s = WriteTextFile(flags_.out, "report.json", json);
    if (s.ok()) s = WriteTextFile(flags_.out, "report.csv", simulator::ReportCsv(runs));
    for (const simulator::NamedPlot& plot : plots) {
      if (s.ok()) s = WriteTextFile(flags_.out, plot.file, plot.Draw());
    }
    if (!s.ok()) return s;
  }
  PrintSpeed();
  return absl::OkStatus();
}

void SimulateCommand::PrintSpeed() const {
  const double seconds = 1e-9 * static_cast<double>(spent_ns_);
  absl::FPrintF(stderr,
                "simulated %d requests, %d tokens, %d steps in %.2f s of real time: "
                "%.0f requests/s, %.0f tokens/s\n",
                requests_, tokens_, steps_, seconds, static_cast<double>(requests_) / seconds,
                static_cast<double>(tokens_) / seconds);
}

absl::Status SimulateCommand::Run() {
  if (absl::Status s = Resolve(); !s.ok()) return s;
  if (flags_.memory_baselines) return RunMemoryBaselines();
  if (!flags_.sweep_rate.empty() || !flags_.sweep_concurrency.empty()) return RunSweep();
  return RunVariants();
}

void PrintFit(const simulator::StepFit& fit) {
  const simulator::LinearModel& m = fit.model;
  absl::FPrintF(stderr,
                "fit of %d steps: %.3f ms + %.1f us * prefill rows + %.1f us * decode rows"
                " + %.1f ns * prefill context + %.1f ns * decode context\n"
                "relative error of a step: mean %.1f %%, median %.1f %%, p90 %.1f %%, worst %.0f "
                "%%; of the sum of all steps: %+.1f %%\n"
                "noise (steps of equal rows against their median): %.1f %%\n",
                fit.steps, m.step_ns / 1e6, m.prefill_row_ns / 1e3, m.decode_row_ns / 1e3,
                m.prefill_context_ns, m.decode_context_ns, 100 * fit.mean_error,
                100 * fit.p50_error, 100 * fit.p90_error, 100 * fit.worst_error,
                100 * fit.total_error, 100 * fit.noise);
}

// Writes a fitted machine to --out, or to standard output.
absl::Status GiveMachine(const SimulateFlags& flags, Machine machine,
                         const simulator::StepFit& fit) {
  PrintFit(fit);
  machine.cost = fit.model;
  if (!flags.out.empty()) {
    return WriteTextFile(flags.out, "machine.json", simulator::MachineJson(machine));
  }
  std::fputs(simulator::MachineJson(machine).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status RunFit(const SimulateFlags& flags) {
  const absl::StatusOr<std::string> csv = ReadTextFile(flags.fit);
  if (!csv.ok()) return csv.status();
  const absl::StatusOr<std::vector<simulator::MeasuredStep>> steps = simulator::ParseSteps(*csv);
  if (!steps.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flags.fit, ": ", steps.status().message()));
  }
  const absl::StatusOr<simulator::StepFit> fit = simulator::FitSteps(*steps);
  if (!fit.ok()) return fit.status();
  Machine machine;
  machine.name = "fitted";
  machine.model = absl::StrCat("fitted to ", fit->steps, " steps");
  return GiveMachine(flags, std::move(machine), *fit);
}

// Computes and simulates a workload that the fit has not used, and prints both results.
absl::Status Validate(const SimulateFlags& flags, StepMeter& meter, const simulator::StepFit& fit) {
  SyntheticOptions synthetic = simulator::FindPreset("short").value();
  synthetic.arrivals = SyntheticOptions::Arrivals::kClosed;
  synthetic.concurrency = 12;
  synthetic.requests = 60;
  synthetic.seed = 7;
  const Workload workload = simulator::MakeWorkload(synthetic).value();
  SimulationOptions options;
  options.core = simulator::DefaultOptions(meter.machine());
  absl::StatusOr<RunRecord> measured = meter.Run(workload, options, 300, nullptr);
  if (!measured.ok()) return measured.status();
  Machine machine = meter.machine();
  machine.cost = fit.model;
  absl::StatusOr<RunRecord> modelled = simulator::Simulate(machine, workload, options);
  if (!modelled.ok()) return modelled.status();
  const simulator::ServiceLevel level = {flags.slo_ttft_ms, flags.slo_itl_ms};
  std::vector<Summary> runs = {simulator::Summarize(workload, *measured, level),
                               simulator::Summarize(workload, *modelled, level)};
  runs[0].label = "computed";
  runs[1].label = "simulated";
  absl::PrintF("60 short requests, 12 at once, which the fit has not seen:\n%s",
               simulator::ReportTable(runs));
  return absl::OkStatus();
}

absl::Status RunMeasure(const SimulateFlags& flags) {
  if (flags.out.empty()) return absl::InvalidArgumentError("--measure needs --out");
  const SteadyClock clock;
  auto meter = StepMeter::Create(flags.measure, static_cast<int>(flags.threads), &clock);
  if (!meter.ok()) return meter.status();
  SimulationOptions options;
  options.core = simulator::DefaultOptions(meter->machine());
  std::vector<simulator::MeasuredStep> steps;
  for (const Workload& workload : MeasuringWorkloads()) {
    const std::size_t before = steps.size();
    const auto run = meter->Run(workload, options, flags.measure_seconds, &steps);
    if (!run.ok() && !absl::IsCancelled(run.status())) return run.status();
    absl::FPrintF(stderr, "%s: %d steps\n", workload.name, steps.size() - before);
  }
  if (absl::Status s = WriteTextFile(flags.out, "steps.csv", simulator::StepsCsv(steps)); !s.ok()) {
    return s;
  }
  const absl::StatusOr<simulator::StepFit> fit = simulator::FitSteps(steps);
  if (!fit.ok()) return fit.status();
  if (absl::Status s = GiveMachine(flags, meter->machine(), *fit); !s.ok()) return s;
  return Validate(flags, *meter, *fit);
}

}  // namespace

absl::Status RunSimulate(const SimulateFlags& flags) {
  if (flags.list_machines) {
    for (const Machine& machine : simulator::BuiltInMachines()) {
      std::fputs(simulator::MachineJson(machine).c_str(), stdout);
    }
    return absl::OkStatus();
  }
  if (!flags.fit.empty()) return RunFit(flags);
  if (!flags.measure.empty()) return RunMeasure(flags);
  return SimulateCommand(flags).Run();
}

}  // namespace flotilla::cli
