#include "router/http/openai_exchange.h"

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "common/types/text.h"
#include "router/errors.h"
#include "router/http/api_error.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

constexpr char kIgnoredHeader[] = "x-flotilla-ignored-fields";

// Returns the names as a header's value. Other characters than printable ones become ?, and a
// list of more than 1,000 bytes is cut.
std::string HeaderText(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (text.size() > 1000) return text + ", ...";
    if (!text.empty()) text += ", ";
    for (char c : name) text.push_back(c > 0x20 && c < 0x7f ? c : '?');
  }
  return text;
}

}  // namespace

absl::StatusOr<OpenAiBody<GenerateRequest>> Validate(OpenAiBody<ApiRequest> body,
                                                     const InferenceService& service) {
  OpenAiBody<GenerateRequest> valid{.form = std::move(body.form), .prompts = {}};
  valid.prompts.reserve(body.prompts.size());
  for (ApiRequest& prompt : body.prompts) {
    absl::StatusOr<GenerateRequest> checked = service.Validate(std::move(prompt));
    if (!checked.ok()) return checked.status();
    valid.prompts.push_back(*std::move(checked));
  }
  return valid;
}

std::unique_ptr<HttpExchange> OpenAiExchange::Start(OpenAiBody<GenerateRequest> body,
                                                    std::int64_t now_s, InferenceService& service,
                                                    IoLoop& io_loop, HttpReply& reply) {
  std::unique_ptr<OpenAiExchange> exchange(
      new OpenAiExchange(std::move(body.form), service, reply));
  absl::Status status = exchange->StartAll(std::move(body.prompts), now_s, io_loop);
  if (!status.ok()) {
    exchange->over_ = true;
    SendError(status, reply);
    return nullptr;
  }
  return exchange;
}

absl::Status OpenAiExchange::StartAll(std::vector<GenerateRequest> prompts, std::int64_t now_s,
                                      IoLoop& io_loop) {
  model_ = prompts.front().api().model;
  const auto count = static_cast<std::uint32_t>(prompts.size());
  n_ = static_cast<std::uint32_t>(*prompts.front().api().n);
  waits_ = !prompts.front().api().timeout_absent;
  return_token_ids_ = prompts.front().api().return_token_ids;
  for (std::uint32_t i = 0; i < count; ++i) {
    prompts_.push_back(std::make_unique<Prompt>(this, i));
    absl::Status status = prompts_.back()->Start(std::move(prompts[i]), service_, io_loop);
    if (!status.ok()) return status;
  }
  running_ = count;
  if (!form_.ignored.empty()) headers_.push_back({kIgnoredHeader, HeaderText(form_.ignored)});
  answer_ = std::make_unique<OpenAiAnswer>(
      OpenAiAnswer::Header{.id = prompts_.front()->id(),
                           .model = model_,
                           .created_s = now_s,
                           .form = form_,
                           .return_token_ids = return_token_ids_,
                           .prompts = count,
                           .n = n_},
      [this](TokenId token) { return service_.TokenBytes(model_, token); });
  return absl::OkStatus();
}

template <class Work>
void OpenAiExchange::Guarded(Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    over_ = true;
    reply_.Fail();
  }
}

absl::Status OpenAiExchange::Prompt::Start(GenerateRequest request, InferenceService& service,
                                           IoLoop& io_loop) {
  const auto* text = std::get_if<std::string>(&request.api().prompt);
  const bool is_whole = !request.api().truncate_prompt_tokens.has_value();
  if (exchange_->form_.echo && text != nullptr && is_whole) text_ = *text;
  auto generation = service.Start(std::move(request), io_loop, this);
  if (!generation.ok()) return generation.status();
  generation_ = *std::move(generation);
  return absl::OkStatus();
}

void OpenAiExchange::Prompt::OnPrompt(const PromptInfo& prompt) {
  exchange_->Guarded([&] {
    if (exchange_->over_) return generation_->Cancel();
    if (!exchange_->Reserve(prompt.tokens.size())) return generation_->Cancel();
    if (exchange_->form_.echo && text_.empty()) {
      std::string bytes;
      for (TokenId token : prompt.tokens) {
        bytes += exchange_->service_.TokenBytes(exchange_->model_, token);
      }
      text_ = RepairUtf8(bytes);
    }
    if (!exchange_->ReserveEcho(text_.size(), prompt.tokens.size())) return generation_->Cancel();
    exchange_->answer_->Prompt(index_, prompt.tokens, text_);
  });
}

