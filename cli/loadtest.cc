#include "cli/loadtest.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/load_progress.h"
#include "cli/machine_file.h"
#include "cli/predict_load.h"
#include "cli/text_file.h"
#include "common/auth/watched_file.h"
#include "common/rt/clock.h"
#include "common/traces/trace_formats.h"
#include "loadtest/core/knee_search.h"
#include "loadtest/core/load_plan.h"
#include "loadtest/grpc/grpc_transport.h"
#include "loadtest/html_report.h"
#include "loadtest/http_transport.h"
#include "loadtest/load_runner.h"
#include "loadtest/result_json.h"
#include "loadtest/result_table.h"

namespace flotilla::cli {
namespace {

using loadtest::LoadPlan;
using loadtest::LoadResult;

// With --duration alone: the most requests of a closed loop, which takes them as fast as they end.
constexpr std::uint32_t kMostClosedRequests = 200'000;
constexpr std::uint32_t kDefaultRequests = 100;
// A sweep ends when sustained and other rates are so close to each other.
constexpr double kKneePrecision = 0.1;

absl::Status WriteTo(const std::string& file, const std::string& text) {
  if (file.empty()) return absl::OkStatus();
  const std::filesystem::path path(file);
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  return WriteTextFile(folder, path.filename().string(), text);
}

// One invocation, with the objects that its flags name.
class LoadtestCommand {
 public:
  explicit LoadtestCommand(const LoadtestFlags& flags) : flags_(flags) {}

  absl::Status Run();

 private:
  absl::Status Resolve();
  absl::Status ResolvePlan();
  absl::Status ReadKey();
  absl::StatusOr<LoadPlan> PlanAt(double rate) const;
  // Sends a plan. The result has its label and settings.
  absl::StatusOr<LoadResult> Send(const LoadPlan& plan, const std::string& label);
  absl::StatusOr<LoadResult> Predict(LoadPlan plan, const LoadResult& measured);
  // One rate of a sweep, added to the report. Returns whether it was sustained; none: the user
  // ended the sweep.
  absl::StatusOr<std::optional<bool>> Try(double rate);
  absl::StatusOr<double> PredictedKnee();
  absl::Status RunOnce();
  absl::Status RunSweep();
  absl::Status RunCompare();
  absl::Status Write() const;

  const LoadtestFlags& flags_;
  const SteadyClock clock_;
  loadtest::PlanOptions plan_;
  loadtest::ServerOptions server_;
  std::unique_ptr<loadtest::Transport> transport_;
  loadtest::LoadOptions load_;
  std::optional<RequestTrace> trace_;
  std::optional<simulator::Machine> machine_;
  // Of the last run, which predictions need.
  double tokens_per_word_ = 1;
  loadtest::HtmlReport report_;
};

absl::Status LoadtestCommand::ReadKey() {
  if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr) server_.api_key = key;
  if (!flags_.api_key_file.empty()) {
    const absl::StatusOr<std::string> text = ReadSecretFile(flags_.api_key_file, nullptr);
    if (!text.ok()) return text.status();
    server_.api_key = *text;
  }
  server_.api_key = std::string(absl::StripAsciiWhitespace(server_.api_key));
  const bool fine = std::all_of(server_.api_key.begin(), server_.api_key.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!fine) return absl::InvalidArgumentError("the API key is not one line of printable letters");
  return absl::OkStatus();
}

absl::Status LoadtestCommand::ResolvePlan() {
  const bool rated = flags_.rate > 0 || flags_.sweep || !flags_.sweep_rate.empty();
  const std::string name =
      !flags_.arrivals.empty() ? flags_.arrivals : (rated ? "poisson" : "closed");
  const auto arrivals = loadtest::FindArrivals(name);
  if (!arrivals.ok()) return arrivals.status();
  const bool closed = *arrivals == loadtest::PlanOptions::Arrivals::kClosed;
  if (rated && closed) {
    return absl::InvalidArgumentError(
        "--arrivals closed has no rate: leave out --rate and sweeps, or choose other arrivals");
  }
  if (!rated && !closed && flags_.trace.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--arrivals ", name, " needs --rate"));
  }
  if (rated && !flags_.trace.empty()) {
    return absl::InvalidArgumentError(
        "--trace has its own load: choose another with --speed, not with --rate or a sweep");
  }
  plan_.arrivals = *arrivals;
  plan_.rate = flags_.rate > 0 ? flags_.rate : 1;
  plan_.gamma_shape = flags_.burstiness;
  plan_.burst = static_cast<std::uint32_t>(flags_.burst);
  plan_.concurrency = static_cast<std::uint32_t>(flags_.concurrency);
  plan_.duration_ns = static_cast<std::int64_t>(flags_.duration_s * 1e9);
  const bool unbounded = flags_.duration_s > 0 || !flags_.trace.empty();
  plan_.requests = unbounded ? (closed && flags_.trace.empty() ? kMostClosedRequests : 10'000'000)
                             : kDefaultRequests;
  if (flags_.requests > 0) plan_.requests = static_cast<std::uint32_t>(flags_.requests);
  plan_.turns = static_cast<std::uint32_t>(flags_.turns);
  plan_.think_ns = static_cast<std::int64_t>(flags_.think_s * 1e9);
  plan_.max_words = static_cast<std::uint32_t>(flags_.max_prompt);
  plan_.max_output = static_cast<std::uint32_t>(flags_.max_output);
  plan_.prefix_share = flags_.prefix_share;
  plan_.prefix_groups = static_cast<std::uint32_t>(flags_.prefix_groups);
  plan_.seed = static_cast<std::uint64_t>(flags_.seed);
  for (const auto& [flag, text, lengths] :
       {std::tuple("--prompt", &flags_.prompt, &plan_.prompt),
        std::tuple("--output", &flags_.output, &plan_.output)}) {
    const absl::StatusOr<loadtest::Lengths> parsed = loadtest::ParseLengths(*text);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.status().message()));
    }
    *lengths = *parsed;
  }
  return absl::OkStatus();
}

