// OpenAiAnswer: writes what the service reports of a request as an answer of the OpenAI API:
// one JSON body, or server-sent events. It makes only text, and knows neither sockets nor
// generations. There is one per HTTP request, on the I/O thread.
//
// A request has one or more prompts and n choices of each: choice i of prompt p
// has the index p * n + i.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "router/http/logprob_text.h"
#include "router/http/openai_request.h"
#include "router/service.h"

namespace flotilla::router {

class OpenAiAnswer {
 public:
  // The facts about the request that the answer needs.
  struct Header {
    std::string id;  // without the prefix that says the kind
    std::string model;
    std::int64_t created_s = 0;
    AnswerForm form;
    bool return_token_ids = false;
    std::uint32_t prompts = 1;
    std::uint32_t n = 1;  // choices per prompt
  };
  OpenAiAnswer(Header header, LogprobText::BytesOf bytes_of);

  // Adds a prompt's tokens. `text` is the text that echo repeats in each of its choices.
  void Prompt(std::uint32_t prompt, std::vector<TokenId> tokens, const std::string& text);
  // Adds log-probabilities of the prompt, in order.
  void PromptScores(std::uint32_t prompt, const std::vector<SampledToken>& scores);

  // These add the reports of a prompt's generation, whose choices are numbered from 0. When
  // streaming, each appends whole events to `out`, or nothing if there is nothing to send.
  // Otherwise they collect the reports and do not touch `out`.
  void Start(std::uint32_t prompt, std::string& out);
  void Add(std::uint32_t prompt, const Delta& delta, std::string& out);
  void Finish(std::uint32_t prompt, const ChoiceEnd& end, std::string& out);
  // Adds one prompt's usage to the total.
  void AddUsage(const Usage& usage);
  // When streaming, appends the usage event, if the client asked for it, and the end mark.
  void End(std::string& out);

  // The whole body of an answer that is not streamed, once all choices have finished.
  std::string Body();

 private:
  struct Choice {
    explicit Choice(LogprobText logprobs) : logprobs(std::move(logprobs)) {}
    std::string echo;          // to be written before the first output
    bool prompt_sent = false;  // streaming: prompt_token_ids were written
    // Not streaming; all but ids and names are escaped.
    std::string text;
    std::string reasoning;
    std::vector<ToolCallDelta> tool_calls;
    std::vector<TokenId> tokens;  // not streaming
    std::uint32_t output_tokens = 0;
    LogprobText logprobs;
    std::string_view finish;
    std::string stop_reason = "null";  // JSON
    std::optional<float> score;
  };

  std::uint32_t IndexOf(std::uint32_t prompt, std::uint32_t choice) const {
    return prompt * header_.n + choice;
  }
  void BeginEvent(std::uint32_t index, std::string& out) const;
  void EndEvent(std::uint32_t index, std::string_view finish, std::string& out);
  void AppendLogprobs(Choice& choice, std::string& out);
  void AppendTokenIds(const std::vector<TokenId>& tokens, std::uint32_t index, std::string& out);
  void AppendPromptIds(std::string& out) const;
  void AppendPromptLogprobsOf(std::uint32_t prompt, std::string& out) const;
  void AppendUsage(std::string& out) const;
  void Collect(const Delta& delta, Choice& choice);
  void AppendMessage(const Choice& choice, std::string& out) const;
  void AppendChoice(std::uint32_t index, std::string& out);
  void FlushEcho(std::uint32_t index, std::string& out);

  const Header header_;
  const LogprobText::BytesOf bytes_of_;
  std::string head_;  // {"id":...,"model":"...", of the body or of every event
  std::vector<std::vector<TokenId>> prompts_;  // [prompts]
  std::vector<std::string> prompt_logprobs_;   // [prompts] JSON without the closing bracket
  std::vector<Choice> choices_;                // [prompts * n]
  Usage usage_;
  bool prompt_due_ = false;  // the event being written repeats the prompt's ids
};

}  // namespace flotilla::router