void OpenAiExchange::Prompt::OnAccepted() {
  exchange_->Guarded([&] {
    if (exchange_->over_ || exchange_->waits_) return;
    Open();
    exchange_->Write();
  });
}

void OpenAiExchange::Prompt::Open() {
  exchange_->Begin();
  if (!std::exchange(open_, true)) exchange_->answer_->Start(index_, exchange_->out_);
}

void OpenAiExchange::Prompt::OnPromptScores(::flotilla::router::PromptScores scores) {
  exchange_->Guarded([&] { exchange_->answer_->PromptScores(index_, scores.tokens); });
}

void OpenAiExchange::Prompt::OnDelta(Delta delta) {
  exchange_->Guarded([&] {
    if (exchange_->over_) return;
    Open();
    exchange_->answer_->Add(index_, delta, exchange_->out_);
    exchange_->Write();
  });
}

void OpenAiExchange::Prompt::OnChoiceEnd(const ChoiceEnd& end) {
  exchange_->Guarded([&] {
    if (exchange_->over_ || end.reason == FinishReason::kError) return;
    // If every choice ends so, the status of OnDone is the whole answer.
    if (end.reason == FinishReason::kDeadline && exchange_->form_.stream && !exchange_->begun_) {
      exchange_->late_.emplace_back(index_, end);
      return;
    }
    Finish(end);
    exchange_->Write();
  });
}

void OpenAiExchange::Prompt::Finish(const ChoiceEnd& end) {
  Open();
  exchange_->answer_->Finish(index_, end, exchange_->out_);
}

void OpenAiExchange::Prompt::OnDone(const GenerationEnd& end) {
  exchange_->Guarded([&] {
    if (exchange_->over_) return;
    if (!end.status.ok()) return exchange_->Fail(end.status);
    exchange_->answer_->AddUsage(end.usage);
    if (--exchange_->running_ == 0) exchange_->Complete();
  });
}

bool OpenAiExchange::Reserve(std::size_t prompt_tokens) {
  std::size_t each = 0;  // for a token of the prompt
  for (const std::int32_t top : {form_.prompt_top, form_.echo_top}) {
    if (top != LogprobSpec::kOff) each += n_ * (1 + static_cast<std::size_t>(top));
  }
  prompt_logprobs_ += prompt_tokens * each;
  if (prompt_logprobs_ <= kMaxPromptLogprobs) return true;
  const char* const field = form_.prompt_top != LogprobSpec::kOff ? "prompt_logprobs" : "logprobs";
  Fail(InvalidField(field, Cat(field, ": the answer would have more than ", kMaxPromptLogprobs,
                               " log-probabilities of prompt tokens; ask for fewer alternatives, "
                               "choices or prompts")));
  return false;
}

bool OpenAiExchange::ReserveEcho(std::size_t text_bytes, std::size_t tokens) {
  std::size_t each = 0;  // for a choice
  if (form_.echo) each += text_bytes;
  if (return_token_ids_) each += 8 * tokens;
  repeated_ += n_ * each;
  if (n_ == 1 || repeated_ <= kMaxRepeatedBytes) return true;
  const char* const field = form_.echo ? "echo" : "return_token_ids";
  Fail(InvalidField(field, Cat(field, ": the answer would repeat the prompts in more than ",
                               kMaxRepeatedBytes, " bytes; ask for fewer choices or prompts")));
  return false;
}

void OpenAiExchange::Begin() {
  if (!form_.stream || std::exchange(begun_, true)) return;
  HttpHeaders headers = headers_;
  headers.push_back({"cache-control", "no-cache"});
  headers.push_back({"x-accel-buffering", "no"});
  reply_.Begin(200, "text/event-stream; charset=utf-8", headers);
  for (const auto& [prompt, end] : std::exchange(late_, {})) prompts_[prompt]->Finish(end);
}

void OpenAiExchange::Write() {
  if (out_.empty()) return;
  reply_.Write(out_);
  out_.clear();
}

void OpenAiExchange::Fail(const absl::Status& status) {
  over_ = true;
  if (!begun_) return SendError(status, reply_);
  // The status 200 was already sent, so an event has the error. Clients raise an exception on it.
  reply_.Write("data: " + ErrorJson(status) + "\n\n");
  reply_.End();
}

void OpenAiExchange::Complete() {
  over_ = true;
  if (!form_.stream) {
    reply_.Send(200, "application/json", answer_->Body(), headers_);
    return;
  }
  Begin();  // no OnAccepted has come if the request was cancelled before it was admitted
  answer_->End(out_);
  Write();
  reply_.End();
}

}  // namespace flotilla::router
