#include "router/generation.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/types/text.h"
#include "model/text/tokenizer.h"
#include "router/chat_prompt.h"
#include "router/errors.h"

namespace flotilla::router {

namespace {

OutputOptions OutputOf(const GenerationImpl::Environment& environment, const ApiRequest& api) {
  const auto* conversation = std::get_if<Conversation>(&api.prompt);
  if (conversation == nullptr) return {};
  OutputOptions options = environment.chat_prompt->OutputOf(*conversation);
  options.text_or_calls = static_cast<bool>(api.constraint);
  return options;
}

bool IncludesReasoning(const ApiRequest& api) {
  const auto* conversation = std::get_if<Conversation>(&api.prompt);
  return conversation != nullptr && conversation->include_reasoning;
}

}  // namespace

GenerationImpl::GenerationImpl(const Environment& environment, Identity identity,
                               const ApiRequest& api, TokenizedRequest request,
                               const ModelLimits& limits, std::shared_ptr<IoLoopState> io_loop,
                               GenerationListener* listener)
    : environment_(environment),
      identity_(std::move(identity)),
      limits_(limits),
      io_loop_(std::move(io_loop)),
      start_ns_(environment.clock->NowNs() - api.waited_ns),
      max_tokens_(api.max_tokens),
      default_max_tokens_(api.default_max_tokens),
      truncate_prompt_(api.truncate_prompt_tokens),
      stop_strings_(api.stop),
      named_stops_(api.stop_token_ids.begin(), api.stop_token_ids.end()),
      text_has_stop_(api.include_stop_str_in_output),
      output_(OutputOf(environment, api)),
      includes_reasoning_(IncludesReasoning(api)),
      wanted_(static_cast<std::size_t>(*api.n)),
      scored_(api.best_of.value_or(1) > 1 && !api.use_beam_search),
      background_(api.background),
      parent_span_(api.trace.span),
      listener_(listener),
      request_(std::move(request)) {
  choices_.reserve(request_.sequences);
  // A message of a chat is a text by itself; a completion goes on with the prompt.
  const auto* conversation = std::get_if<Conversation>(&api.prompt);
  const bool begins_text = conversation != nullptr && !conversation->continue_final_message;
  const auto stops = std::make_shared<const StopStrings>(stop_strings_);
  for (std::uint32_t i = 0; i < request_.sequences; ++i) {
    choices_.emplace_back(environment_.tokenizer, api.skip_special_tokens, begins_text, stops)
        .delta.choice = i;
  }
  io_loop_->Add(identity_.id, this);
  environment_.metrics->OnStarted();
}

GenerationImpl::~GenerationImpl() {
  if (done_) return;
  Detach();
  if (!cancelled_) CancelWork(TimeIsUp());
  NotifyEnd(absl::OkStatus(), tracker_ ? tracker_->CountedUsage({}) : Usage{});
}

void GenerationImpl::Detach() {
  done_ = true;
  abandoned_->store(true);
  io_loop_->Remove(identity_.id);
  environment_.registry->Forget(identity_.public_id);
  environment_.metrics->OnEnded();
}

void GenerationImpl::Cancel() {
  if (done_ || cancelled_) return;
  CancelWork(TimeIsUp());
  if (tracker_) return;  // RequestEnd follows
  io_loop_->Run([id = identity_.id](IoLoopState& io_loop) {
    if (GenerationImpl* self = io_loop.Find(id)) self->Finish(absl::OkStatus(), Usage{});
  });
}

void GenerationImpl::Expire() {
  if (done_ || cancelled_) return;
  CancelWork(/*late=*/true);
}

void GenerationImpl::CancelWork(bool late) {
  cancelled_ = true;
  abandoned_->store(true);
  if (late) {
    CountDeadline();
  } else {
    environment_.metrics->OnCancelled(FinishReason::kCancelled);
  }
  if (!tracker_) return;
  for (const CancelRequest& cancel : tracker_->EndAll()) environment_.engine->Cancel(cancel);
}

bool GenerationImpl::TimeIsUp() const {
  const TokenizedRequest& request = tracker_ ? tracker_->request() : request_;
  return request.deadline_ns && environment_.clock->NowNs() >= *request.deadline_ns;
}

void GenerationImpl::CountDeadline() {
  if (std::exchange(missed_deadline_, true)) return;
  if (accepted_) return environment_.metrics->OnCancelled(FinishReason::kDeadline);
  environment_.metrics->OnRefused(absl::DeadlineExceededError("before it was accepted"));
}

absl::Status GenerationImpl::ResolveLength(std::size_t prompt_tokens) {
  if (prompt_tokens == 0) return InvalidField("prompt", "the prompt has no tokens");
  const std::uint32_t context = limits_.max_context;
  const auto exceeded = [&](const std::string& message) {
    return WithField(absl::OutOfRangeError(message), "prompt", kContextLengthExceeded);
  };
  if (prompt_tokens > context) {
    return exceeded(Cat("the prompt has ", prompt_tokens, " tokens; the model's context is ",
                        context, " tokens"));
  }
  const auto rest = context - static_cast<std::uint32_t>(prompt_tokens);
  if (max_tokens_) {
    if (*max_tokens_ > rest) {
      return exceeded(Cat("the prompt has ", prompt_tokens, " tokens and max_tokens is ",
                          *max_tokens_, "; the model's context is ", context, " tokens"));
    }
    request_.stop.max_tokens = static_cast<std::uint32_t>(*max_tokens_);
    return absl::OkStatus();
  }
  if (rest == 0) {
    return exceeded(Cat("the prompt's ", prompt_tokens,
                        " tokens fill the model's context and leave none for the answer"));
  }
  request_.stop.max_tokens = std::min(default_max_tokens_.value_or(rest), rest);
  request_.max_tokens_absent = true;
  return absl::OkStatus();
}

void GenerationImpl::OnEncoded(absl::StatusOr<Encoded> encoded) {
  if (done_ || cancelled_) return;
  absl::Status status = encoded.status();
  if (status.ok() && truncate_prompt_.has_value()) {
    std::vector<TokenId>& prompt = encoded->prompt;
    const auto most = static_cast<std::size_t>(*truncate_prompt_);
    // A vector of its own gives the memory of the rest back.
    if (prompt.size() > most) {
      prompt = std::vector<TokenId>(prompt.end() - *truncate_prompt_, prompt.end());
    }
  }
  if (status.ok()) status = ResolveLength(encoded->prompt.size());
  if (status.ok() && TimeIsUp()) {
    status = absl::DeadlineExceededError("the request's time ran out before it was admitted");
  }
  if (!status.ok()) {
    CountRefusal(status);
    return Finish(std::move(status), Usage{});
  }
  MakeParsers(*encoded);
  request_.prompt = std::move(encoded->prompt);
  request_.sampling.bad_words = std::move(encoded->bad_words);
  request_.sampling.dry_breakers = std::move(encoded->dry_breakers);
  if (encoded->constraint) request_.sampling.constraint = std::move(encoded->constraint);
  request_.sampling.thinking = std::move(encoded->thinking);
  tracker_.emplace(std::move(request_), environment_.max_attempts);
  listener_->OnPrompt({tracker_->request().prompt});
  // The listener may have cancelled in OnPrompt, before there was anything to cancel.
  if (cancelled_) return Finish(absl::OkStatus(), Usage{});
  Submit();
}

void GenerationImpl::Submit() {
  environment_.engine->Submit(tracker_->Submission(), io_loop_);
  for (const CancelRequest& cancel : tracker_->CancelsOfEnded()) {
    environment_.engine->Cancel(cancel);
  }
}

void GenerationImpl::OnEvent(EngineEvent event) {
  if (done_ || !tracker_) return;
  std::visit([this](auto& e) { Handle(std::move(e)); }, event);
}

void GenerationImpl::Handle(const Accepted& event) {
  if (!tracker_->Apply(event)) return;
  accepted_ = true;
  listener_->OnAccepted();
}

void GenerationImpl::Handle(PromptLogprobs event) {
  if (!tracker_->Apply(event) || cancelled_) return;
  listener_->OnPromptScores({.first = event.first, .tokens = std::move(event.tokens)});
}

void GenerationImpl::Handle(TokenEvent event) {
  switch (tracker_->Apply(event)) {
    case RequestTracker::TokenVerdict::kDrop:
      return;
    case RequestTracker::TokenVerdict::kGap: {
      for (const CancelRequest& cancel : tracker_->EndAll()) environment_.engine->Cancel(cancel);
      return Finish(absl::InternalError("the engine lost a token of this request"), Usage{});
    }
    case RequestTracker::TokenVerdict::kNew:
      break;
  }
  CountFirstToken();
  Choice& choice = choices_[event.sequence.value()];
  const TokenId token = event.sampled.token;
  choice.score.Add(event.sampled.logprob);
  choice.delta.tokens.push_back(std::move(event.sampled));
  const bool has_text = text_has_stop_ || !IsStopToken(token);
  const std::string text = has_text ? TextOf(choice, token) : choice.detokenizer.Flush();
  AddText(event.sequence, text);
}

void GenerationImpl::MakeParsers(Encoded& encoded) {
  OutputOptions options = output_;
  options.begins_in_reasoning = encoded.in_reasoning;
  options.argument_types = std::move(encoded.argument_types);
  for (Choice& choice : choices_) choice.parser = MakeOutputParser(options);
}

std::string GenerationImpl::TextOf(Choice& choice, TokenId token) {
  const bool is_marker =
      choice.parser != nullptr && environment_.chat_prompt->IsMarkerToken(token, output_);
  if (!is_marker) return choice.detokenizer.Push(token);
  std::string text = choice.detokenizer.Flush();
  return text += environment_.tokenizer->TokenBytes(token);
}

void GenerationImpl::Deliver(SequenceIndex sequence, std::string_view text) {
  Choice& choice = choices_[sequence.value()];
  if (choice.parser == nullptr) {
    choice.delta.text += text;
    return;
  }
  std::vector<OutputEvent> events;
  choice.parser->Push(text, events);
  DeliverEvents(sequence, std::move(events));
}

void GenerationImpl::DeliverEvents(SequenceIndex sequence, std::vector<OutputEvent> events) {
  Choice& choice = choices_[sequence.value()];
  std::vector<ToolCallDelta>& calls = choice.delta.tool_calls;
  for (OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kContent:
        choice.delta.text += event.text;
        break;
      case OutputEvent::Kind::kReasoning:
        if (includes_reasoning_) choice.delta.reasoning += event.text;
        break;
      case OutputEvent::Kind::kCall:
        choice.has_tool_calls = true;
        calls.push_back(
            {.index = event.call,
             .id = ToolCallId(output_.tools, identity_.public_id, sequence.value(), event.call),
             .name = std::move(event.text)});
        break;
      case OutputEvent::Kind::kArguments:
        if (calls.empty() || calls.back().index != event.call) {
          calls.push_back({.index = event.call});
        }
        calls.back().arguments += event.text;
        break;
    }
  }
}

