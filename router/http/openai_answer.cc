#include "router/http/openai_answer.h"

#include <cstdint>
#include <utility>

#include "common/types/text.h"
#include "router/http/json_text.h"

namespace flotilla::router {
namespace {

std::string_view FinishName(const ChoiceEnd& end) {
  switch (end.reason) {
    case FinishReason::kStop:
      return end.has_tool_calls ? R"("tool_calls")" : R"("stop")";
    case FinishReason::kLength:
      return R"("length")";
    case FinishReason::kCancelled:
      return R"("abort")";
    case FinishReason::kDeadline:
      return R"("timeout")";
    case FinishReason::kError:
    case FinishReason::kMoved:  // never reaches a client
      break;
  }
  return R"("error")";
}

void AppendCounts(std::uint64_t prompt_tokens, std::uint64_t output_tokens, std::string& out) {
  out += Cat(R"("prompt_tokens":)", prompt_tokens, R"(,"completion_tokens":)", output_tokens,
             R"(,"total_tokens":)", prompt_tokens + output_tokens);
}

// Of a choice that has ended.
void AppendStopReason(std::string_view reason, std::string& out) {
  out += R"(,"stop_reason":)";
  out += reason;
}

void AppendScore(std::optional<float> score, std::string& out) {
  if (!score) return;
  out += R"(,"score":)";
  AppendJsonFloat(*score, out);
}

// A member of a message's delta; `member` is its name and the opening quote.
void AppendDelta(std::string_view member, std::string_view text, std::string& out) {
  out += R"(,"delta":{)";
  out += member;
  AppendJsonEscaped(text, out);
  out += R"("})";
}

// The members of a call up to the opening quote of its arguments.
void AppendCall(const ToolCallDelta& call, std::string& out) {
  out += R"("id":)";
  AppendJsonString(call.id, out);
  out += R"(,"type":"function","function":{"name":)";
  AppendJsonString(call.name, out);
  out += R"(,"arguments":")";
}

void AppendCallBegin(const ToolCallDelta& call, std::string& out) {
  out += Cat(R"(,"delta":{"tool_calls":[{"index":)", call.index, ",");
  AppendCall(call, out);
  out += R"("}}]})";
}

void AppendCallArguments(const ToolCallDelta& call, std::string& out) {
  out += Cat(R"(,"delta":{"tool_calls":[{"index":)", call.index, R"(,"function":{"arguments":")");
  AppendJsonEscaped(call.arguments, out);
  out += R"("}}]})";
}

}  // namespace

OpenAiAnswer::OpenAiAnswer(Header header, LogprobText::BytesOf bytes_of)
    : header_(std::move(header)),
      bytes_of_(std::move(bytes_of)),
      prompts_(header_.prompts),
      prompt_logprobs_(header_.prompts, "[null") {
  head_ = R"({"id":")";
  head_ += header_.form.chat ? "chatcmpl-" : "cmpl-";
  AppendJsonEscaped(header_.id, head_);
  head_ += R"(","object":)";
  if (header_.form.chat) {
    head_ += header_.form.stream ? R"("chat.completion.chunk")" : R"("chat.completion")";
  } else {
    head_ += R"("text_completion")";
  }
  head_ += Cat(R"(,"created":)", header_.created_s, R"(,"model":)");
  AppendJsonString(header_.model, head_);
  head_ += R"(,"choices":[)";
  const std::uint32_t choices = header_.prompts * header_.n;
  choices_.reserve(choices);
  for (std::uint32_t i = 0; i < choices; ++i) {
    choices_.emplace_back(
        LogprobText({header_.form.chat, header_.form.tokens_as_token_ids}, bytes_of_));
  }
}

void OpenAiAnswer::Prompt(std::uint32_t prompt, std::vector<TokenId> tokens,
                          const std::string& text) {
  prompts_[prompt] = std::move(tokens);
  if (!header_.form.echo) return;
  for (std::uint32_t i = 0; i < header_.n; ++i) {
    Choice& choice = choices_[IndexOf(prompt, i)];
    choice.echo = text;
    if (header_.form.echo_top != LogprobSpec::kOff) {
      choice.logprobs.AddUnscored(prompts_[prompt].front());
    }
  }
}

void OpenAiAnswer::PromptScores(std::uint32_t prompt, const std::vector<SampledToken>& scores) {
  const AnswerForm& form = header_.form;
  if (form.prompt_top != LogprobSpec::kOff) {
    for (const SampledToken& token : scores) {
      prompt_logprobs_[prompt].push_back(',');
      AppendPromptLogprobs(token, static_cast<std::size_t>(form.prompt_top), bytes_of_,
                           prompt_logprobs_[prompt]);
    }
  }
  if (form.echo_top == LogprobSpec::kOff) return;
  for (std::uint32_t i = 0; i < header_.n; ++i) {
    LogprobText& logprobs = choices_[IndexOf(prompt, i)].logprobs;
    for (const SampledToken& token : scores) {
      logprobs.Add(token, static_cast<std::size_t>(form.echo_top));
    }
  }
}

