#include "router/http/openai_request.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "common/types/text.h"
#include "router/errors.h"
#include "router/http/foreign_fields.h"
#include "router/http/json_input.h"
#include "router/http/openai_chat.h"
#include "router/http/structured_output.h"

namespace flotilla::router {
namespace {

// Completions without max_tokens generate this many, as at OpenAI.
constexpr std::uint32_t kDefaultCompletionTokens = 16;

// Token ids of an array; fails the reader unless all are integers.
std::vector<std::int64_t> TokenArray(const Json& array, std::string_view name,
                                     ObjectReader& reader) {
  std::vector<std::int64_t> tokens;
  tokens.reserve(array.size());
  for (const Json& token : array) {
    if (!token.is_number_integer()) {
      reader.FailField(name, "must hold integers only");
      return {};
    }
    if (token.is_number_unsigned() &&
        token.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      reader.FailField(name, Cat("holds ", token.get<std::uint64_t>(), ", which is no token id"));
      return {};
    }
    tokens.push_back(token.get<std::int64_t>());
  }
  return tokens;
}

// Each overload reads the members of a body that have its type.
void Read(std::string_view name, ObjectReader& reader, std::optional<double>& value) {
  value = reader.Number(name);
}
void Read(std::string_view name, ObjectReader& reader, std::optional<std::int64_t>& value) {
  value = reader.Int(name);
}
void Read(std::string_view name, ObjectReader& reader, std::optional<std::uint64_t>& value) {
  value = reader.Seed(name);
}
void Read(std::string_view name, ObjectReader& reader, bool& value) {
  value = reader.Bool(name).value_or(value);
}
void Read(std::string_view name, ObjectReader& reader, std::string& value) {
  value = reader.String(name).value_or("");
}

// A string or a list of strings.
void Read(std::string_view name, ObjectReader& reader, std::vector<std::string>& texts) {
  const Json* value = reader.Value(name);
  if (value == nullptr) return;
  if (value->is_string()) return texts.push_back(value->get<std::string>());
  const bool strings =
      value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const Json& s) { return s.is_string(); });
  if (!strings) return reader.FailField(name, "must be a string or a list of strings");
  for (const Json& text : *value) texts.push_back(text.get<std::string>());
}

void Read(std::string_view name, ObjectReader& reader, std::vector<std::int64_t>& tokens) {
  const Json* value = reader.Value(name);
  if (value == nullptr) return;
  if (!value->is_array()) return reader.FailField(name, "must be a list of integers");
  tokens = TokenArray(*value, name, reader);
}

// {"token id": bias}.
void Read(std::string_view name, ObjectReader& reader,
          std::vector<std::pair<std::int64_t, double>>& biases) {
  constexpr std::string_view kWrong = "must be an object of token ids and numbers";
  const Json* value = reader.Value(name);
  if (value == nullptr) return;
  if (!value->is_object()) return reader.FailField(name, kWrong);
  for (const auto& [key, bias] : value->items()) {
    std::int64_t token = 0;
    // absl::SimpleAtoi would take blanks and signs.
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || !bias.is_number()) {
      return reader.FailField(name, kWrong);
    }
    biases.emplace_back(token, bias.get<double>());
  }
}

// true, false or "never".
void Read(std::string_view name, ObjectReader& reader,
          std::optional<BeamOptions::EarlyStopping>& early_stopping) {
  const Json* value = reader.Value(name);
  if (value == nullptr) return;
  if (*value == true) {
    early_stopping = BeamOptions::EarlyStopping::kTrue;
  } else if (*value == false) {
    early_stopping = BeamOptions::EarlyStopping::kFalse;
  } else if (*value == "never") {
    early_stopping = BeamOptions::EarlyStopping::kNever;
  } else {
    reader.FailField(name, "must be true, false or \"never\"");
  }
}

void ReadStreamOptions(ObjectReader& reader, bool permissive, AnswerForm& form) {
  form.stream = reader.Bool("stream").value_or(false);
  const Json* options = reader.Value("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return reader.FailField("stream_options", "must be an object");
  if (!form.stream) return reader.FailField("stream_options", "needs 'stream': true");
  ObjectReader inner(*options, "stream_options.");
  form.include_usage = inner.Bool("include_usage").value_or(false);
  form.continuous_usage =
      inner.Bool("continuous_usage_stats").value_or(false) && form.include_usage;
  inner.UnsupportedUnless("include_obfuscation", {false});
  reader.Fail(inner.Finish(permissive, &form.ignored));
}

// A number of alternatives, or one that the validator refuses.
std::int32_t Clipped(std::int64_t top) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(top, 0, LogprobSpec::kMaxTop));
}