absl::Status LoadtestCommand::Resolve() {
  if (flags_.url.empty() || flags_.model.empty()) {
    return absl::InvalidArgumentError(
        "flotilla loadtest needs a server and a model, as in: flotilla loadtest "
        "http://127.0.0.1:8080 --model m");
  }
  const auto target = loadtest::ParseServerTarget(flags_.url);
  if (!target.ok()) return target.status();
  server_.target = *target;
  server_.shape = {.model = flags_.model,
                   .chat = !flags_.completions,
                   .temperature = flags_.temperature,
                   .ignore_eos = !flags_.stop_at_eos,
                   .extra = flags_.extra_body};
  server_.ca_file = flags_.ca_file;
  server_.verify_tls = !flags_.insecure_tls;
  server_.keep_alive = flags_.keep_alive;
  load_.level = {flags_.slo_ttft_ms, flags_.slo_itl_ms, flags_.slo_e2e_ms};
  load_.duration_ns = static_cast<std::int64_t>(flags_.duration_s * 1e9);
  server_.timeout_ns = static_cast<std::int64_t>(flags_.timeout_s * 1e9);
  load_.max_in_flight = static_cast<std::uint32_t>(flags_.max_in_flight);
  if (absl::Status s = ReadKey(); !s.ok()) return s;
  transport_ =
      flags_.grpc ? loadtest::MakeGrpcTransport(server_) : loadtest::MakeHttpTransport(server_);
  if (absl::Status s = ResolvePlan(); !s.ok()) return s;
  if (!flags_.predict.empty()) {
    absl::StatusOr<simulator::Machine> machine = LoadMachine(flags_.predict);
    if (!machine.ok()) return machine.status();
    machine_ = *std::move(machine);
    if (flags_.turns > 1) {
      return absl::InvalidArgumentError(
          "--predict cannot be used with --turns, because later prompts depend on the answers");
    }
  }
  if (flags_.trace.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadTextFile(flags_.trace);
  if (!text.ok()) return text.status();
  TraceFormat format = DetectTraceFormat(*text);
  if (!flags_.trace_format.empty()) {
    const absl::StatusOr<TraceFormat> named = FindTraceFormat(flags_.trace_format);
    if (!named.ok()) return named.status();
    format = *named;
  }
  absl::StatusOr<RequestTrace> trace = ReadTrace(*text, format);
  if (!trace.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flags_.trace, ": ", trace.status().message()));
  }
  trace_ = *std::move(trace);
  return absl::OkStatus();
}

absl::StatusOr<LoadPlan> LoadtestCommand::PlanAt(double rate) const {
  if (trace_.has_value()) return loadtest::PlanOfTrace(*trace_, flags_.speed, plan_);
  loadtest::PlanOptions options = plan_;
  options.rate = rate;
  return loadtest::MakePlan(options);
}