bool GenerationImpl::AddText(SequenceIndex sequence, std::string_view text) {
  Choice& choice = choices_[sequence.value()];
  std::optional<std::string> stop;
  if (tracker_->tokens(sequence).size() <= tracker_->request().stop.min_tokens) {
    Deliver(sequence, text);  // too early for a stop string, or a part of one
  } else {
    const StopMatcher::Result result = choice.stops.Append(text);
    Deliver(sequence, result.text);
    if (result.stop.has_value()) stop = stop_strings_[*result.stop];
    if (stop.has_value() && text_has_stop_) Deliver(sequence, *stop);
  }
  // A beam search ends by itself, and what follows the call is dropped.
  const bool called = choice.parser != nullptr && choice.parser->finished() &&
                      !tracker_->request().beam.has_value();
  if (!stop.has_value() && !called) return false;
  // The token that completed the stop string or the call is the last that counts.
  const auto keep = static_cast<std::uint32_t>(tracker_->tokens(sequence).size());
  if (auto cancel = tracker_->EndSequence(sequence, keep)) environment_.engine->Cancel(*cancel);
  if (called) stop.reset();
  EndChoice(sequence, {.reason = FinishReason::kStop, .stop_string = std::move(stop)});
  return true;
}

void GenerationImpl::Handle(const SequenceEnd& event) {
  if (!tracker_->Apply(event)) return;
  Choice& choice = choices_[event.sequence.value()];
  if (AddText(event.sequence, choice.detokenizer.Flush())) return;
  Deliver(event.sequence, choice.stops.Flush());
  ChoiceEnd end{.reason = event.reason};
  const std::vector<TokenId>& tokens = tracker_->tokens(event.sequence);
  if (event.reason == FinishReason::kStop && !tokens.empty() && IsStopToken(tokens.back())) {
    end.stop_token = tokens.back();
    end.is_end_token =
        std::find(named_stops_.begin(), named_stops_.end(), tokens.back()) == named_stops_.end();
  }
  if (event.reason == FinishReason::kDeadline) CountDeadline();
  if (tracker_->request().beam && !tokens.empty()) end.score = event.score;
  EndChoice(event.sequence, std::move(end));
}