void OpenAiAnswer::BeginEvent(std::uint32_t index, std::string& out) const {
  out += "data: ";
  out += head_;
  out += R"({"index":)";
  AppendJsonInt(index, out);
}

void OpenAiAnswer::EndEvent(std::uint32_t index, std::string_view finish, std::string& out) {
  out += R"(,"finish_reason":)";
  out += finish;
  out += "}]";
  if (std::exchange(prompt_due_, false)) AppendPromptIds(out);
  if (header_.form.continuous_usage) {
    out += R"(,"usage":{)";
    AppendCounts(prompts_[index / header_.n].size(), choices_[index].output_tokens, out);
    out.push_back('}');
  } else if (header_.form.include_usage) {
    out += R"(,"usage":null)";
  }
  out += "}\n\n";
}

void OpenAiAnswer::AppendLogprobs(Choice& choice, std::string& out) {
  out += R"(,"logprobs":)";
  if (choice.logprobs.empty()) {
    out += "null";
  } else {
    choice.logprobs.Take(out);
  }
}

void OpenAiAnswer::AppendTokenIds(const std::vector<TokenId>& tokens, std::uint32_t index,
                                  std::string& out) {
  if (!header_.return_token_ids) return;
  if (!std::exchange(choices_[index].prompt_sent, true)) {
    out += R"(,"prompt_token_ids":)";
    AppendJsonIntArray(prompts_[index / header_.n], out);
    prompt_due_ = index == 0;
  }
  out += R"(,"token_ids":)";
  AppendJsonIntArray(tokens, out);
}

// Clients of the one-prompt case look for them beside the choices.
void OpenAiAnswer::AppendPromptIds(std::string& out) const {
  if (prompts_.size() != 1) return;
  out += R"(,"prompt_token_ids":)";
  AppendJsonIntArray(prompts_[0], out);
}

void OpenAiAnswer::AppendPromptLogprobsOf(std::uint32_t prompt, std::string& out) const {
  if (header_.form.prompt_top == LogprobSpec::kOff) return;
  out += R"(,"prompt_logprobs":)";
  out += prompt_logprobs_[prompt];
  out.push_back(']');
}

void OpenAiAnswer::Start(std::uint32_t prompt, std::string& out) {
  if (!header_.form.stream || !header_.form.chat) return;
  for (std::uint32_t i = 0; i < header_.n; ++i) {
    const std::uint32_t index = IndexOf(prompt, i);
    BeginEvent(index, out);
    out += R"(,"delta":{"role":"assistant","content":""},"logprobs":null)";
    AppendTokenIds({}, index, out);
    EndEvent(index, "null", out);
  }
}

void OpenAiAnswer::FlushEcho(std::uint32_t index, std::string& out) {
  Choice& choice = choices_[index];
  if (choice.echo.empty()) return;
  BeginEvent(index, out);
  out += R"(,"text":)";
  AppendJsonString(choice.echo, out);
  AppendLogprobs(choice, out);
  AppendTokenIds({}, index, out);
  EndEvent(index, "null", out);
  choice.echo.clear();
}

void OpenAiAnswer::Add(std::uint32_t prompt, const Delta& delta, std::string& out) {
  const std::uint32_t index = IndexOf(prompt, delta.choice);
  Choice& choice = choices_[index];
  if (header_.form.stream) FlushEcho(index, out);
  choice.output_tokens += static_cast<std::uint32_t>(delta.tokens.size());
  std::vector<TokenId> ids;
  if (header_.return_token_ids) {
    for (const SampledToken& token : delta.tokens) ids.push_back(token.token);
  }
  if (header_.form.logprobs) {
    for (const SampledToken& token : delta.tokens) choice.logprobs.Add(token);
  }
  if (!header_.form.stream) {
    Collect(delta, choice);
    choice.tokens.insert(choice.tokens.end(), ids.begin(), ids.end());
    return;
  }
  // The first event has the log-probabilities and the ids of all tokens.
  const auto add = [&](const auto& append) {
    BeginEvent(index, out);
    append();
    AppendLogprobs(choice, out);
    AppendTokenIds(std::exchange(ids, {}), index, out);
    EndEvent(index, "null", out);
  };
  if (!delta.reasoning.empty()) {
    add([&] { AppendDelta(R"("reasoning_content":")", delta.reasoning, out); });
  }
  const bool alone = delta.reasoning.empty() && delta.tool_calls.empty();
  if (!delta.text.empty() || (alone && (!ids.empty() || !choice.logprobs.empty()))) {
    add([&] {
      if (header_.form.chat) return AppendDelta(R"("content":")", delta.text, out);
      out += R"(,"text":)";
      AppendJsonString(delta.text, out);
    });
  }
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) add([&] { AppendCallBegin(call, out); });
    if (!call.arguments.empty()) add([&] { AppendCallArguments(call, out); });
  }
}