absl::StatusOr<LoadResult> LoadtestCommand::Send(const LoadPlan& plan, const std::string& label) {
  LoadProgressLine line(label.empty() ? "load test" : label, flags_.duration_s);
  load_.progress = [&line](const loadtest::LoadProgress& progress) { line.Update(progress); };
  absl::StatusOr<LoadResult> result = loadtest::RunLoad(plan, *transport_, load_, clock_);
  if (!result.ok()) return result.status();
  result->label = label;
  auto& settings = result->settings;
  settings = {{"server", absl::StrCat(flags_.url, flags_.grpc ? " (gRPC)" : "")},
              {"model", flags_.model}};
  if (trace_.has_value()) {
    settings.emplace_back("trace", absl::StrCat(flags_.trace, ", speed ", flags_.speed));
  } else if (plan.concurrency > 0) {
    settings.emplace_back("users", absl::StrCat(plan.concurrency));
  } else {
    settings.emplace_back("arrivals", flags_.arrivals.empty() ? "poisson" : flags_.arrivals);
  }
  if (!trace_.has_value()) {
    settings.insert(settings.end(),
                    {{"prompt, words", flags_.prompt}, {"output, tokens", flags_.output}});
  }
  if (flags_.turns > 1) settings.emplace_back("turns", absl::StrCat(flags_.turns));
  if (flags_.prefix_share > 0) {
    settings.emplace_back("common prefix", absl::StrCat(flags_.prefix_share));
  }
  settings.insert(settings.end(), {{"seed", absl::StrCat(flags_.seed)},
                                   {"SLO TTFT, ms", absl::StrCat(flags_.slo_ttft_ms)},
                                   {"SLO ITL, ms", absl::StrCat(flags_.slo_itl_ms)},
                                   {"SLO E2E, ms", absl::StrCat(flags_.slo_e2e_ms)}});
  return result;
}

absl::StatusOr<LoadResult> LoadtestCommand::Predict(LoadPlan plan, const LoadResult& measured) {
  // A closed loop may have sent fewer requests than were planned.
  plan.requests.resize(
      std::min(plan.requests.size(), static_cast<std::size_t>(std::max(1.0, measured.requests))));
  double words = 0;
  for (const loadtest::PlannedRequest& request : plan.requests) words += request.prompt_words;
  if (measured.finished > 0 && measured.prompt_tokens > 0) {
    tokens_per_word_ = measured.prompt_tokens / measured.finished * measured.requests / words;
  }
  absl::StatusOr<LoadResult> predicted =
      PredictLoad(*machine_, plan, tokens_per_word_, load_.level);
  if (predicted.ok()) predicted->label = measured.label;
  return predicted;
}

absl::Status LoadtestCommand::Write() const {
  std::vector<LoadResult> all = report_.runs;
  for (LoadResult run : report_.predictions) {
    absl::StrAppend(&run.label, run.label.empty() ? "" : " ", "simulated");
    all.push_back(std::move(run));
  }
  if (!flags_.json.empty()) {
    if (absl::Status s = WriteTo(flags_.json, loadtest::ResultsJson(all)); !s.ok()) return s;
  }
  return flags_.report.empty() ? absl::OkStatus() : WriteTo(flags_.report, report_.Draw());
}

absl::Status LoadtestCommand::RunOnce() {
  const absl::StatusOr<LoadPlan> plan = PlanAt(plan_.rate);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<LoadResult> result = Send(*plan, flags_.label);
  if (!result.ok()) return result.status();
  report_.runs.push_back(*std::move(result));
  if (machine_.has_value()) {
    absl::StatusOr<LoadResult> predicted = Predict(*plan, report_.runs[0]);
    if (!predicted.ok()) return predicted.status();
    report_.predictions.push_back(*std::move(predicted));
  }
  const LoadResult& run = report_.runs[0];
  std::fputs(loadtest::ResultTable(report_.runs).c_str(), stdout);
  if (machine_.has_value()) {
    std::vector<LoadResult> both = {run, report_.predictions[0]};
    both[0].label = "measured";
    both[1].label = "simulated";
    absl::PrintF("\n%s", loadtest::ResultTable(both));
  }
  if (absl::Status s = Write(); !s.ok()) return s;
  if (run.finished > 0 || run.failures.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("every request failed: ", run.failures.begin()->first));
}