void GenerationImpl::Handle(const RequestEnd& event) {
  switch (tracker_->Apply(event)) {
    case RequestTracker::EndVerdict::kDrop:
      return;
    case RequestTracker::EndVerdict::kReplay:
      environment_.metrics->OnReplayed();
      return Submit();
    case RequestTracker::EndVerdict::kFinal:
      break;
  }
  // If all choices are whole, the engine's status does not matter: the engine may have been lost
  // before it learned of a stop string.
  absl::Status status = AllChoicesAreWhole() ? absl::OkStatus() : event.status;
  if (tracker_->exhausted()) {
    status = absl::UnavailableError("no worker group could finish this request");
  }
  if (!status.ok() && event.retry_after_ms > 0) {
    status = WithRetryAfter(std::move(status), event.retry_after_ms);
  }
  if (!cancelled_) CountRefusal(status);
  Finish(std::move(status), event.usage);
}

void GenerationImpl::CountRefusal(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) return CountDeadline();
  const bool late_refusal = absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  if (late_refusal || (!tracker_ && !status.ok())) {
    environment_.metrics->OnRefused(status, environment_.engine->Load().draining);
  }
}

bool GenerationImpl::AllChoicesAreWhole() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const Choice& choice) {
    return choice.end.has_value() && (choice.end->reason == FinishReason::kStop ||
                                      choice.end->reason == FinishReason::kLength);
  });
}

