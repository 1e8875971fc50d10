#include "router/generate_request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "common/types/text.h"
#include "router/check_conversation.h"
#include "router/errors.h"
#include "router/names.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

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

absl::Status CheckPrompt(const ApiRequest& api, const RequestLimits& limits,
                         const ModelLimits& model) {
  if (const auto* conversation = std::get_if<Conversation>(&api.prompt)) {
    return CheckConversation(*conversation, limits);
  }
  if (const auto* text = std::get_if<std::string>(&api.prompt)) {
    return CheckText("prompt", *text, limits.max_prompt_bytes);
  }
  const auto& tokens = std::get<std::vector<std::int64_t>>(api.prompt);
  if (tokens.empty()) return InvalidField("prompt", "prompt must have at least one token");
  if (api.truncate_prompt_tokens.has_value()) {
    if (auto s = CheckCount("prompt", tokens.size(), "tokens", limits.max_tokenized); !s.ok()) {
      return s;
    }
  } else if (tokens.size() > model.max_context) {
    return WithField(absl::OutOfRangeError(Cat("the prompt has ", tokens.size(),
                                               " tokens; the model's context is ",
                                               model.max_context, " tokens")),
                     "prompt", kContextLengthExceeded);
  }
  return CheckTokenIds("prompt", tokens, model);
}

// What the rows of the table are checked against.
struct Bounds {
  const ApiRequest& api;
  const RequestLimits& limits;
  const ModelLimits& model;
};

double MaxOf(const Range& range, const Bounds& bounds) {
  switch (range.limit) {
    case Limit::kVocabulary:
      return bounds.model.vocab_size;
    case Limit::kContext:
      return bounds.model.max_context;
    case Limit::kMaxTokens:
      return static_cast<double>(bounds.api.max_tokens.value_or(bounds.model.max_context));
    case Limit::kSequences:
      return bounds.model.max_sequences;
    case Limit::kTimeout:
      return static_cast<double>(bounds.limits.max_timeout_ms);
    case Limit::kNone:
      break;
  }
  return range.high;
}

// The first group of overloads checks the size of a list or text, the second one the value of a
// parameter, its size included.
template <class T>
absl::Status CheckSize(const Parameter&, const T&, const RequestLimits&) {
  return absl::OkStatus();
}
absl::Status CheckSize(const Parameter& row, const std::string& text, const RequestLimits& limits) {
  return CheckBytes(row.name, text, limits.max_label_bytes);
}
absl::Status CheckSize(const Parameter& row, const std::vector<std::string>& strings,
                       const RequestLimits& limits) {
  const auto& [most, most_bytes, what] = BoundOf(row, limits);
  if (auto s = CheckCount(row.name, strings.size(), "strings", most); !s.ok()) return s;
  for (const std::string& each : strings) {
    if (auto s = CheckBytes(row.name, each, most_bytes); !s.ok()) return s;
  }
  return absl::OkStatus();
}
absl::Status CheckSize(const Parameter& row, const std::vector<std::int64_t>& tokens,
                       const RequestLimits& limits) {
  return CheckCount(row.name, tokens.size(), "entries", BoundOf(row, limits).most);
}
absl::Status CheckSize(const Parameter& row,
                       const std::vector<std::pair<std::int64_t, double>>& biases,
                       const RequestLimits& limits) {
  return CheckCount(row.name, biases.size(), "tokens", BoundOf(row, limits).most);
}