void OpenAiAnswer::Collect(const Delta& delta, Choice& choice) {
  AppendJsonEscaped(delta.text, choice.text);
  AppendJsonEscaped(delta.reasoning, choice.reasoning);
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) {
      choice.tool_calls.push_back({.index = call.index, .id = call.id, .name = call.name});
    }
    AppendJsonEscaped(call.arguments, choice.tool_calls.back().arguments);
  }
}

void OpenAiAnswer::Finish(std::uint32_t prompt, const ChoiceEnd& end, std::string& out) {
  const std::uint32_t index = IndexOf(prompt, end.choice);
  Choice& choice = choices_[index];
  choice.finish = FinishName(end);
  choice.score = end.score;
  if (end.stop_string.has_value()) {
    choice.stop_reason.clear();
    AppendJsonString(*end.stop_string, choice.stop_reason);
  } else if (end.stop_token.has_value() && !end.is_end_token) {
    choice.stop_reason = Cat(*end.stop_token);
  }
  if (!header_.form.stream) return;
  FlushEcho(index, out);
  BeginEvent(index, out);
  out += header_.form.chat ? R"(,"delta":{})" : R"(,"text":"")";
  AppendLogprobs(choice, out);
  AppendTokenIds({}, index, out);
  AppendScore(choice.score, out);
  AppendStopReason(choice.stop_reason, out);
  EndEvent(index, choice.finish, out);
}

void OpenAiAnswer::AddUsage(const Usage& usage) {
  usage_.prompt_tokens += usage.prompt_tokens;
  usage_.output_tokens += usage.output_tokens;
  usage_.cached_tokens += usage.cached_tokens;
}

void OpenAiAnswer::AppendUsage(std::string& out) const {
  out.push_back('{');
  AppendCounts(usage_.prompt_tokens, usage_.output_tokens, out);
  out += Cat(R"(,"prompt_tokens_details":{"cached_tokens":)", usage_.cached_tokens, "}}");
}

void OpenAiAnswer::End(std::string& out) {
  if (header_.form.include_usage) {
    out += "data: " + head_ + R"(],"usage":)";
    AppendUsage(out);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void OpenAiAnswer::AppendMessage(const Choice& choice, std::string& out) const {
  out += R"(,"message":{"role":"assistant","content":)";
  if (choice.text.empty() && !choice.tool_calls.empty()) {
    out += "null";
  } else {
    out += '"' + choice.text + '"';
  }
  out += R"(,"refusal":null)";
  if (!choice.reasoning.empty()) out += R"(,"reasoning_content":")" + choice.reasoning + '"';
  if (!choice.tool_calls.empty()) {
    out += R"(,"tool_calls":[)";
    for (const ToolCallDelta& call : choice.tool_calls) {
      out += call.index > 0 ? ",{" : "{";
      AppendCall(call, out);
      out += call.arguments;
      out += R"("}})";
    }
    out.push_back(']');
  }
  out.push_back('}');
}

void OpenAiAnswer::AppendChoice(std::uint32_t index, std::string& out) {
  Choice& choice = choices_[index];
  out += R"({"index":)";
  AppendJsonInt(index, out);
  if (header_.form.chat) {
    AppendMessage(choice, out);
  } else {
    out += R"(,"text":")";
    AppendJsonEscaped(choice.echo, out);
    out += choice.text;
    out.push_back('"');
  }
  AppendLogprobs(choice, out);
  AppendTokenIds(choice.tokens, index, out);
  if (!header_.form.chat) AppendPromptLogprobsOf(index / header_.n, out);
  AppendScore(choice.score, out);
  AppendStopReason(choice.stop_reason, out);
  out += R"(,"finish_reason":)";
  out += choice.finish;
  out.push_back('}');
}

std::string OpenAiAnswer::Body() {
  std::string out = head_;
  for (std::uint32_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendChoice(i, out);
  }
  out += R"(],"usage":)";
  AppendUsage(out);
  if (header_.return_token_ids) AppendPromptIds(out);
  if (header_.form.chat) AppendPromptLogprobsOf(0, out);
  out.push_back('}');
  return out;
}

}  // namespace flotilla::router
