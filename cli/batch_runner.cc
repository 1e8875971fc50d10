#include "cli/batch_runner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "router/batch/batch_line.h"
#include "router/http/api_error.h"
#include "router/http/api_handler.h"

namespace flotilla::cli {
namespace {

// Answers wait this long for a sync at most, so that many of them share one.
constexpr std::int64_t kSyncNs = 100'000'000;

std::int64_t RetryAfterMs(const router::HttpHeaders& headers) {
  std::int64_t ms = 0;
  for (const auto& [name, value] : headers) {
    if (name == "retry-after-ms" && !absl::SimpleAtoi(value, &ms)) ms = 0;
  }
  return ms;
}

}  // namespace

// A line that has started, and the reply to it. No line asks for a stream, so an answer comes as a
// whole.
class BatchRunner::Flight final : public router::HttpReply {
 public:
  Flight(std::size_t line, router::BatchRequest request, std::vector<std::size_t>* ended)
      : line_(line), request_(std::move(request)), ended_(*ended) {}

  const router::BatchRequest& request() const { return request_; }
  // Owns the work until the line starts again, or is gone.
  void Hold(std::unique_ptr<router::HttpExchange> exchange) { exchange_ = std::move(exchange); }

  void Send(int status, std::string_view, std::string body,
            const router::HttpHeaders& headers) override {
    status_ = status;
    body_ = std::move(body);
    retry_after_ms_ = RetryAfterMs(headers);
    ended_.push_back(line_);
  }
  void Begin(int, std::string_view, const router::HttpHeaders&) override {}
  void Write(std::string_view) override {}
  void End() override {}
  void Fail() override {
    Send(503, "", router::ErrorJson(absl::UnavailableError("memory has run out")), {});
  }

  int status() const { return status_; }
  const std::string& body() const { return body_; }
  std::int64_t retry_after_ms() const { return retry_after_ms_; }

