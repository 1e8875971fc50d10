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

namespace flotilla {

struct OpenAiRequest {
  bool chat = false;
  // One per prompt, in order, each with the same n. The choices of prompt i are numbered from
  // i * n on.
  std::vector<ApiRequest> prompts;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // every event has the usage so far
  bool echo = false;              // completions: the prompt is part of the text
  bool logprobs = false;          // the answer carries them
  bool return_token_ids = false;
  bool tokens_as_token_ids = false;  // tokens are written "token_id:N"
  // Unknown fields that a permissive server ignored.
  std::vector<std::string> ignored;
};

struct ParseOptions {
  bool permissive = false;  // unknown fields are ignored rather than refused
  std::size_t max_prompts = 32;
  RequestLimits limits;  // a body that exceeds one of them is not read to its end
};

absl::StatusOr<OpenAiRequest> ParseChatCompletion(std::string_view body,
                                                  const ParseOptions& options);
absl::StatusOr<OpenAiRequest> ParseCompletion(std::string_view body, const ParseOptions& options);

// {model, prompt | messages, add_special_tokens, parse_special,
//  add_generation_prompt}
absl::StatusOr<TokenizeRequest> ParseTokenize(std::string_view body, const ParseOptions& options);

absl::StatusOr<DetokenizeRequest> ParseDetokenize(std::string_view body,
                                                  const ParseOptions& options);

}  // namespace flotilla
