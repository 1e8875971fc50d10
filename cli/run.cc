#include "cli/run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/batch_runner.h"
#include "cli/local_fleet.h"
#include "cli/run_input.h"
#include "cli/signals.h"
#include "cli/stop_listener.h"
#include "common/obs/log.h"
#include "common/obs/printable.h"
#include "common/rt/clock.h"
#include "router/batch/batch_core.h"
#include "router/batch/batch_line.h"
#include "router/batch/batch_report.h"
#include "router/files/answer_file.h"
#include "router/files/disk.h"
#include "router/files/line_reader.h"
#include "rpc/grpc_log.h"

namespace flotilla::cli {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// The most wrong lines of the input that are shown.
constexpr std::uint64_t kShownErrors = 10;

constexpr char kRunExamples[] = R"(
Examples:
  flotilla run --model m.gguf --input requests.jsonl --output answers.jsonl
  flotilla run --model m.gguf --input - --output - < requests.jsonl > answers.jsonl

A line of the input is a request in the format of OpenAI's batches:
  {"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m",
   "messages":[{"role":"user","content":"Hello!"}],"temperature":0,"max_tokens":16}}
`url` is /v1/chat/completions or /v1/completions. All custom_ids differ. A line of the output
is an answer:
  {"id":"batch_req_1","custom_id":"a","response":{"status_code":200,"request_id":"a",
   "body":{...}},"error":null}
Answers come in the order in which they end. An error of a request is an answer with another
status_code.

A run that was killed goes on when the same command runs again: it keeps the answers in the output,
and computes the others. No answer depends on when it was computed. SIGINT or SIGTERM ends the run
once the requests in flight have ended; a second signal drops these.

The exit code is 0 if all requests are answered with status_code 200, 3 if some have another one,
130 if a signal ended the run before, and 1 after an error.)";

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::Status AddLine(const router::TextLine& line, router::BatchCore& core) {
  const absl::StatusOr<router::BatchRequest> request = router::ParseBatchRequest(line.text);
  if (!request.ok()) return request.status();
  return core.Add(request->custom_id, {line.begin, static_cast<std::uint32_t>(line.text.size())});
}