// The parameters that both bodies have, and the fields that both refuse or ignore.
void ReadCommon(ObjectReader& reader, const ParseOptions& options, ApiRequest& api,
                AnswerForm& form) {
  api.model = reader.String("model").value_or("");
  for (const Parameter& row : kParameters) {
    if (!row.exceptions.http) continue;
    std::visit([&](auto member) { Read(row.name, reader, api.*member); }, row.asked);
  }
  form.tokens_as_token_ids = reader.Bool("return_tokens_as_token_ids").value_or(false);
  ReadStreamOptions(reader, options.permissive, form);
  api.stream = form.stream;
  if (api.prompt_logprobs.has_value()) {
    if (form.stream) {
      reader.Unsupported("prompt_logprobs", "is not supported together with 'stream'");
    }
    // The validator refuses what is too much.
    form.prompt_top = Clipped(*api.prompt_logprobs);
  }
  reader.Fail(CheckSizes(api, options.limits));

  reader.Ignored({"user", "metadata", "store", "service_tier", "safety_identifier",
                  "prompt_cache_key", "prompt_cache_retention"});
  CheckForeignFields(reader);
}

// Parses a body whose list `messages` has a bound.
absl::StatusOr<JsonDocument> ParseBody(std::string_view body, const ParseOptions& options) {
  const ListBound messages{"messages", options.limits.max_messages,
                           TooManyMessages(options.limits)};
  return ParseJsonObject(body, &messages);
}

// Makes one ApiRequest per prompt from text, token ids, or a list of either. The fields that they
// share are copied for each, so none is made from a body that is refused already.
void ReadPrompts(ObjectReader& reader, ApiRequest& base, const ParseOptions& options,
                 std::vector<ApiRequest>& prompts) {
  const Json* value = reader.Value("prompt");
  if (!reader.ok()) return;
  if (value == nullptr) return reader.FailField("prompt", "is missing");
  const auto add = [&](auto prompt) {
    prompts.push_back(base);
    prompts.back().prompt = std::move(prompt);
  };
  if (value->is_string()) return add(value->get<std::string>());
  if (!value->is_array() || value->empty()) {
    return reader.FailField("prompt", "must be text, token ids, or a list of either");
  }
  if (value->front().is_number()) return add(TokenArray(*value, "prompt", reader));
  if (value->size() > options.max_prompts) {
    return reader.FailField("prompt", Cat("has ", value->size(), " prompts; at most ",
                                          options.max_prompts, " are allowed"));
  }
  base.prompts = static_cast<std::uint32_t>(value->size());
  for (const Json& prompt : *value) {
    if (!reader.ok()) return;
    if (prompt.is_string()) {
      add(prompt.get<std::string>());
    } else if (prompt.is_array()) {
      add(TokenArray(prompt, "prompt", reader));
    } else {
      return reader.FailField("prompt", "must be text, token ids, or a list of either");
    }
  }
}

}  // namespace

absl::StatusOr<OpenAiBody<ApiRequest>> ParseChatCompletion(std::string_view body,
                                                           const ParseOptions& options) {
  absl::StatusOr<JsonDocument> json = ParseBody(body, options);
  if (!json.ok()) return json.status();
  ObjectReader reader(json->root(), "");
  OpenAiBody<ApiRequest> request;
  AnswerForm& form = request.form;
  form.chat = true;
  ApiRequest api;
  ReadCommon(reader, options, api, form);
  ReadConstraint(body, reader, api);
  api.prompt = ReadConversation(body, options, &form.ignored, reader);

  if (const auto limit = reader.Int("max_completion_tokens")) {
    if (*limit < 1) reader.FailField("max_completion_tokens", "must be at least 1");
    if (*limit <= api.max_tokens.value_or(*limit)) {
      api.max_tokens = limit;
      api.max_tokens_name = "max_completion_tokens";
    }
  }
  if (api.max_tokens && *api.max_tokens < 1) reader.FailField("max_tokens", "must be at least 1");

  form.logprobs = reader.Bool("logprobs").value_or(false);
  const auto top = reader.Int("top_logprobs");
  if (top && !form.logprobs) reader.FailField("top_logprobs", "needs 'logprobs': true");
  if (top && (*top < 0 || *top > LogprobSpec::kMaxTop)) {
    reader.FailField("top_logprobs", Cat("must be from 0 to ", LogprobSpec::kMaxTop));
  }
  if (form.logprobs) api.logprobs = top.value_or(0);

  reader.UnsupportedUnless("functions", {Json::array()});
  reader.UnsupportedUnless("function_call", {"none", "auto"});
  reader.UnsupportedUnless("modalities", {Json::array({"text"})});
  reader.UnsupportedUnless("audio", {});
  reader.UnsupportedUnless("prediction", {});
  reader.UnsupportedUnless("web_search_options", {});
  reader.UnsupportedUnless("verbosity", {"medium"});
  reader.UnsupportedUnless("echo", {false});
  reader.UnsupportedUnless("add_special_tokens", {false});
  if (auto s = reader.Finish(options.permissive, &form.ignored); !s.ok()) return s;
  request.prompts.push_back(std::move(api));
  return request;
}