template <class T>
absl::Status CheckValue(const Parameter&, const T&, const Bounds&) {
  return absl::OkStatus();
}
template <class T>
requires std::is_arithmetic_v<T> absl::Status CheckValue(const Parameter& row,
                                                         const std::optional<T>& value,
                                                         const Bounds& bounds) {
  if (!value) return absl::OkStatus();
  double low = std::min(row.range.low, row.exceptions.also_default.value_or(row.range.low));
  const double high = MaxOf(row.range, bounds);
  // What stands for the default may lie apart from the range.
  if (*value > low && *value < row.range.low) low = row.range.low;
  const std::string error = RangeError(row, *value, static_cast<T>(low), static_cast<T>(high));
  if (error.empty()) return absl::OkStatus();
  // More tokens than fit the context are refused once the prompt's length is known. Here only
  // numbers that no prompt could make valid are refused.
  if (row.range.limit == Limit::kContext && *value > static_cast<T>(high)) {
    const bool output = row.name == ParameterNamed("max_tokens").name;
    const std::string_view name = output ? bounds.api.max_tokens_name : row.name;
    return WithField(absl::OutOfRangeError(Cat(name, " is ", *value, "; the model's context is ",
                                               bounds.model.max_context, " tokens")),
                     name, kContextLengthExceeded);
  }
  return InvalidField(row.name, error);
}
absl::Status CheckValue(const Parameter&, const std::optional<std::uint64_t>&, const Bounds&) {
  return absl::OkStatus();  // any seed will do
}
absl::Status CheckValue(const Parameter& row, const std::string& text, const Bounds& bounds) {
  return CheckText(row.name, text, bounds.limits.max_label_bytes);
}
absl::Status CheckValue(const Parameter& row, const std::vector<std::string>& strings,
                        const Bounds& bounds) {
  if (auto s = CheckSize(row, strings, bounds.limits); !s.ok()) return s;
  for (const std::string& each : strings) {
    if (each.empty()) {
      return InvalidField(row.name, Cat(BoundOf(row, bounds.limits).what, " must not be empty"));
    }
    if (!IsValidUtf8(each)) return InvalidField(row.name, Cat(row.name, " is not valid UTF-8"));
  }
  return absl::OkStatus();
}
absl::Status CheckValue(const Parameter& row, const std::vector<std::int64_t>& tokens,
                        const Bounds& bounds) {
  if (auto s = CheckSize(row, tokens, bounds.limits); !s.ok()) return s;
  return CheckTokenIds(row.name, tokens, bounds.model);
}
absl::Status CheckValue(const Parameter& row,
                        const std::vector<std::pair<std::int64_t, double>>& biases,
                        const Bounds& bounds) {
  if (auto s = CheckSize(row, biases, bounds.limits); !s.ok()) return s;
  std::vector<std::int64_t> tokens;
  tokens.reserve(biases.size());
  for (const auto& [token, bias] : biases) {
    if (auto s = CheckValue(row, std::optional(bias), bounds); !s.ok()) return s;
    tokens.push_back(token);
  }
  if (auto s = CheckTokenIds(row.name, tokens, bounds.model); !s.ok()) return s;
  std::sort(tokens.begin(), tokens.end());
  if (std::adjacent_find(tokens.begin(), tokens.end()) != tokens.end()) {
    return InvalidField(row.name, Cat(row.name, " names a token twice"));
  }
  return absl::OkStatus();
}

// Checks the parameter of one row.
absl::Status CheckParameter(const Parameter& row, const Bounds& bounds) {
  return std::visit([&](auto member) { return CheckValue(row, bounds.api.*member, bounds); },
                    row.asked);
}

// Whether the parameter has its default, or a value that means the same in a mode without it.
template <class T>
bool IsDefault(const Parameter& row, const std::optional<T>& value) {
  const bool is_float = std::holds_alternative<float SamplingParams::*>(row.sampler);
  // 0.1 is another double than the float that is the default.
  const bool is_default =
      row.default_value.has_value() && value.has_value() &&
      (*value == *row.default_value ||
       (is_float && static_cast<float>(*value) == static_cast<float>(*row.default_value)));
  return !value || is_default || *value == row.exceptions.also_default ||
         *value == row.exceptions.beams_take;
}
bool IsDefault(const Parameter&, const std::optional<std::uint64_t>& value) { return !value; }
bool IsDefault(const Parameter&, const std::optional<BeamOptions::EarlyStopping>& value) {
  return value.value_or(BeamOptions::EarlyStopping::kFalse) == BeamOptions::EarlyStopping::kFalse;
}
bool IsDefault(const Parameter&, bool value) { return !value; }
template <class List>
requires requires(const List& list) { list.empty(); }
bool IsDefault(const Parameter&, const List& list) { return list.empty(); }

// The error for the first parameter of these modes that does not have its default.
absl::Status CheckDefaults(const ApiRequest& api, Modes modes, std::string_view why) {
  for (const Parameter& row : kParameters) {
    if (row.modes != modes) continue;
    const bool is_default =
        std::visit([&](auto member) { return IsDefault(row, api.*member); }, row.asked);
    if (!is_default) return InvalidField(row.name, Cat(row.name, why));
  }
  return absl::OkStatus();
}

// Sets a parameter that the client left out, and one whose value stands for the default.
template <class T>
void SetDefault(const Parameter&, T&) {}
template <class T>
requires std::is_arithmetic_v<T>
void SetDefault(const Parameter& row, std::optional<T>& value) {
  if (row.default_value && (!value || *value == row.exceptions.also_default)) {
    value = static_cast<T>(*row.default_value);
  }
}

// Sets a parameter that the client left out.
template <class T>
void Fill(T&, double) {}
template <class T>
requires std::is_arithmetic_v<T>
void Fill(std::optional<T>& asked, double value) {
  if (!asked) asked = static_cast<T>(value);
}