void GenerationImpl::Flush() {
  if (done_ || cancelled_ || HoldsBack()) return;
  for (Choice& choice : choices_) FlushChoice(choice);
}

void GenerationImpl::FlushChoice(Choice& choice) {
  Delta& delta = choice.delta;
  if (delta.tokens.empty() && delta.text.empty() && delta.reasoning.empty() &&
      delta.tool_calls.empty()) {
    return;
  }
  if (!delta.tokens.empty()) {
    const std::int64_t now_ns = environment_.clock->NowNs();
    const auto count = static_cast<std::int64_t>(delta.tokens.size());
    if (choice.last_token_ns != 0 && !background_) {
      environment_.metrics->OnInterToken((now_ns - choice.last_token_ns) / count);
    }
    choice.last_token_ns = now_ns;
  }
  Delta out = std::exchange(delta, {.choice = delta.choice});
  listener_->OnDelta(std::move(out));
}

void GenerationImpl::EndChoice(SequenceIndex sequence, ChoiceEnd end) {
  Choice& choice = choices_[sequence.value()];
  if (choice.end) return;
  end.choice = sequence.value();
  if (choice.parser != nullptr) {
    std::vector<OutputEvent> events;
    choice.parser->Finish(events);
    DeliverEvents(sequence, std::move(events));
  }
  end.has_tool_calls = choice.has_tool_calls;
  if (scored_ && choice.score.tokens() > 0) end.score = static_cast<float>(choice.score.Get());
  choice.end = std::move(end);
  if (HoldsBack()) return;
  if (!cancelled_) FlushChoice(choice);
  listener_->OnChoiceEnd(*choice.end);
}