absl::StatusOr<OpenAiBody<ApiRequest>> ParseCompletion(std::string_view body,
                                                       const ParseOptions& options) {
  absl::StatusOr<JsonDocument> json = ParseJsonObject(body);
  if (!json.ok()) return json.status();
  ObjectReader reader(json->root(), "");
  OpenAiBody<ApiRequest> request;
  AnswerForm& form = request.form;
  ApiRequest api;
  ReadCommon(reader, options, api, form);
  ReadConstraint(body, reader, api);
  api.default_max_tokens = kDefaultCompletionTokens;
  api.add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  form.echo = reader.Bool("echo").value_or(false);
  api.logprobs = reader.Int("logprobs");
  form.logprobs = api.logprobs.has_value();
  if (form.echo && form.logprobs) {
    form.echo_top = Clipped(*api.logprobs);
    api.prompt_logprobs = std::max(api.prompt_logprobs.value_or(0), *api.logprobs);
  }
  reader.UnsupportedUnless("suffix", {""});
  reader.UnsupportedUnless("chat_template_kwargs", {Json::object()});
  reader.UnsupportedUnless("documents", {Json::array()});
  reader.UnsupportedUnless("include_reasoning", {true});
  reader.UnsupportedUnless("reasoning_format", {"none", "auto"});
  reader.Ignored({"parallel_tool_calls"});
  ReadPrompts(reader, api, options, request.prompts);
  if (auto s = reader.Finish(options.permissive, &form.ignored); !s.ok()) return s;
  return request;
}

absl::StatusOr<TokenizeRequest> ParseTokenize(std::string_view body, const ParseOptions& options) {
  absl::StatusOr<JsonDocument> json = ParseBody(body, options);
  if (!json.ok()) return json.status();
  ObjectReader reader(json->root(), "");
  TokenizeRequest request;
  request.model = reader.String("model").value_or("");
  request.add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  request.parse_special = reader.Bool("parse_special").value_or(false);
  std::vector<std::string> ignored;
  auto prompt = reader.String("prompt");
  if (reader.Value("messages") != nullptr) {
    if (prompt) reader.FailField("messages", "and 'prompt' exclude each other");
    request.input = ReadConversation(body, options, &ignored, reader);
  } else if (prompt) {
    request.input = *std::move(prompt);
    // These are about conversations.
    reader.Ignored({"add_generation_prompt", "continue_final_message", "tools", "tool_choice",
                    "parallel_tool_calls", "documents", "chat_template_kwargs", "reasoning_effort",
                    "include_reasoning", "reasoning_format"});
  } else {
    reader.FailField("prompt", "is missing");
  }
  if (auto s = reader.Finish(options.permissive, &ignored); !s.ok()) return s;
  return request;
}

absl::StatusOr<DetokenizeRequest> ParseDetokenize(std::string_view body,
                                                  const ParseOptions& options) {
  absl::StatusOr<JsonDocument> json = ParseJsonObject(body);
  if (!json.ok()) return json.status();
  ObjectReader reader(json->root(), "");
  DetokenizeRequest request;
  request.model = reader.String("model").value_or("");
  const Json* tokens = reader.Value("tokens");
  if (tokens != nullptr && tokens->is_array()) {
    request.tokens = TokenArray(*tokens, "tokens", reader);
  } else {
    reader.FailField("tokens", "must be a list of integers");
  }
  std::vector<std::string> ignored;
  if (auto s = reader.Finish(options.permissive, &ignored); !s.ok()) return s;
  return request;
}

}  // namespace flotilla::router