// Reads all lines, and tells the user which of them are wrong. Empty lines at the end do not count.
absl::Status AddLines(int fd, const std::string& path, router::BatchCore& core) {
  router::LineReader lines(fd, router::kMaxBatchLineBytes);
  std::uint64_t wrong = 0, empty = 0;
  const auto tell = [&](std::uint64_t number, absl::string_view what) {
    if (++wrong > kShownErrors) return;
    std::cerr << Printable(absl::StrCat(path, " line ", number, ": ", what)) << "\n";
  };
  while (true) {
    const absl::StatusOr<std::optional<router::TextLine>> line = lines.Next();
    if (!line.ok()) return At(path, line.status());
    if (!line->has_value()) break;
    const auto& [text, number, begin, whole] = **line;
    if (std::all_of(text.begin(), text.end(),
                    [](unsigned char c) { return absl::ascii_isspace(c); })) {
      if (empty == 0) empty = number;
      continue;
    }
    if (empty != 0) tell(std::exchange(empty, 0), "the line is empty");
    const absl::Status added = AddLine(**line, core);
    if (absl::IsResourceExhausted(added)) return At(path, added);
    if (!added.ok()) tell(number, added.message());
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", wrong, wrong == 1 ? " line is" : " lines are", " wrong, so no request was run"));
}

// Takes what an earlier run has written.
absl::Status Recover(const RunFlags& flags, router::AnswerFile& output, router::BatchCore& core) {
  const absl::StatusOr<router::AnswerFile::Recovered> recovered =
      output.Recover([&core, &flags](std::string_view line) -> absl::Status {
        const absl::StatusOr<router::AnswerSummary> answer = router::ReadBatchAnswer(line);
        absl::Status s = answer.ok() ? core.Recover(*answer) : answer.status();
        if (s.ok()) return s;
        return absl::Status(s.code(), absl::StrCat(s.message(),
                                                   "; --output must be a new file, or one that an "
                                                   "earlier run made of --input ",
                                                   flags.input));
      });
  if (!recovered.ok()) return recovered.status();
  const std::uint64_t answered = core.counts().answered;
  if (answered > 0) {
    std::cerr << absl::StrFormat("%s has %d of %d answers; the run goes on with the others\n",
                                 flags.output, answered, core.counts().lines);
  }
  if (*recovered == router::AnswerFile::Recovered::kTorn)
    std::cerr << flags.output << " ended in half an answer, which was cut off\n";
  return absl::OkStatus();
}

bool IsSameFile(int one, int other) {
  struct stat a {
  }, b{};
  return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

// Shows on standard error how far the batch is: four times a second on a terminal, every ten
// seconds elsewhere. It is silent for the first second.
class BatchProgress {
 public:
  BatchProgress(const Clock* clock, const router::BatchCore* core)
      : clock_(clock),
        core_(*core),
        before_(core->counts()),
        start_ns_(clock->NowNs()),
        next_ns_(start_ns_ + (terminal_ ? kSecond : period_ns())) {}

  std::int64_t period_ns() const { return terminal_ ? kSecond / 4 : 10 * kSecond; }
  void Update() {
    const std::int64_t now_ns = clock_->NowNs();
    if (now_ns < next_ns_) return;
    next_ns_ = now_ns + period_ns();
    // \x1b[K clears the rest of the line.
    absl::FPrintF(stderr, "%s%s%s", terminal_ ? "\r" : "",
                  router::ProgressText(before_, core_.counts(), Seconds(now_ns)),
                  terminal_ ? "\x1b[K" : "\n");
    std::fflush(stderr);
    shown_ = terminal_;
  }
  // Writes `text` on a line of its own.
  void Say(const std::string& text) {
    absl::FPrintF(stderr, "%s%s", std::exchange(shown_, false) ? "\n" : "", text);
  }
  void Summarize() { Say(router::SummaryText(before_, core_.counts(), Seconds(clock_->NowNs()))); }

 private:
  double Seconds(std::int64_t now_ns) const {
    return 1e-9 * static_cast<double>(now_ns - start_ns_);
  }

  const Clock* const clock_;
  const router::BatchCore& core_;
  const router::BatchCounts before_;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const std::int64_t start_ns_;
  std::int64_t next_ns_;
  bool shown_ = false;  // the line that the cursor is in
};

std::uint32_t ConcurrencyOf(const RunFlags& flags) {
  const std::int64_t seqs = flags.role.max_seqs;
  return static_cast<std::uint32_t>(flags.concurrency > 0 ? flags.concurrency
                                                          : seqs + seqs / 2 + 1);
}

// The flags of the engine, which takes all that is in flight.
RoleFlags EngineFlags(const RunFlags& flags) {
  RoleFlags role = flags.role;
  role.queue_requests = ConcurrencyOf(flags);
  role.queue_tokens = 1 << 30;
  // Nobody waits for a token, so a step may be as long as the budget of tokens allows.
  role.itl_target_ms = 60'000;
  return role;
}

absl::StatusOr<int> Answer(const RunFlags& flags, const std::string& version, int input,
                           router::AnswerFile& output, router::BatchCore& core) {
  Signals signals;
  const absl::StatusOr<LogLevel> level = ParseLogLevel(flags.role.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  const rpc::GrpcLog grpc_log(&log);
  LocalFleet fleet(&log);
  absl::FPrintF(stderr, "loading %s\n", flags.role.model);
  {
    // Nothing is in flight yet, so a signal ends the process at once.
    const StopListener listener(&signals, [] {
      absl::FPrintF(stderr, "stopped while the model was loaded; the same command goes on\n");
      std::_Exit(kInterrupted);
    });
    if (absl::Status s = fleet.Load(EngineFlags(flags), version); !s.ok()) return s;
  }
  const SteadyClock clock;
  BatchProgress progress(&clock, &core);
  absl::Status ended;
  {
    BatchRunner runner(
        {.service = &fleet.service(),
         .clock = &clock,
         .signals = &signals,
         .core = &core,
         .input = input,
         .output = &output,
         .on_progress = [&progress] { progress.Update(); },
         .progress_ns = progress.period_ns(),
         .on_stopping =
             [&progress, &core] {
               progress.Say(absl::StrFormat(
                   "stopping: %d requests in flight end first; a second signal drops "
                   "them\n",
                   core.in_flight()));
             }});
    ended = runner.Run();
  }
  progress.Summarize();
  if (!ended.ok()) return ended;
  if (!core.complete()) {
    progress.Say("the same command goes on with the others\n");
    return kInterrupted;
  }
  return router::AllSucceeded(core.counts()) ? kAllSucceeded : kSomeFailed;
}

}  // namespace

void AddRunFlags(CLI::App& app, RunFlags* flags) {
  flags->role.log_level = "warning";
  app.add_option("--input", flags->input,
                 "The requests, one a line, in the format of OpenAI's batches. - means standard "
                 "input. A line has at most 4 MiB. (required)")
      ->required()
      ->type_name("PATH")
      ->group("Batch");
  app.add_option("--output", flags->output,
                 "The file for the answers. If it exists, the run keeps the answers in it and "
                 "computes the others. - means standard output. (required)")
      ->required()
      ->type_name("PATH")
      ->group("Batch");
  app.add_option("--concurrency", flags->concurrency,
                 "The most requests in flight. 0 means half more than --max-seqs, so that the next "
                 "one is there when another ends. The number never changes answers. "
                 "[0..65536, default 0]")
      ->check(CLI::Range(0, 65536).description(""))
      ->type_name("requests")
      ->group("Batch");
  AddRoleFlags(app, Role::kRun, &flags->role);
  app.footer(kRunExamples);
}

absl::StatusOr<int> RunBatch(const RunFlags& flags, const std::string& version) {
  const absl::StatusOr<UniqueFd> in = OpenInput(flags.input);
  if (!in.ok()) return in.status();
  router::BatchCore core(ConcurrencyOf(flags));
  if (absl::Status s = AddLines(in->get(), flags.input, core); !s.ok()) return s;
  router::Disk disk;
  absl::StatusOr<router::AnswerFile> output = router::AnswerFile::Open(flags.output, &disk);
  if (!output.ok()) return output.status();
  if (IsSameFile(in->get(), output->fd())) {
    return absl::InvalidArgumentError("--input and --output are the same file");
  }
  if (absl::Status s = Recover(flags, *output, core); !s.ok()) return s;
  if (core.complete()) {
    if (absl::Status s = output->Sync(); !s.ok()) return s;
    std::cerr << router::SummaryText(core.counts(), core.counts(), 0);
    return router::AllSucceeded(core.counts()) ? kAllSucceeded : kSomeFailed;
  }
  return Answer(flags, version, in->get(), *output, core);
}

}  // namespace flotilla::cli
