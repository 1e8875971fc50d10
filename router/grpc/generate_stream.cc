#include "router/grpc/generate_stream.h"

#include <utility>

namespace flotilla::router {
namespace {

Outbox::Options OutboxOptions(InferenceService* service, const absl::StatusOr<ApiRequest>& call) {
  Outbox::Options options;
  if (call.ok()) {
    options.token_bytes = [service, model = call->model](TokenId token) {
      return service->TokenBytes(model, token);
    };
    options.token_ids = call->return_token_ids;
    options.logprobs = call->logprobs.has_value();
  }
  return options;
}

// Whether a call that began at `begun` and was cut off now was cut off by its deadline. A client
// ends its call by its own clock. The timeout that it sent is rounded up, by 1 % at most (gRPC's
// `grpc-timeout` has two digits or more). The 20 ms besides are for the time on the network.
bool EndedByDeadline(const grpc::ServerContext& context, absl::Time begun) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return false;
  const absl::Time end = absl::FromChrono(deadline);
  return absl::Now() >= end - (end - begun) / 100 - absl::Milliseconds(20);
}

// The status of the call, once no more events come.
grpc::Status CallStatus(const GenerationEnd& end, bool missed_deadline) {
  if (end.status.ok() && missed_deadline) {
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the request's deadline passed");
  }
  return ToGrpcStatus(end.status);
}

}  // namespace

GenerateStream::GenerateStream(std::unique_ptr<Call> call, const Shared& shared,
                               absl::StatusOr<ApiRequest> generate)
    : ServerWriter(std::move(call)),
      shared_(shared),
      return_token_ids_(generate.ok() && generate->return_token_ids),
      outbox_(OutboxOptions(shared.service, generate)) {
  // A std::function must be copyable, but a request is not.
  auto shared_call = std::make_shared<absl::StatusOr<ApiRequest>>(std::move(generate));
  shared_.thread->Post([this, shared_call] { Begin(std::move(*shared_call)); });
}

GenerateStream::~GenerateStream() {
  if (stall_timer_.has_value()) shared_.thread->Cancel(*stall_timer_);
  shared_.unread->Set(this, 0, taken_);
}

void GenerateStream::OnWriteDone(bool ok) {
  shared_.thread->Post([this, ok] {
    writing_ = false;
    in_flight_bytes_ = 0;
    taken_ = SteadyNow();
    if (!ok) Abandon();
    Flush();
  });
}

void GenerateStream::OnCancel() {
  shared_.thread->Post([this] {
    Abandon();
    Flush();
  });
}

void GenerateStream::OnDone() {
  shared_.thread->Post([this] { delete this; });
}

void GenerateStream::OnPrompt(const PromptInfo& prompt) {
  accepted_.set_prompt_tokens(prompt.tokens.size());
  if (return_token_ids_) {
    accepted_.mutable_prompt_token_ids()->Assign(prompt.tokens.begin(), prompt.tokens.end());
  }
}

void GenerateStream::OnAccepted() {
  accepted_.set_id(generation_->id());
  outbox_.Add(std::move(accepted_));
  ScheduleFlush();
}

void GenerateStream::OnPromptScores(PromptScores scores) {
  outbox_.Add(scores);
  ScheduleFlush();
}

void GenerateStream::OnDelta(Delta delta) {
  outbox_.Add(delta);
  ScheduleFlush();
}

void GenerateStream::OnChoiceEnd(const ChoiceEnd& end) {
  missed_deadline_ |= end.reason == FinishReason::kDeadline;
  outbox_.Add(end);
  ScheduleFlush();
}

void GenerateStream::OnDone(const GenerationEnd& end) {
  if (end.status.ok()) outbox_.Add(end.usage);
  final_status_ = CallStatus(end, missed_deadline_);
  generation_.reset();
  ScheduleFlush();
}

void GenerateStream::Begin(absl::StatusOr<ApiRequest> call) {
  auto request = call.ok() ? shared_.service->Validate(*std::move(call)) : call.status();
  auto generation = request.ok()
                        ? shared_.service->Start(*std::move(request), *shared_.io_loop, this)
                        : request.status();
  if (generation.ok()) {
    generation_ = *std::move(generation);
  } else {
    final_status_ = ToGrpcStatus(generation.status());
    Flush();
  }
}

void GenerateStream::Abandon() {
  if (generation_ != nullptr && EndedByDeadline(context(), begun_)) generation_->Expire();
  generation_.reset();
  outbox_.Clear();
  if (!final_status_.has_value()) final_status_ = grpc::Status::CANCELLED;
}

void GenerateStream::ScheduleFlush() {
  WatchStall();
  if (writing_ || flush_scheduled_) return;
  flush_scheduled_ = true;
  shared_.thread->Post([this] {
    flush_scheduled_ = false;
    Flush();
  });
}

void GenerateStream::Flush() {
  if (writing_ || finished_) return WatchStall();
  finished_ = final_status_.has_value() && outbox_.size() <= 1;
  if (!outbox_.empty()) {
    const std::size_t waiting = outbox_.bytes();
    const v1::GenerateResponse message = outbox_.Take();
    in_flight_bytes_ = waiting - outbox_.bytes();
    writing_ = !finished_;
    if (finished_) {
      StartWriteAndFinish(message, *final_status_);
    } else {
      StartWrite(message);
    }
  } else if (finished_) {
    Finish(*final_status_);
  }
  WatchStall();
}

void GenerateStream::CountUnread() {
  const std::size_t bytes = outbox_.bytes() + in_flight_bytes_;
  shared_.unread->Set(this, cut_ || bytes <= shared_.buffer_bytes ? 0 : bytes, taken_);
}

void GenerateStream::WatchStall() {
  CountUnread();
  while (GenerateStream* const worst = shared_.unread->Worst(SteadyNow())) {
    worst->cut_ = true;
    worst->CountUnread();
    worst->context().TryCancel();
  }
  const bool over = outbox_.bytes() + in_flight_bytes_ > shared_.buffer_bytes;
  if (over && !stall_timer_.has_value()) {
    stall_timer_ = shared_.thread->After(shared_.stall_timeout, [this] {
      stall_timer_.reset();
      context().TryCancel();
    });
  } else if (!over && stall_timer_.has_value()) {
    shared_.thread->Cancel(*std::exchange(stall_timer_, std::nullopt));
  }
}

}  // namespace flotilla::router
