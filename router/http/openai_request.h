// Parses bodies of the OpenAI API into values: requests of /v1/completions,
// /v1/chat/completions, /tokenize and /detokenize. Pure. Hostile input gives INVALID_ARGUMENT,
// which names the field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "router/generate_request.h"
#include "router/service.h"

namespace flotilla::router {

// How an answer is written.
struct AnswerForm {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // with include_usage: every event has its choice's usage so far
  bool echo = false;              // completions: the prompt is part of the text
  bool logprobs = false;          // the answer carries them
  // How many alternatives the tokens of the echoed prompt have, and those of the answer's
  // prompt_logprobs. kOff: there are none.
  std::int32_t echo_top = LogprobSpec::kOff, prompt_top = LogprobSpec::kOff;
  bool tokens_as_token_ids = false;  // tokens are written "token_id:N"
  // Unknown fields that a permissive server ignored.
  std::vector<std::string> ignored;
};

// A body of a generation endpoint. Prompt is ApiRequest, or GenerateRequest once all are valid.
template <class Prompt>
struct OpenAiBody {
  AnswerForm form;
  // One per prompt, in order, each with the same parameters. The choices of prompt i are
  // numbered from i * n on.
  std::vector<Prompt> prompts;
};

struct ParseOptions {
  bool permissive = false;  // unknown fields are ignored rather than refused
  std::size_t max_prompts = 32;
  RequestLimits limits;  // a body that exceeds one of them is not read to its end
};

absl::StatusOr<OpenAiBody<ApiRequest>> ParseChatCompletion(std::string_view body,
                                                           const ParseOptions& options);
absl::StatusOr<OpenAiBody<ApiRequest>> ParseCompletion(std::string_view body,
                                                       const ParseOptions& options);

// {model, prompt | messages, add_special_tokens, parse_special,
//  add_generation_prompt}
absl::StatusOr<TokenizeRequest> ParseTokenize(std::string_view body, const ParseOptions& options);

absl::StatusOr<DetokenizeRequest> ParseDetokenize(std::string_view body,
                                                  const ParseOptions& options);

}  // namespace flotilla::router
