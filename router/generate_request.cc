#include "router/generate_request.h"

#include <algorithm>
#include <utility>

#include "model/text.h"
#include "router/errors.h"
#include "router/utf8.h"

namespace flotilla {
namespace {

absl::Status CheckText(std::string_view field, std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return InvalidField(
        field, Cat(field, " is ", text.size(), " bytes long; at most ", max_bytes, " are allowed"));
  }
  if (!IsValidUtf8(text)) return InvalidField(field, Cat(field, " is not valid UTF-8"));
  return absl::OkStatus();
}

template <class T>
absl::Status CheckRange(std::string_view field, const std::optional<T>& value, T low, T high) {
  if (value && !(*value >= low && *value <= high)) {
    return InvalidField(field, Cat(field, " is ", *value, "; it must be from ", low, " to ", high));
  }
  return absl::OkStatus();
}

absl::Status CheckConversation(const std::vector<ChatTurn>& turns, const RequestLimits& limits) {
  if (turns.empty()) return InvalidField("messages", "messages must not be empty");
  if (turns.size() > limits.max_messages) {
    return InvalidField("messages", Cat("messages has ", turns.size(), " entries; at most ",
                                        limits.max_messages, " are allowed"));
  }
  std::size_t bytes = 0;
  for (const ChatTurn& turn : turns) {
    if (turn.role.empty()) return InvalidField("messages", "a message's role must not be empty");
    if (auto s = CheckText("messages[].role", turn.role, limits.max_role_bytes); !s.ok()) return s;
    bytes += turn.content.size();
    if (bytes > limits.max_prompt_bytes) {
      return InvalidField("messages", Cat("messages are more than ", limits.max_prompt_bytes,
                                          " bytes long in all"));
    }
    if (!IsValidUtf8(turn.content)) {
      return InvalidField("messages", "a message's content is not valid UTF-8");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const ApiRequest& api, const RequestLimits& limits,
                         const ModelLimits& model) {
  if (const auto* turns = std::get_if<std::vector<ChatTurn>>(&api.prompt)) {
    return CheckConversation(*turns, limits);
  }
  if (const auto* text = std::get_if<std::string>(&api.prompt)) {
    return CheckText("prompt", *text, limits.max_prompt_bytes);
  }
  const auto& tokens = std::get<std::vector<std::int64_t>>(api.prompt);
  if (tokens.empty()) return InvalidField("prompt", "prompt must have at least one token");
  if (tokens.size() > model.max_context) {
    return WithField(absl::OutOfRangeError(Cat("the prompt has ", tokens.size(),
                                               " tokens; the model's context is ",
                                               model.max_context, " tokens")),
                     "prompt", kContextLengthExceeded);
  }
  return CheckTokenIds("prompt", tokens, model);
}

absl::Status CheckSampling(const ApiRequest& api, const ModelLimits& model) {
  if (auto s = CheckRange("temperature", api.temperature, 0.0, 2.0); !s.ok()) return s;
  if (api.top_p && !(*api.top_p > 0.0 && *api.top_p <= 1.0)) {
    return InvalidField("top_p",
                        Cat("top_p is ", *api.top_p, "; it must be greater than 0 and at most 1"));
  }
  return CheckRange<std::int64_t>("top_k", api.top_k, -1, model.vocab_size);
}

absl::Status CheckStops(const ApiRequest& api, const RequestLimits& limits,
                        const ModelLimits& model) {
  if (api.stop.size() > limits.max_stop_strings) {
    return InvalidField("stop", Cat("stop has ", api.stop.size(), " strings; at most ",
                                    limits.max_stop_strings, " are allowed"));
  }
  for (const std::string& stop : api.stop) {
    if (stop.empty()) return InvalidField("stop", "a stop string must not be empty");
    if (auto s = CheckText("stop", stop, limits.max_stop_bytes); !s.ok()) return s;
  }
  if (api.stop_token_ids.size() > limits.max_stop_tokens) {
    return InvalidField("stop_token_ids",
                        Cat("stop_token_ids has ", api.stop_token_ids.size(), " entries; at most ",
                            limits.max_stop_tokens, " are allowed"));
  }
  return CheckTokenIds("stop_token_ids", api.stop_token_ids, model);
}

absl::Status CheckScalars(const ApiRequest& api, const RequestLimits& limits,
                          const ModelLimits& model) {
  constexpr std::int64_t kMaxTop = LogprobSpec::kMaxTop;
  const auto range = CheckRange<std::int64_t>;
  // More than the context is refused once the prompt's length is known; here
  // only what no prompt could make right.
  if (auto s = range("max_tokens", api.max_tokens, 0, model.max_context); !s.ok()) {
    return *api.max_tokens < 0
               ? s
               : WithField(absl::OutOfRangeError(Cat("max_tokens is ", *api.max_tokens,
                                                     "; the model's context is ", model.max_context,
                                                     " tokens")),
                           "max_tokens", kContextLengthExceeded);
  }
  if (auto s = range("logprobs", api.logprobs, 0, kMaxTop); !s.ok()) return s;
  if (auto s = range("prompt_logprobs", api.prompt_logprobs, 0, kMaxTop); !s.ok()) return s;
  if (auto s = range("timeout_ms", api.timeout_ms, 1, limits.max_timeout_ms); !s.ok()) return s;
  if (auto s = range("priority", std::optional(api.priority), -100, 100); !s.ok()) return s;
  if (auto s = CheckText("cache_salt", api.cache_salt, limits.max_label_bytes); !s.ok()) return s;
  if (auto s = CheckText("tenant", api.tenant, limits.max_label_bytes); !s.ok()) return s;
  return CheckText("request_id", api.client_request_id, limits.max_label_bytes);
}

}  // namespace

absl::StatusOr<GenerateRequest> Validator::Validate(ApiRequest api,
                                                    const ModelLimits& model) const {
  if (auto s = CheckModel(api.model, model); !s.ok()) return s;
  if (auto s = CheckPrompt(api, limits_, model); !s.ok()) return s;
  if (auto s = CheckSampling(api, model); !s.ok()) return s;
  if (auto s = CheckStops(api, limits_, model); !s.ok()) return s;
  if (auto s = CheckScalars(api, limits_, model); !s.ok()) return s;

  api.temperature = api.temperature.value_or(1.0);
  api.top_p = api.top_p.value_or(1.0);
  api.top_k = std::max<std::int64_t>(api.top_k.value_or(0), 0);
  api.timeout_ms = api.timeout_ms.value_or(limits_.default_timeout_ms);
  return GenerateRequest(std::move(api));
}

absl::Status CheckModel(std::string_view name, const ModelLimits& model) {
  if (name == model.id) return absl::OkStatus();
  if (name.empty()) return InvalidField("model", "model is missing");
  // The name is the client's text: cut to a length that fits a log line.
  const std::string shown = RepairUtf8(name.substr(0, 200));
  return WithField(absl::NotFoundError(Cat("the model '", shown, "' does not exist")), "model",
                   kModelNotFound);
}

absl::Status CheckTokenIds(std::string_view field, const std::vector<std::int64_t>& tokens,
                           const ModelLimits& model) {
  for (std::int64_t token : tokens) {
    if (token < 0 || token >= model.vocab_size) {
      return InvalidField(field, Cat(field, ": token id ", token, " is outside the vocabulary (",
                                     model.vocab_size, " tokens)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const std::variant<std::string, std::vector<ChatTurn>>& input,
                        const RequestLimits& limits) {
  if (const auto* turns = std::get_if<std::vector<ChatTurn>>(&input)) {
    return CheckConversation(*turns, limits);
  }
  return CheckText("prompt", std::get<std::string>(input), limits.max_prompt_bytes);
}

}  // namespace flotilla
