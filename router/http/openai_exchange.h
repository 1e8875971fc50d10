// OpenAiExchange: one completions or chat request while it runs. It owns the
// generations, one per prompt, and turns what they report into the answer. Its destructor
// cancels the generations that still run. It lives on the I/O loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/http/exchange.h"
#include "router/http/openai_answer.h"
#include "router/http/openai_request.h"
#include "router/service.h"

namespace flotilla::router {

// Validates all prompts of `body`; the error says why one of them is refused
// (InferenceService::Validate). May be called on any thread.
absl::StatusOr<OpenAiBody<GenerateRequest>> Validate(OpenAiBody<ApiRequest> body,
                                                     const InferenceService& service);

// The log-probabilities of prompts that one answer may have: 20 MB of JSON.
inline constexpr std::size_t kMaxPromptLogprobs = std::size_t{1} << 18;
// The bytes of prompts that an answer of several choices may repeat (echo, return_token_ids).
inline constexpr std::size_t kMaxRepeatedBytes = 33554432;

class OpenAiExchange final : public HttpExchange {
 public:
  // Starts all prompts. Null: the request was refused, and the refusal was sent. `reply`, the
  // service and the I/O loop outlive the exchange.
  static std::unique_ptr<HttpExchange> Start(OpenAiBody<GenerateRequest> body, std::int64_t now_s,
                                             InferenceService& service, IoLoop& io_loop,
                                             HttpReply& reply);

 private:
  // One prompt: listens to its generation, whose choices are among the answer's.
  class Prompt final : public GenerationListener {
   public:
    Prompt(OpenAiExchange* exchange, std::uint32_t index) : exchange_(exchange), index_(index) {}
    absl::Status Start(GenerateRequest request, InferenceService& service, IoLoop& io_loop);
    const std::string& id() const { return generation_->id(); }

    void OnPrompt(const PromptInfo& prompt) override;
    void OnAccepted() override;
    void OnPromptScores(::flotilla::router::PromptScores scores) override;
    void OnDelta(Delta delta) override;
    void OnChoiceEnd(const ChoiceEnd& end) override;
    void OnDone(const GenerationEnd& end) override;

    // A choice of this prompt ends: the answer has it, after the answer's beginning.
    void Finish(const ChoiceEnd& end);

   private:
    // The answer to this prompt begins.
    void Open();

    OpenAiExchange* const exchange_;
    const std::uint32_t index_;
    bool open_ = false;
    std::string text_;  // of the prompt, when the client sent text and wants echo
    std::unique_ptr<Generation> generation_;
  };

  OpenAiExchange(AnswerForm form, InferenceService& service, HttpReply& reply)
      : form_(std::move(form)), service_(service), reply_(reply) {}

  absl::Status StartAll(std::vector<GenerateRequest> prompts, std::int64_t now_s, IoLoop& io_loop);
  // Runs `work`. If it cannot get memory, this request fails, and no other.
  template <class Work>
  void Guarded(Work work);
  // Adds to the log-probabilities of prompts that the answer has, of which there may be
  // kMaxPromptLogprobs; false: there are more, and the request has failed.
  bool Reserve(std::size_t prompt_tokens);
  // The same for the bytes of prompts, of which there may be kMaxRepeatedBytes.
  bool ReserveEcho(std::size_t text_bytes, std::size_t tokens);
  void Begin();
  void Write();
  void Fail(const absl::Status& status);
  void Complete();

  const AnswerForm form_;
  InferenceService& service_;
  HttpReply& reply_;
  HttpHeaders headers_;
  std::string model_;
  std::unique_ptr<OpenAiAnswer> answer_;
  std::string out_;  // events not yet handed to the reply
  std::uint32_t running_ = 0;
  std::size_t prompt_logprobs_ = 0;
  std::size_t repeated_ = 0;  // bytes of prompts in the answer
  bool return_token_ids_ = false;
  std::uint32_t n_ = 1;
  // The head of a stream comes with its first token, not before: until then 504 can be the answer.
  bool waits_ = false;
  bool begun_ = false;
  // Prompts and their choices that the deadline has ended before a stream has begun.
  std::vector<std::pair<std::uint32_t, ChoiceEnd>> late_;
  bool over_ = false;                             // answered in full, or failed
  std::vector<std::unique_ptr<Prompt>> prompts_;  // last: they use the rest
};

}  // namespace flotilla::router