absl::StatusOr<std::optional<bool>> LoadtestCommand::Try(double rate) {
  const absl::StatusOr<LoadPlan> plan = PlanAt(rate);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<LoadResult> result = Send(*plan, absl::StrFormat("%.4g/s", rate));
  if (!result.ok()) return result.status();
  if (result->interrupted) return std::optional<bool>();
  // What is offered is the rate, from which the arrivals of a short run differ by chance.
  result->offered_per_s = rate * static_cast<double>(plan_.turns);
  if (machine_.has_value()) {
    absl::StatusOr<LoadResult> predicted = Predict(*plan, *result);
    if (!predicted.ok()) return predicted.status();
    predicted->offered_per_s = result->offered_per_s;
    report_.predictions.push_back(*std::move(predicted));
  }
  report_.runs.push_back(*std::move(result));
  return std::optional<bool>(report_.runs.back().good_share >= flags_.sweep_share);
}

absl::StatusOr<double> LoadtestCommand::PredictedKnee() {
  loadtest::KneeSearch search(plan_.rate, kKneePrecision, static_cast<int>(flags_.sweep_runs));
  while (const std::optional<double> rate = search.Next()) {
    const absl::StatusOr<LoadPlan> plan = PlanAt(*rate);
    if (!plan.ok()) return plan.status();
    const auto predicted = PredictLoad(*machine_, *plan, tokens_per_word_, load_.level);
    if (!predicted.ok()) return predicted.status();
    search.Add(predicted->good_share >= flags_.sweep_share);
  }
  return search.knee().value_or(0);
}

absl::Status LoadtestCommand::RunSweep() {
  report_.sweep = true;
  bool interrupted = false;
  if (!flags_.sweep_rate.empty()) {
    for (const double rate : flags_.sweep_rate) {
      const auto sustained = Try(rate);
      if (!sustained.ok()) return sustained.status();
      interrupted = !sustained->has_value();
      if (interrupted) break;
      if (**sustained) report_.knee = std::max(report_.knee, rate);
    }
  } else {
    loadtest::KneeSearch search(plan_.rate, kKneePrecision, static_cast<int>(flags_.sweep_runs));
    while (const std::optional<double> rate = search.Next()) {
      const auto sustained = Try(*rate);
      if (!sustained.ok()) return sustained.status();
      interrupted = !sustained->has_value();
      if (interrupted) break;
      search.Add(**sustained);
    }
    report_.knee = search.knee().value_or(0);
  }
  if (report_.runs.empty()) return absl::CancelledError("no run of the sweep has ended");
  if (machine_.has_value() && !interrupted) {
    const absl::StatusOr<double> knee = PredictedKnee();
    if (!knee.ok()) return knee.status();
    report_.predicted_knee = *knee;
  }
  for (std::vector<LoadResult>* runs : {&report_.runs, &report_.predictions}) {
    std::stable_sort(runs->begin(), runs->end(), [](const LoadResult& a, const LoadResult& b) {
      return a.offered_per_s < b.offered_per_s;
    });
  }
  std::fputs(loadtest::SweepTable(report_.runs).c_str(), stdout);
  if (machine_.has_value()) {
    absl::PrintF("\nsimulated\n%s", loadtest::SweepTable(report_.predictions));
  }
  absl::PrintF("\nknee: %.3g/s", report_.knee);
  if (report_.predicted_knee > 0) absl::PrintF(", simulated: %.3g/s", report_.predicted_knee);
  absl::PrintF("\n");
  return Write();
}

absl::Status LoadtestCommand::RunCompare() {
  for (const std::string& file : flags_.compare) {
    const absl::StatusOr<std::string> text = ReadTextFile(file);
    if (!text.ok()) return text.status();
    absl::StatusOr<std::vector<LoadResult>> runs = loadtest::ParseResults(*text);
    if (!runs.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", runs.status().message()));
    }
    for (LoadResult& run : *runs) {
      const std::string name = std::filesystem::path(file).stem().string();
      if (run.label.empty()) {
        run.label = name;
      } else if (runs->size() > 1) {
        run.label = absl::StrCat(name, " ", run.label);
      }
      report_.runs.push_back(std::move(run));
    }
  }
  std::fputs(loadtest::ResultTable(report_.runs).c_str(), stdout);
  return Write();
}

absl::Status LoadtestCommand::Run() {
  report_.title = flags_.label.empty() ? "flotilla loadtest" : flags_.label;
  if (!flags_.compare.empty()) return RunCompare();
  if (absl::Status s = Resolve(); !s.ok()) return s;
  if (flags_.sweep || !flags_.sweep_rate.empty()) return RunSweep();
  return RunOnce();
}

}  // namespace

absl::Status RunLoadtest(const LoadtestFlags& flags) { return LoadtestCommand(flags).Run(); }

}  // namespace flotilla::cli