void GenerationImpl::HandOutBest() {
  std::vector<double> scores;
  for (const Choice& choice : choices_) scores.push_back(choice.score.Get());
  std::uint32_t rank = 0;
  for (const std::uint32_t best : BestOf(scores, wanted_)) {
    Choice& choice = choices_[best];
    choice.delta.choice = rank;
    choice.end->choice = rank;
    FlushChoice(choice);
    listener_->OnChoiceEnd(*choice.end);
    ++rank;
  }
}

void GenerationImpl::Finish(absl::Status status, const Usage& usage) {
  if (done_) return;
  for (std::uint32_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].end) continue;
    if (cancelled_) {
      EndChoice(SequenceIndex(i), {.reason = FinishReason::kCancelled});
    } else if (status.ok()) {
      status = absl::InternalError("the engine ended the request before its choices");
    }
  }
  // A cancelled answer, too, is made of whole choices: their tokens are counted.
  if (HoldsBack() && (cancelled_ || status.ok())) HandOutBest();
  Detach();
  GenerationEnd end;
  end.status = cancelled_ ? absl::OkStatus() : std::move(status);
  if (tracker_) {
    end.usage = tracker_->CountedUsage(usage);
    end.attempts = tracker_->attempts();
    environment_.metrics->OnFinished(environment_.clock->NowNs() - start_ns_,
                                     end.usage.prompt_tokens, end.usage.output_tokens);
  }
  NotifyEnd(end.status, end.usage);
  listener_->OnDone(end);  // may destroy this object
}

void GenerationImpl::NotifyEnd(const absl::Status& status, const Usage& usage) const {
  if (!environment_.on_over) return;
  using Outcome = RequestOutcome;
  const TokenizedRequest& request = tracker_ ? tracker_->request() : request_;
  environment_.on_over({.id = identity_.id,
                        .public_id = identity_.public_id,
                        .label = request.label,
                        .model = limits_.id,
                        .tenant = request.tenant,
                        .background = background_,
                        .trace = request.trace,
                        .parent_span = parent_span_,
                        .outcome = missed_deadline_ ? Outcome::kDeadline
                                   : !status.ok() ? accepted_ ? Outcome::kFailed : Outcome::kRefused
                                   : cancelled_   ? Outcome::kCancelled
                                                  : Outcome::kFinished,
                        .status = status,
                        .usage = usage,
                        .attempts = tracker_ ? tracker_->attempts() : 0,
                        .first_token_ns = first_token_ns_,
                        .elapsed_ns = environment_.clock->NowNs() - start_ns_});
}

void GenerationImpl::CountFirstToken() {
  if (first_token_ns_.has_value()) return;
  first_token_ns_ = environment_.clock->NowNs() - start_ns_;
  if (!background_) environment_.metrics->OnFirstToken(*first_token_ns_);
}

bool GenerationImpl::IsStopToken(TokenId token) const {
  const std::vector<TokenId>& stops = tracker_->request().stop.stop_tokens;
  return std::binary_search(stops.begin(), stops.end(), token);
}

}  // namespace flotilla::router
