#include "router/generate_request.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "model/text.h"
#include "router/errors.h"
#include "router/names.h"
#include "router/utf8.h"

namespace flotilla {
namespace {

// Tokens of any context to this power stay far inside a double.
constexpr double kMaxLengthPenalty = 10.0;

absl::Status CheckBytes(std::string_view field, std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return absl::OkStatus();
  return InvalidField(
      field, Cat(field, " is ", text.size(), " bytes long; at most ", max_bytes, " are allowed"));
}

// Checks the number of entries of a list, which errors call `what`.
absl::Status CheckCount(std::string_view field, std::size_t count, std::string_view what,
                        std::size_t most) {
  if (count <= most) return absl::OkStatus();
  return InvalidField(field,
                      Cat(field, " has ", count, " ", what, "; at most ", most, " are allowed"));
}

absl::Status CheckText(std::string_view field, std::string_view text, std::size_t max_bytes) {
  if (auto s = CheckBytes(field, text, max_bytes); !s.ok()) return s;
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

// Checks the role, and replaces it by the one that templates know.
absl::Status CheckRole(std::size_t index, std::string& role) {
  if (role == "developer") role = "system";
  if (role == "system" || role == "user" || role == "assistant") return absl::OkStatus();
  const std::string field = Cat("messages[", index, "].role");
  if (role == "tool" || role == "function") {
    return WithField(InvalidArgument("'", field, "' is '", role,
                                     "', which is not supported: there are no tools here"),
                     field, kUnsupportedField);
  }
  return InvalidField(field,
                      Cat("'", field, "' must be 'system', 'developer', 'user' or 'assistant'"));
}

absl::Status CheckConversation(std::vector<ChatTurn>& turns, const RequestLimits& limits) {
  if (turns.empty()) return InvalidField("messages", "messages must not be empty");
  if (turns.size() > limits.max_messages) return TooManyMessages(limits);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (auto s = CheckRole(i, turns[i].role); !s.ok()) return s;
    bytes += turns[i].content.size();
    if (bytes > limits.max_prompt_bytes) {
      return InvalidField("messages", Cat("messages are more than ", limits.max_prompt_bytes,
                                          " bytes long in all"));
    }
    if (!IsValidUtf8(turns[i].content)) {
      const std::string field = Cat("messages[", i, "].content");
      return InvalidField(field, Cat("'", field, "' is not valid UTF-8"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(ApiRequest& api, const RequestLimits& limits, const ModelLimits& model) {
  if (auto* turns = std::get_if<std::vector<ChatTurn>>(&api.prompt)) {
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
  if (auto s = CheckRange<std::int64_t>("top_k", api.top_k, -1, model.vocab_size); !s.ok()) {
    return s;
  }
  return CheckRange("min_p", api.min_p, 0.0, 1.0);
}

absl::Status CheckBiasCount(const ApiRequest& api) {
  return CheckCount("logit_bias", api.logit_bias.size(), "tokens", SamplingParams::kMaxBiases);
}

absl::Status CheckBias(const ApiRequest& api, const ModelLimits& model) {
  constexpr double kMost = SamplingParams::kMaxBias;
  if (auto s = CheckBiasCount(api); !s.ok()) return s;
  std::vector<std::int64_t> tokens;
  tokens.reserve(api.logit_bias.size());
  for (const auto& [token, bias] : api.logit_bias) {
    if (auto s = CheckRange("logit_bias", std::optional(bias), -kMost, kMost); !s.ok()) return s;
    tokens.push_back(token);
  }
  if (auto s = CheckTokenIds("logit_bias", tokens, model); !s.ok()) return s;
  std::sort(tokens.begin(), tokens.end());
  if (std::adjacent_find(tokens.begin(), tokens.end()) != tokens.end()) {
    return InvalidField("logit_bias", "logit_bias names a token twice");
  }
  return absl::OkStatus();
}

absl::Status CheckPenalties(const ApiRequest& api, const ModelLimits& model) {
  using P = SamplingParams;
  const auto range = CheckRange<double>;
  constexpr double kMost = P::kMaxPenalty;
  if (auto s = range("frequency_penalty", api.frequency_penalty, -kMost, kMost); !s.ok()) return s;
  if (auto s = range("presence_penalty", api.presence_penalty, -kMost, kMost); !s.ok()) return s;
  if (auto s = range("repetition_penalty", api.repetition_penalty, P::kMinRepetitionPenalty,
                     P::kMaxRepetitionPenalty);
      !s.ok()) {
    return s;
  }
  return CheckBias(api, model);
}

absl::Status CheckStopSizes(const ApiRequest& api, const RequestLimits& limits) {
  if (auto s = CheckCount("stop", api.stop.size(), "strings", limits.max_stop_strings); !s.ok()) {
    return s;
  }
  for (const std::string& stop : api.stop) {
    if (auto s = CheckBytes("stop", stop, limits.max_stop_bytes); !s.ok()) return s;
  }
  return CheckCount("stop_token_ids", api.stop_token_ids.size(), "entries", limits.max_stop_tokens);
}

absl::Status CheckStops(const ApiRequest& api, const RequestLimits& limits,
                        const ModelLimits& model) {
  if (auto s = CheckStopSizes(api, limits); !s.ok()) return s;
  for (const std::string& stop : api.stop) {
    if (stop.empty()) return InvalidField("stop", "a stop string must not be empty");
    if (!IsValidUtf8(stop)) return InvalidField("stop", "stop is not valid UTF-8");
  }
  return CheckTokenIds("stop_token_ids", api.stop_token_ids, model);
}

absl::Status CheckLabelSizes(const ApiRequest& api, const RequestLimits& limits) {
  const std::size_t most = limits.max_label_bytes;
  if (auto s = CheckBytes("cache_salt", api.cache_salt, most); !s.ok()) return s;
  return CheckBytes("request_id", api.client_request_id, most);
}

absl::Status CheckScalars(const ApiRequest& api, const RequestLimits& limits,
                          const ModelLimits& model) {
  constexpr std::int64_t kMaxTop = LogprobSpec::kMaxTop;
  const auto range = CheckRange<std::int64_t>;
  // More tokens than fit the context are refused once the prompt's length is known. Here only
  // numbers that no prompt could make valid are refused.
  if (auto s = range("max_tokens", api.max_tokens, 0, model.max_context); !s.ok()) {
    return *api.max_tokens < 0
               ? s
               : WithField(absl::OutOfRangeError(Cat("max_tokens is ", *api.max_tokens,
                                                     "; the model's context is ", model.max_context,
                                                     " tokens")),
                           "max_tokens", kContextLengthExceeded);
  }
  const std::int64_t most = api.max_tokens.value_or(model.max_context);
  if (auto s = range("min_tokens", api.min_tokens, 0, most); !s.ok()) return s;
  if (auto s = range("logprobs", api.logprobs, 0, kMaxTop); !s.ok()) return s;
  if (auto s = range("prompt_logprobs", api.prompt_logprobs, 0, kMaxTop); !s.ok()) return s;
  if (auto s = range("timeout_ms", api.timeout_ms, 1, limits.max_timeout_ms); !s.ok()) return s;
  if (auto s = range("priority", std::optional(api.priority), -100, 100); !s.ok()) return s;
  if (api.priority > api.max_priority) {
    return InvalidField("priority", Cat("priority is ", api.priority, "; this key may use at most ",
                                        api.max_priority));
  }
  if (auto s = CheckText("cache_salt", api.cache_salt, limits.max_label_bytes); !s.ok()) return s;
  if (auto s = CheckText("tenant", api.tenant, limits.max_label_bytes); !s.ok()) return s;
  return CheckText("request_id", api.client_request_id, limits.max_label_bytes);
}

// The error for a valid value that does not fit the value of another field.
absl::Status Unsupported(std::string_view field, std::string_view message) {
  return WithField(absl::InvalidArgumentError(std::string(message)), field, kUnsupportedField);
}

absl::Status CheckSequences(const ApiRequest& api, const ModelLimits& model) {
  const auto range = CheckRange<std::int64_t>;
  if (auto s = range("n", api.n, 1, model.max_sequences); !s.ok()) return s;
  if (auto s = range("best_of", api.best_of, 1, model.max_sequences); !s.ok()) return s;
  const std::int64_t n = api.n.value_or(1), best_of = api.best_of.value_or(n);
  if (best_of < n) {
    return InvalidField("best_of", Cat("best_of is ", best_of, "; it must be at least n, ", n));
  }
  if (api.stream && best_of > n && !api.use_beam_search) {
    return Unsupported(
        "stream", Cat("stream is not supported with best_of greater than n: which of ", best_of,
                      " choices are the best is known at their end"));
  }
  return absl::OkStatus();
}

// Fields that only beam search has are refused without it.
absl::Status CheckNoBeams(const ApiRequest& api) {
  if (api.length_penalty.value_or(1.0) != 1.0) {
    return InvalidField("length_penalty", "length_penalty needs beam search");
  }
  using EarlyStopping = BeamOptions::EarlyStopping;
  if (api.early_stopping.value_or(EarlyStopping::kFalse) != EarlyStopping::kFalse) {
    return InvalidField("early_stopping", "early_stopping needs beam search");
  }
  return absl::OkStatus();
}

// Beam search does not sample, so it would silently ignore sampling parameters.
absl::Status CheckNoSampling(const ApiRequest& api) {
  const auto refuse = [](std::string_view field) {
    return InvalidField(field, Cat(field, " has no part in beam search"));
  };
  const double temperature = api.temperature.value_or(1.0);
  if (temperature != 0.0 && temperature != 1.0) return refuse("temperature");
  if (api.top_p.value_or(1.0) != 1.0) return refuse("top_p");
  if (api.top_k.value_or(0) > 0) return refuse("top_k");
  if (api.min_p.value_or(0.0) != 0.0) return refuse("min_p");
  if (api.frequency_penalty.value_or(0.0) != 0.0) return refuse("frequency_penalty");
  if (api.presence_penalty.value_or(0.0) != 0.0) return refuse("presence_penalty");
  if (api.repetition_penalty.value_or(1.0) != 1.0) return refuse("repetition_penalty");
  if (!api.logit_bias.empty()) return refuse("logit_bias");
  if (api.min_tokens.value_or(0) != 0) return refuse("min_tokens");
  if (api.seed) return refuse("seed");
  return absl::OkStatus();
}

absl::Status CheckBeams(const ApiRequest& api, const ModelLimits& model) {
  if (!api.use_beam_search) return CheckNoBeams(api);
  if (auto s =
          CheckRange("length_penalty", api.length_penalty, -kMaxLengthPenalty, kMaxLengthPenalty);
      !s.ok()) {
    return s;
  }
  if (auto s = CheckNoSampling(api); !s.ok()) return s;
  if (!api.stop.empty()) {
    return Unsupported("stop", "stop strings are not supported with beam search");
  }
  if (api.max_tokens == 0) {
    return InvalidField("max_tokens", "max_tokens is 0; beam search needs at least 1");
  }
  const auto beams = static_cast<std::size_t>(api.best_of.value_or(api.n.value_or(1)));
  const std::size_t stops = StopTokens(api, model).size();
  const std::size_t candidates = beams * std::max<std::size_t>(2, 1 + stops);
  if (candidates > BeamOptions::kMaxCandidates) {
    return InvalidField(api.best_of ? "best_of" : "n",
                        Cat(beams, " beams with ", stops, " stop tokens have ", candidates,
                            " candidates; at most ", BeamOptions::kMaxCandidates, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TokenId> StopTokens(const ApiRequest& api, const ModelLimits& model) {
  std::vector<TokenId> stops(api.stop_token_ids.begin(), api.stop_token_ids.end());
  if (!api.ignore_eos) {
    stops.insert(stops.end(), model.end_tokens.begin(), model.end_tokens.end());
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return stops;
}

absl::StatusOr<GenerateRequest> Validator::Validate(ApiRequest api,
                                                    const ModelLimits& model) const {
  if (auto s = CheckModel(api.model, model); !s.ok()) return s;
  if (auto s = CheckPrompt(api, limits_, model); !s.ok()) return s;
  if (auto s = CheckSampling(api, model); !s.ok()) return s;
  if (auto s = CheckPenalties(api, model); !s.ok()) return s;
  if (auto s = CheckStops(api, limits_, model); !s.ok()) return s;
  if (auto s = CheckScalars(api, limits_, model); !s.ok()) return s;
  if (auto s = CheckSequences(api, model); !s.ok()) return s;
  if (auto s = CheckBeams(api, model); !s.ok()) return s;

  api.temperature = api.temperature.value_or(1.0);
  api.top_p = api.top_p.value_or(1.0);
  api.top_k = std::max<std::int64_t>(api.top_k.value_or(0), 0);
  api.timeout_ms = api.timeout_ms.value_or(limits_.default_timeout_ms);
  api.n = api.n.value_or(1);
  return GenerateRequest(std::move(api));
}

absl::Status CheckModel(std::string_view name, const ModelLimits& model) {
  return name == model.id ? absl::OkStatus() : NoSuchModel(name, {model.id});
}

absl::Status NoSuchModel(std::string_view name, std::vector<std::string> served) {
  const std::string there = NearestNames(name, std::move(served));
  const std::string hint = there.empty() ? "" : Cat("; served here: ", there);
  if (name.empty()) return InvalidField("model", Cat("model is missing", hint));
  // The name is the client's text, so it is cut to a length that fits a log line.
  const std::string shown = RepairUtf8(name.substr(0, 200));
  return WithField(absl::NotFoundError(Cat("the model '", shown, "' does not exist", hint)),
                   "model", kModelNotFound);
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

absl::Status CheckSizes(const ApiRequest& api, const RequestLimits& limits) {
  if (api.model.size() > limits.max_model_bytes) return NoSuchModel(api.model, {});
  if (auto s = CheckBiasCount(api); !s.ok()) return s;
  if (auto s = CheckStopSizes(api, limits); !s.ok()) return s;
  return CheckLabelSizes(api, limits);
}

absl::Status TooManyMessages(const RequestLimits& limits) {
  return InvalidField("messages", Cat("messages has more than ", limits.max_messages, " entries"));
}

absl::Status CheckInput(std::variant<std::string, std::vector<ChatTurn>>& input,
                        const RequestLimits& limits) {
  if (auto* turns = std::get_if<std::vector<ChatTurn>>(&input)) {
    return CheckConversation(*turns, limits);
  }
  return CheckText("prompt", std::get<std::string>(input), limits.max_prompt_bytes);
}

}  // namespace flotilla
