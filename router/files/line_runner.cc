#include "router/files/line_runner.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/types/text.h"
#include "router/files/file_io.h"
#include "router/http/api_error.h"

namespace flotilla::router {
namespace {

// Answers wait this long for a sync at most, so that many of them share one.
constexpr std::int64_t kSyncNs = 100'000'000;

std::int64_t RetryAfterMs(const HttpHeaders& headers) {
  std::int64_t ms = 0;
  for (const auto& [name, value] : headers) {
    if (name == "retry-after-ms" && !absl::SimpleAtoi(value, &ms)) ms = 0;
  }
  return ms;
}

}  // namespace

// A line that has started, and the reply to it. No line asks for a stream, so an answer comes as a
// whole.
class LineRunner::Flight final : public HttpReply {
 public:
  Flight(LineRunner* runner, std::size_t line, BatchRequest request)
      : runner_(*runner), line_(line), request_(std::move(request)) {}

  const BatchRequest& request() const { return request_; }
  // Owns the work until the flight is gone.
  void Hold(std::unique_ptr<HttpExchange> exchange) { exchange_ = std::move(exchange); }

  void Send(int status, std::string_view, std::string body, const HttpHeaders& headers) override {
    if (status_ != 0) return;  // what follows it has failed
    body_ = std::move(body);
    retry_after_ms_ = RetryAfterMs(headers);
    runner_.ended_.push_back(line_);
    status_ = status;
    if (runner_.parts_.on_reply) runner_.parts_.on_reply();
  }
  void Begin(int, std::string_view, const HttpHeaders&) override {}
  void Write(std::string_view) override {}
  void End() override {}
  void Fail() override {
    Send(503, "", ErrorJson(absl::UnavailableError("memory has run out")), {});
  }

  int status() const { return status_; }
  const std::string& body() const { return body_; }
  std::int64_t retry_after_ms() const { return retry_after_ms_; }

 private:
  LineRunner& runner_;
  const std::size_t line_;
  const BatchRequest request_;
  int status_ = 0;
  std::string body_;
  std::int64_t retry_after_ms_ = 0;
  std::unique_ptr<HttpExchange> exchange_;  // last: it uses the rest
};

LineRunner::LineRunner(Parts parts)
    : parts_(std::move(parts)),
      unsynced_ns_(parts_.clock->NowNs()) {}  // an earlier process may have ended before it synced

LineRunner::~LineRunner() = default;

void LineRunner::Drop() { flights_.clear(); }

absl::Status LineRunner::Step() {
  if (absl::Status s = TakeEnded(); !s.ok()) return s;
  if (absl::Status s = StartLines(); !s.ok()) return s;
  if (!unsynced_ns_.has_value()) return absl::OkStatus();
  const bool due = parts_.clock->NowNs() >= *unsynced_ns_ + kSyncNs;
  return due || parts_.core->over() ? Sync() : absl::OkStatus();
}

std::int64_t LineRunner::due_ns(std::int64_t now_ns, std::int64_t rest_ns) const {
  // Lines that are wrong have ended at once.
  std::int64_t due_ns = now_ns + (ended_.empty() ? rest_ns : 0);
  if (unsynced_ns_.has_value()) due_ns = std::min(due_ns, *unsynced_ns_ + kSyncNs);
  return std::min(due_ns, parts_.core->resume_ns(now_ns).value_or(due_ns));
}

absl::Status LineRunner::Sync() {
  unsynced_ns_ = std::nullopt;
  if (absl::Status s = parts_.output->Sync(); !s.ok()) return s;
  return parts_.errors == parts_.output ? absl::OkStatus() : parts_.errors->Sync();
}

absl::Status LineRunner::StartLines() {
  const std::int64_t now_ns = parts_.clock->NowNs();
  while (const std::optional<std::size_t> line = parts_.core->Next(now_ns)) {
    absl::StatusOr<BatchRequest> request = Read(*line);
    if (!request.ok()) return request.status();
    auto flight = std::make_unique<Flight>(this, *line, *std::move(request));
    Send(*line, *(flights_[*line] = std::move(flight)));
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchRequest> LineRunner::Read(std::size_t line) {
  const LinePlace place = parts_.core->place(line);
  std::string text(place.bytes, '\0');
  if (ReadAt(parts_.input, place.begin, text)) {
    absl::StatusOr<BatchRequest> request = ParseBatchRequest(text);
    if (request.ok() && request->custom_id == parts_.core->custom_id(line)) return request;
  }
  return absl::AbortedError(
      Cat("line ", line + 1, " of the input has changed since the run began"));
}

void LineRunner::Send(std::size_t line, Flight& flight) {
  HttpRequest request;
  request.method = "POST";
  request.path = flight.request().url;
  request.tenant = parts_.tenant;
  request.background = parts_.background;
  request.is_line = true;
  // The service makes a request's seed of its client's name, unless the request has one. So the
  // answer depends neither on when it is computed, nor on how often the batch is run.
  request.request_id = parts_.core->custom_id(line);
  request.client_named = true;
  request.came = std::chrono::steady_clock::now();
  request.body = flight.request().body;
  flight.Hold(parts_.handler->Handle(std::move(request), flight));
}

absl::Status LineRunner::TakeEnded() {
  BatchCore& core = *parts_.core;
  std::string output, errors;
  std::vector<std::pair<std::size_t, AnswerSummary>> answered;
  for (const std::size_t line : std::exchange(ended_, {})) {
    Flight& reply = *flights_.at(line);
    const std::int64_t now_ns = parts_.clock->NowNs();
    const bool may_come = reply.status() == 404 && now_ns < parts_.models_due_ns;
    const int status = may_come ? 503 : reply.status();
    const bool refused = status == 429 || status == 503;
    if (refused && core.OnRefused(line, status, reply.retry_after_ms(), now_ns)) {
      flights_.erase(line);  // it is read again
      continue;
    }
    const std::string text =
        BatchAnswerLine(line + 1, core.custom_id(line), reply.status(), reply.body());
    absl::StatusOr<AnswerSummary> summary = ReadBatchAnswer(text);
    if (!summary.ok()) {
      return absl::InternalError(Cat("line ", line + 1, " was answered: ", text.substr(0, 200)));
    }
    (reply.status() == 200 ? output : errors) += text;
    answered.emplace_back(line, *std::move(summary));
  }
  if (absl::Status s = Write(output, errors); !s.ok()) return s;
  for (const auto& [line, summary] : answered) {
    core.OnAnswered(line, summary);
    flights_.erase(line);
  }
  return absl::OkStatus();
}

absl::Status LineRunner::Write(const std::string& output, const std::string& errors) {
  if (output.empty() && errors.empty()) return absl::OkStatus();
  if (parts_.reserve) {
    if (absl::Status s = parts_.reserve(output.size() + errors.size()); !s.ok()) return s;
  }
  if (!unsynced_ns_.has_value()) unsynced_ns_ = parts_.clock->NowNs();
  if (absl::Status s = parts_.output->Append(output); !s.ok()) return s;
  return parts_.errors->Append(errors);
}

}  // namespace flotilla::router