 private:
  const std::size_t line_;
  const router::BatchRequest request_;
  std::vector<std::size_t>& ended_;
  int status_ = 0;
  std::string body_;
  std::int64_t retry_after_ms_ = 0;
  std::unique_ptr<router::HttpExchange> exchange_;  // last: it uses the rest
};

BatchRunner::BatchRunner(Parts parts)
    : parts_(std::move(parts)),
      io_loop_(parts_.service->OpenIoLoop(this)),
      handler_(router::MakeApiHandler({}, parts_.service, io_loop_.get())) {}

BatchRunner::~BatchRunner() = default;

void BatchRunner::Post(std::function<void()> work) {
  {
    absl::MutexLock lock(&mu_);
    posted_.push_back(std::move(work));
    if (posted_.size() > 1) return;  // the runner was woken for the first
  }
  parts_.signals->Wake();
}

void BatchRunner::RunPosted() {
  std::deque<std::function<void()>> work;
  {
    absl::MutexLock lock(&mu_);
    work.swap(posted_);
  }
  for (const std::function<void()>& one : work) one();
}

absl::Status BatchRunner::Run() {
  router::BatchCore& core = *parts_.core;
  bool goes_on = true;
  unsynced_ns_ = parts_.clock->NowNs();  // an earlier run may have ended before it synced
  OnEvent(parts_.signals->Wait(absl::ZeroDuration()));  // before any line starts
  while (goes_on) {
    RunPosted();
    if (absl::Status s = TakeEnded(); !s.ok()) return s;
    if (absl::Status s = StartLines(); !s.ok()) return s;
    if (absl::Status s = SyncIfDue(core.over()); !s.ok()) return s;
    parts_.on_progress();
    goes_on = !core.over() && Wait();
  }
  return SyncIfDue(/*now=*/true);
}

absl::Status BatchRunner::StartLines() {
  const std::int64_t now_ns = parts_.clock->NowNs();
  while (const std::optional<std::size_t> line = parts_.core->Next(now_ns)) {
    std::unique_ptr<Flight>& flight = flights_[*line];
    if (flight == nullptr) {
      absl::StatusOr<router::BatchRequest> request = Read(*line);
      if (!request.ok()) return request.status();
      flight = std::make_unique<Flight>(*line, *std::move(request), &ended_);
    }
    Send(*line, *flight);
  }
  return absl::OkStatus();
}

absl::StatusOr<router::BatchRequest> BatchRunner::Read(std::size_t line) {
  absl::StatusOr<std::optional<TextLine>> text = std::nullopt;
  for (; read_ <= line; ++read_) {
    text = parts_.input->Next();
    if (!text.ok()) return text.status();
    if (!text->has_value()) break;
  }
  if (text->has_value()) {
    absl::StatusOr<router::BatchRequest> request = router::ParseBatchRequest((*text)->text);
    if (request.ok() && request->custom_id == parts_.core->custom_id(line)) return request;
  }
  return absl::AbortedError(
      absl::StrCat("line ", line + 1, " of the input has changed since the run began"));
}

void BatchRunner::Send(std::size_t line, Flight& flight) {
  router::HttpRequest request;
  request.method = "POST";
  request.path = flight.request().url;
  // The service makes a request's seed of its client's name, unless the request has one. So the
  // answer depends neither on when it is computed, nor on how often the batch is run.
  request.request_id = parts_.core->custom_id(line);
  request.client_named = true;
  request.came = std::chrono::steady_clock::now();
  request.body = flight.request().body;
  flight.Hold(handler_->Handle(std::move(request), flight));
}

absl::Status BatchRunner::TakeEnded() {
  router::BatchCore& core = *parts_.core;
  std::string lines;
  for (const std::size_t line : std::exchange(ended_, {})) {
    Flight& reply = *flights_.at(line);
    const bool refused = reply.status() == 429 || reply.status() == 503;
    if (refused &&
        core.OnRefused(line, reply.status(), reply.retry_after_ms(), parts_.clock->NowNs())) {
      reply.Hold(nullptr);
      continue;
    }
    const std::string text =
        router::BatchAnswerLine(line + 1, core.custom_id(line), reply.status(), reply.body());
    const absl::StatusOr<router::AnswerSummary> summary = router::ReadBatchAnswer(text);
    if (!summary.ok())
      return absl::InternalError(
          absl::StrCat("line ", line + 1, " was answered: ", text.substr(0, 200)));
    lines += text;
    core.OnAnswered(line, *summary);
    flights_.erase(line);
  }
  if (lines.empty()) return absl::OkStatus();
  if (!unsynced_ns_.has_value()) unsynced_ns_ = parts_.clock->NowNs();
  return parts_.output->Append(lines);
}

absl::Status BatchRunner::SyncIfDue(bool now) {
  if (!unsynced_ns_.has_value()) return absl::OkStatus();
  if (!now && parts_.clock->NowNs() < *unsynced_ns_ + kSyncNs) return absl::OkStatus();
  unsynced_ns_ = std::nullopt;
  return parts_.output->Sync();
}

bool BatchRunner::Wait() {
  const std::int64_t now_ns = parts_.clock->NowNs();
  // Lines that are wrong have ended at once.
  std::int64_t until_ns = now_ns + (ended_.empty() ? parts_.progress_ns : 0);
  if (unsynced_ns_.has_value()) until_ns = std::min(until_ns, *unsynced_ns_ + kSyncNs);
  until_ns = std::min(until_ns, parts_.core->resume_ns(now_ns).value_or(until_ns));
  return OnEvent(parts_.signals->Wait(absl::Nanoseconds(until_ns - now_ns)));
}

bool BatchRunner::OnEvent(Signals::Event event) {
  if (event != Signals::Event::kStop) return true;
  if (std::exchange(stopping_, true)) return false;
  parts_.core->Stop();
  parts_.on_stopping();
  return true;
}

}  // namespace flotilla::cli
