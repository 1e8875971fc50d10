// GenerateRequest: a client's request after all checks (parse, don't validate).
//
// A frontend fills an ApiRequest from its wire format; the Validator checks every
// bound and resolves every default that does not need the tokenizer. Only the
// Validator can make a GenerateRequest, so every GenerateRequest is valid.
// These are pure values, which may be used on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/parameters.h"
#include "common/types/tokenizer_bundle.h"
#include "router/conversation.h"

namespace flotilla::router {

// A generation as a client asked for it, before any check: its parameters, its prompt, and what
// the frontend knows of it.
struct ApiRequest : RequestParameters {
  std::string model;
  // Text, token ids, or a conversation that the chat template renders.
  std::variant<std::string, std::vector<std::int64_t>, Conversation> prompt;

  // The frontend sets all of these, and a body none of them.
  std::string_view max_tokens_name = "max_tokens";  // as the client calls it; a constant
  // Used, clipped to the context, when max_tokens is absent. If both are absent, the
  // limit is the rest of the context.
  std::optional<std::uint32_t> default_max_tokens;
  // The prompts of the client's request, each of which is one of these requests.
  std::uint32_t prompts = 1;
  // The client wants each token as soon as it is computed. A frontend that sends the answer
  // as a whole leaves it false.
  bool stream = false;
  std::string tenant;
  std::int64_t max_priority = 100;  // what the caller's key allows
  // Nobody waits for it: it gets the lowest priority, the limits of its key do not count it, and
  // the histograms of times to tokens neither.
  bool background = false;
  // A line of a file: its run waits as long as it takes, so without timeout_ms it has no deadline.
  bool is_line = false;
  std::int64_t waited_ns = 0;   // from its arrival to its start
  bool timeout_absent = false;  // timeout_ms is the server's limit; the validator sets it
  // The name of the request in logs if the client gave it none. No answer contains it.
  std::string label;
  // The span of the client that this request belongs to; all zero: none.
  TraceContext trace;
};

// Bounds of everything that a client can make large. A request that exceeds one gets
// INVALID_ARGUMENT, which names the field and the bound.
struct RequestLimits {
  std::size_t max_prompt_bytes = 4u << 20;
  std::size_t max_tokenized = 1u << 20;  // tokens that a text to be tokenized may have
  std::size_t max_messages = 1024;
  std::size_t max_tools = 128;              // OpenAI's; also the calls of one message
  std::size_t max_tool_bytes = 256u << 10;  // of all tools: names, descriptions and parameters
  std::size_t max_kwargs_bytes = 16u << 10;
  std::size_t max_stop_strings = 16;
  std::size_t max_bad_words = 64;
  std::size_t max_stop_bytes = 256;  // of one stop string or bad word
  std::size_t max_dry_breakers = 16;
  std::size_t max_dry_breaker_bytes = 40;  // of one, as in llama.cpp
  std::size_t max_stop_tokens = 64;
  // No model has a longer name. The error for a longer one does not list the models served.
  std::size_t max_model_bytes = 1024;
  std::size_t max_label_bytes = 256;  // client request id, cache salt, tenant
  std::int64_t max_timeout_ms = 3'600'000;
  std::int64_t default_timeout_ms = 600'000;
};

// The bound of a parameter that is a list: how many entries it has at most, and if these are texts,
// their bytes and what errors call one.
struct SizeBound {
  std::size_t most = 0, most_bytes = 0;
  std::string_view what = {};
};
SizeBound BoundOf(const Parameter& row, const RequestLimits& limits);

// The facts about a model and its engine that the validator needs.
struct ModelLimits {
  std::string id;
  std::uint32_t vocab_size = 0;
  std::uint32_t max_context = 0;    // prompt + output tokens
  std::uint32_t max_sequences = 1;  // of one request: bounds n and best_of
  std::vector<TokenId> end_tokens;  // the model's own
  // What parameters are that a client leaves out: some of UsableSampling, or none.
  std::vector<SamplingDefault> sampling = {};
};

// Of the values that a model's files recommend, those that a client could send, too. Appends to
// `refused` why others cannot be used.
std::vector<SamplingDefault> UsableSampling(const std::vector<SamplingDefault>& recommended,
                                            std::uint32_t vocab_size,
                                            std::vector<std::string>& refused);

// The tokens that end a choice: the request's, which are inside the vocabulary,
// and unless it ignores them the model's own. Sorted, unique.
std::vector<TokenId> StopTokens(const ApiRequest& api, const ModelLimits& model);

// The error for a name that none of the models `served` has: NOT_FOUND with kModelNotFound, or
// INVALID_ARGUMENT when `name` is empty. The message lists the names that are served, nearest
// first, in bounded length; so it must not reach a client that may not see them.
absl::Status NoSuchModel(std::string_view name, std::vector<std::string> served);

// NoSuchModel unless `name` is the model's id.
absl::Status CheckModel(std::string_view name, const ModelLimits& model);

// INVALID_ARGUMENT when a token id is outside the vocabulary.
absl::Status CheckTokenIds(std::string_view field, const std::vector<std::int64_t>& tokens,
                           const ModelLimits& model);

// The error for a conversation of more turns than RequestLimits::max_messages. It is for
// frontends that notice this before they have read all turns.
absl::Status TooManyMessages(const RequestLimits& limits);

// The Validator's error when a field other than the prompt exceeds its bound; OK otherwise,
// whatever the values are. It is for frontends that make several requests of one body: once it
// is OK, the fields that all of them share are small enough to copy.
absl::Status CheckSizes(const ApiRequest& api, const RequestLimits& limits);

// INVALID_ARGUMENT when the text exceeds a bound, or the conversation one of CheckConversation's.
absl::Status CheckInput(const std::variant<std::string, Conversation>& input,
                        const RequestLimits& limits);

class Validator;

// A validated request. Defaults that need the prompt's length (max_tokens) or
// randomness (seed) are resolved by the service.
class GenerateRequest {
 public:
  GenerateRequest(GenerateRequest&&) = default;
  GenerateRequest& operator=(GenerateRequest&&) = default;

  // All values are in range, and parameters with a default are set. Texts are valid
  // UTF-8, token ids are inside the vocabulary, and a conversation is in bounds.
  const ApiRequest& api() const { return api_; }
  ApiRequest Release() && { return std::move(api_); }

 private:
  friend class Validator;
  explicit GenerateRequest(ApiRequest api) : api_(std::move(api)) {}

  ApiRequest api_;
};

class Validator {
 public:
  explicit Validator(RequestLimits limits) : limits_(limits) {}

  // INVALID_ARGUMENT with field and code (router/errors.h); NOT_FOUND with
  // kModelNotFound when the request names another model.
  absl::StatusOr<GenerateRequest> Validate(ApiRequest api, const ModelLimits& model) const;

  const RequestLimits& limits() const { return limits_; }

 private:
  RequestLimits limits_;
};

}  // namespace flotilla::router