// Calls visit(row, member) for the row of the sampler with this name, if there is one.
template <class Visit>
void VisitOfSampler(std::string_view name, Visit visit) {
  for (const Parameter& row : kParameters) {
    if (row.name != name || row.sampler.index() == 0) continue;
    std::visit([&](auto member) { visit(row, member); }, row.asked);
  }
}

// Beam search takes no parameters of the sampler.
void FillSampling(const std::vector<SamplingDefault>& sampling, ApiRequest& api) {
  if (api.use_beam_search) return;
  for (const SamplingDefault& one : sampling) {
    VisitOfSampler(one.name, [&](const Parameter&, auto member) { Fill(api.*member, one.value); });
  }
}

// The error for a valid value that does not fit the value of another field.
absl::Status Unsupported(std::string_view field, std::string_view message) {
  return WithField(absl::InvalidArgumentError(std::string(message)), field, kUnsupportedField);
}

absl::Status CheckSequences(const ApiRequest& api) {
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

// Whether a first token is left.
absl::Status CheckAllowed(const ApiRequest& api, const ModelLimits& model) {
  if (api.allowed_token_ids.empty() || api.min_tokens.value_or(0) == 0) return absl::OkStatus();
  const std::vector<TokenId> stops = StopTokens(api, model);
  const bool left = std::any_of(
      api.allowed_token_ids.begin(), api.allowed_token_ids.end(), [&](std::int64_t token) {
        return !std::binary_search(stops.begin(), stops.end(), static_cast<TokenId>(token));
      });
  return left ? absl::OkStatus()
              : InvalidField("allowed_token_ids",
                             "allowed_token_ids has only end tokens, which min_tokens excludes");
}

// A constraint ends the answer itself, so what else may end it or keep it going is refused.
absl::Status CheckConstraint(const ApiRequest& api, const ModelLimits& model) {
  const auto* conversation = std::get_if<Conversation>(&api.prompt);
  const bool must_call = conversation != nullptr && conversation->must_call();
  if (api.constraint && must_call) {
    return Unsupported("tool_choice",
                       "a tool_choice that makes the model call a tool is not supported with "
                       "structured output, which such an answer has no place for");
  }
  if (!api.constraint && !must_call) return absl::OkStatus();
  const bool other_stops = std::any_of(
      api.stop_token_ids.begin(), api.stop_token_ids.end(), [&model](std::int64_t token) {
        return std::find(model.end_tokens.begin(), model.end_tokens.end(), token) ==
               model.end_tokens.end();
      });
  const std::pair<std::string_view, bool> used[] = {
      {"ignore_eos", api.ignore_eos},
      {"stop", !api.stop.empty()},
      {"stop_token_ids", other_stops},
      {"min_tokens", api.min_tokens.value_or(0) > 0},
  };
  for (const auto& [field, is_used] : used) {
    if (is_used) {
      return Unsupported(field, Cat(field, " is not supported with ",
                                    must_call ? "a tool_choice that makes the model call a tool"
                                              : "structured output"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckThinking(const ApiRequest& api) {
  if (api.thinking_token_budget.value_or(-1) < 0 ||
      std::holds_alternative<Conversation>(api.prompt)) {
    return absl::OkStatus();
  }
  return Unsupported("thinking_token_budget",
                     "thinking_token_budget is supported with messages only");
}

absl::Status CheckBeams(const ApiRequest& api, const Bounds& bounds) {
  if (!api.use_beam_search) return CheckDefaults(api, Modes::kBeams, " needs beam search");
  for (const Parameter& row : kParameters) {
    if (row.modes != Modes::kBeams) continue;
    if (auto s = CheckParameter(row, bounds); !s.ok()) return s;
  }
  // Beam search does not sample, so it would silently ignore these.
  if (auto s = CheckDefaults(api, Modes::kSampling, " has no part in beam search"); !s.ok()) {
    return s;
  }
  if (!api.stop.empty()) {
    return Unsupported("stop", "stop strings are not supported with beam search");
  }
  if (api.max_tokens == 0) {
    return InvalidField("max_tokens", "max_tokens is 0; beam search needs at least 1");
  }
  const auto beams = static_cast<std::size_t>(api.best_of.value_or(api.n.value_or(1)));
  const std::size_t stops = StopTokens(api, bounds.model).size();
  const std::size_t candidates = beams * std::max<std::size_t>(2, 1 + stops);
  if (candidates > BeamOptions::kMaxCandidates) {
    return InvalidField(api.best_of ? "best_of" : "n",
                        Cat(beams, " beams with ", stops, " stop tokens have ", candidates,
                            " candidates; at most ", BeamOptions::kMaxCandidates, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

SizeBound BoundOf(const Parameter& row, const RequestLimits& limits) {
  if (row.name == ParameterNamed("stop").name) {
    return {limits.max_stop_strings, limits.max_stop_bytes, "a stop string"};
  }
  if (row.name == ParameterNamed("bad_words").name) {
    return {limits.max_bad_words, limits.max_stop_bytes, "a bad word"};
  }
  if (row.name == ParameterNamed("stop_token_ids").name) return {limits.max_stop_tokens};
  if (row.name == ParameterNamed("allowed_token_ids").name) return {SamplingParams::kMaxAllowed};
  if (row.name == ParameterNamed("logit_bias").name) return {SamplingParams::kMaxBiases};
  return {limits.max_dry_breakers, limits.max_dry_breaker_bytes, "a breaker"};
}

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
  const Bounds bounds{api, limits_, model};
  for (const Parameter& row : kParameters) {
    if (row.modes == Modes::kBeams) continue;
    if (auto s = CheckParameter(row, bounds); !s.ok()) return s;
  }
  if (api.background) {
    constexpr std::int64_t kLowestPriority = -100;
    if (api.priority.value_or(kLowestPriority) != kLowestPriority) {
      return InvalidField("priority",
                          Cat("priority is ", *api.priority, "; the requests of a batch ",
                              "have the lowest, ", kLowestPriority));
    }
    api.priority = kLowestPriority;
  }
  if (const std::int64_t priority = api.priority.value_or(0); priority > api.max_priority) {
    return InvalidField(
        "priority", Cat("priority is ", priority, "; this key may use at most ", api.max_priority));
  }
  if (auto s = CheckText("tenant", api.tenant, limits_.max_label_bytes); !s.ok()) return s;
  if (auto s = CheckSequences(api); !s.ok()) return s;
  if (auto s = CheckAllowed(api, model); !s.ok()) return s;
  if (auto s = CheckConstraint(api, model); !s.ok()) return s;
  if (auto s = CheckThinking(api); !s.ok()) return s;
  if (auto s = CheckBeams(api, bounds); !s.ok()) return s;

  FillSampling(model.sampling, api);
  for (const Parameter& row : kParameters) {
    std::visit([&](auto member) { SetDefault(row, api.*member); }, row.asked);
  }
  api.timeout_absent = !api.timeout_ms.has_value();
  if (api.timeout_absent && !api.is_line) api.timeout_ms = limits_.default_timeout_ms;
  return GenerateRequest(std::move(api));
}

std::vector<SamplingDefault> UsableSampling(const std::vector<SamplingDefault>& recommended,
                                            std::uint32_t vocab_size,
                                            std::vector<std::string>& refused) {
  std::vector<SamplingDefault> usable;
  const ModelLimits model{.id = {}, .vocab_size = vocab_size, .end_tokens = {}};
  for (const SamplingDefault& one : recommended) {
    std::string wrong = Cat(RepairUtf8(one.name.substr(0, 100)), " is no parameter of the sampler");
    VisitOfSampler(one.name, [&](const Parameter& row, auto member) {
      // A double has all integers up to this.
      constexpr double kMost = std::int64_t{1} << 53;
      const bool is_integer = std::abs(one.value) < kMost && one.value == std::trunc(one.value);
      if (std::isnan(one.value)) {
        wrong = Cat(row.name, " is not a number");
      } else if (std::holds_alternative<std::int32_t SamplingParams::*>(row.sampler) &&
                 !is_integer) {
        wrong = Cat(row.name, " is ", one.value, "; it must be an integer");
      } else {
        ApiRequest api;
        Fill(api.*member, one.value);
        const absl::Status status = CheckValue(row, api.*member, Bounds{api, {}, model});
        wrong = std::string(status.message());
      }
    });
    if (wrong.empty()) {
      usable.push_back(one);
    } else {
      refused.push_back(std::move(wrong));
    }
  }
  return usable;
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
  for (const Parameter& row : kParameters) {
    auto s =
        std::visit([&](auto member) { return CheckSize(row, api.*member, limits); }, row.asked);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status TooManyMessages(const RequestLimits& limits) {
  return InvalidField("messages", Cat("messages has more than ", limits.max_messages, " entries"));
}

absl::Status CheckInput(const std::variant<std::string, Conversation>& input,
                        const RequestLimits& limits) {
  if (const auto* conversation = std::get_if<Conversation>(&input)) {
    return CheckConversation(*conversation, limits);
  }
  return CheckText("prompt", std::get<std::string>(input), limits.max_prompt_bytes);
}

}  // namespace flotilla::router
