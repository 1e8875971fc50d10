// InferenceService: everything a router does between a wire protocol and the
// Engine seam. Both frontends (HTTP and gRPC) are thin layers over it.
//
// A frontend has I/O threads. Each opens one IoLoop and then talks to the service
// through it: every callback of a generation started on an I/O loop runs on that
// I/O loop's thread, where detokenization and stop matching happen too. An engine
// step reaches an I/O loop as one posted batch. Encoding and chat templates run on a
// bounded pool owned by the service.
//
// Example, on the I/O loop's thread:
//   auto request = service.Validate(std::move(api));
//   if (!request.ok()) return Refuse(request.status());
//   auto generation = service.Start(*std::move(request), *io_loop, &listener);
//   if (!generation.ok()) return Refuse(generation.status());
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "common/types/request_outcome.h"
#include "router/errors.h"
#include "router/generate_request.h"

namespace flotilla::model {
class ChatTemplate;
class Tokenizer;
}  // namespace flotilla::model

namespace flotilla::router {

class RouterMetrics;

// Runs work on a frontend's I/O thread. Outlives the I/O loops that are opened on it.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  // Runs `work` once, later, on the I/O thread. A dispatcher runs its work one piece at a
  // time and in order. May be called on any thread; never blocks, never runs `work` inline.
  virtual void Post(std::function<void()> work) = 0;
};

// The next piece of a call of a tool.
struct ToolCallDelta {
  std::uint32_t index = 0;  // the call's number in its choice, from 0
  std::string id = {};      // only the first piece of a call has id and name
  std::string name = {};
  std::string arguments = {};
};

// An update of one choice: at most one per choice and engine step.
struct Delta {
  std::uint32_t choice = 0;
  // Valid UTF-8, never half a character. Text that may become a stop string is held back,
  // so `text` can be empty while `tokens` is not. In the last delta it can be the other way
  // round.
  std::string text;
  // Of a chat: the model's thoughts, if they are told apart, and calls of tools, in order. They are
  // no part of `text`, and whole characters, too.
  std::string reasoning = {};
  std::vector<ToolCallDelta> tool_calls = {};
  // The tokens in order, each exactly once, including the token that ended the choice.
  std::vector<SampledToken> tokens;
};

struct PromptInfo {
  std::vector<TokenId> tokens;
};

// Log-probabilities of prompt tokens [first, first + tokens.size()); together
// they cover prompt positions 1 .. size - 1 (the first token has none).
struct PromptScores {
  std::uint32_t first = 1;
  std::vector<SampledToken> tokens;
};

struct ChoiceEnd {
  std::uint32_t choice = 0;
  // As the engine says, but kStop also for a stop string. Never kMoved.
  FinishReason reason = FinishReason::kStop;
  // The stop string or token that matched, if one did.
  std::optional<std::string> stop_string;
  std::optional<TokenId> stop_token;
  // The token is one of the model's own, which the client did not name.
  bool is_end_token = false;
  // The choice has calls of tools.
  bool has_tool_calls = false;
  // With best_of > 1 it is the mean log-probability of the choice's tokens. With beam search
  // it is the sequence's score (BeamOptions). None without tokens.
  std::optional<float> score;
};

struct GenerationEnd {
  // OK unless the request was refused or failed; see router/errors.h for the
  // field, code and retry hint that it carries.
  absl::Status status;
  Usage usage;
  // How often the request was submitted: more than 1 after a replay.
  std::uint32_t attempts = 1;
};

// Receives the events of one generation. The order is: OnPrompt, OnAccepted, then
// OnPromptScores and OnDelta, one OnChoiceEnd per choice after its last delta, and at the
// end OnDone, always and once. Choices are numbered from 0 to n - 1 and come interleaved.
// If fewer than best_of come back, or with beam search, the deltas come at the end, best
// choice first. A failure may come at any point as OnDone with a status; choices without
// OnChoiceEnd then never get one. Runs on the I/O loop's thread; may destroy the Generation
// from within OnDone, but not from within the others.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // The prompt as the model sees it.
  virtual void OnPrompt(const PromptInfo& prompt) = 0;
  // The request is admitted, and no refusal follows. The frontend can answer with a success
  // status now.
  virtual void OnAccepted() = 0;
  virtual void OnPromptScores(PromptScores scores) = 0;
  virtual void OnDelta(Delta delta) = 0;
  virtual void OnChoiceEnd(const ChoiceEnd& end) = 0;
  virtual void OnDone(const GenerationEnd& end) = 0;
};

// One running request. All calls, destruction included, happen on its I/O loop's thread.
class Generation {
 public:
  // Cancels unless done; no callback after this.
  virtual ~Generation() = default;
  // Ends the request early; idempotent. Its choices end with kCancelled, and OnDone follows
  // later from the I/O loop.
  virtual void Cancel() = 0;
  // Called by a frontend that ends the request because its time is over; the frontend then
  // destroys the Generation. Only records and metrics tell this from a client that leaves.
  virtual void Expire() = 0;
  // Public name: unguessable, unique. The key for InferenceService::Abort.
  virtual const std::string& id() const = 0;
};

// One I/O thread's door to the service. Created and destroyed on that thread or
// while it does not run; destroyed after its generations. After destruction
// nothing more is posted to its dispatcher.
class IoLoop {
 public:
  virtual ~IoLoop() = default;
};

struct ModelInfo {
  ModelLimits limits;
  std::uint64_t numerics_id = 0;
  Exactness exactness = Exactness::kBitwise;
  std::int64_t created_s = 0;                  // ServedModel::created_s
  std::vector<SamplingDefault> sampling = {};  // ServedModel::sampling
};

// A model, with its tokenizer and chat template. It owns nothing; all that it points to
// outlives the service.
struct ServedModel {
  std::string id;                   // as clients name it
  std::vector<TokenId> end_tokens;  // the model's own (model/stop_tokens.h)
  std::int64_t created_s = 0;       // Unix time, for ModelInfo
  Engine* engine = nullptr;         // on the service's clock
  const model::Tokenizer* tokenizer = nullptr;
  const model::ChatTemplate* chat_template = nullptr;  // null: no chat
  // Used where there are tools; null: chat_template is.
  const model::ChatTemplate* tool_template = nullptr;
  std::vector<SamplingDefault> sampling = {};  // what its files recommend, if it is usable
  RouterMetrics* metrics = nullptr;            // may be null
};

struct TokenizeRequest {
  std::string model;
  std::string tenant;  // set by the frontend; tenants take turns at the pool
  // Set by the frontend when nobody waits for the answer any more; may be null.
  std::shared_ptr<const std::atomic<bool>> abandoned;
  std::variant<std::string, Conversation> input;
  bool add_special_tokens = true;  // text only
  bool parse_special = false;      // text only: special tokens in it are recognised
};

// The most tokens that Detokenize takes.
inline constexpr std::size_t kMaxDetokenize = 1 << 20;

struct DetokenizeRequest {
  std::string model;
  std::vector<std::int64_t> tokens;
  std::string tenant;                                  // as in a TokenizeRequest
  std::shared_ptr<const std::atomic<bool>> abandoned;  // the same
};

// The outcome of a request, for logs. Its texts live only as long as the call that passes it.
struct RequestRecord {
  RequestId id;
  std::string_view public_id;
  std::string_view label;  // the client's name of it
  std::string_view model;
  std::string_view tenant;
  bool background = false;        // a line of a batch
  TraceContext trace;             // this router's span
  std::uint64_t parent_span = 0;  // the client's; 0: the trace begins here
  RequestOutcome outcome = RequestOutcome::kFinished;
  absl::Status status;  // why it was refused, or failed
  Usage usage;
  std::uint32_t attempts = 0;                  // submissions; 0: it came to none
  std::optional<std::int64_t> first_token_ns;  // both since its start
  std::int64_t elapsed_ns = 0;
};

struct ServiceOptions {
  RequestLimits limits;
  std::uint32_t tokenizer_threads = 1;
  std::size_t tokenizer_queue = 256;              // jobs waiting; more are refused
  std::size_t tokenizer_queue_bytes = 32u << 20;  // their input
  // Parameters of the sampler that a client leaves out are what the model's files recommend.
  bool model_sampling = false;
  // How often a request is submitted in all, if engines give it back.
  std::uint32_t max_attempts = 8;
  // Called by Start with the tenant and with how many prompts its client sent together, unless it
  // is a line of a batch. Its error is that of Start; else the generation keeps what it returns.
  // May be empty. Any thread.
  std::function<absl::StatusOr<std::shared_ptr<void>>(const std::string& tenant,
                                                      std::uint32_t prompts)>
      permit;
  // Called when a request that was started is over, on its I/O loop's thread. Must not
  // block. May be empty.
  std::function<void(const RequestRecord&)> on_over;
  // What chat templates get for the date in a format of strftime, in the server's time zone. Any
  // thread. If it is empty, templates that ask for the date fail.
  std::function<std::string(std::string_view format)> strftime_now;
};

class InferenceService {
 public:
  // Starts the pool. All I/O loops and generations are destroyed before the service. `clock`
  // and `metrics` outlive it. `metrics` counts requests that name no model; it may be null.
  static std::unique_ptr<InferenceService> Create(ServiceOptions options, const Clock* clock,
                                                  RouterMetrics* metrics = nullptr);
  virtual ~InferenceService() = default;

  // Serves one more model from now on; models are never removed. Its id is new. Any thread.
  virtual void AddModel(ServedModel model) = 0;

  // `dispatcher` outlives the I/O loop. Any thread.
  virtual std::unique_ptr<IoLoop> OpenIoLoop(Dispatcher* dispatcher) = 0;

  // Checks a request; see Validator. NOT_FOUND with kModelNotFound for a model that is
  // not served, UNAVAILABLE while its engine was never ready. Any thread.
  virtual absl::StatusOr<GenerateRequest> Validate(ApiRequest api) const = 0;

  // Begins a generation; called only on the I/O loop's thread. If the request has no seed, it
  // gets a hash of tenant and client request id, or a random one. RESOURCE_EXHAUSTED
  // with a retry hint: the tokenizer pool's queue is full, or this tenant's part of it, or
  // ServiceOptions::permit says so.
  // Later refusals arrive as OnDone before OnAccepted: the engine's queue is full, or the
  // prompt is longer than the context. The latter is OUT_OF_RANGE with
  // kContextLengthExceeded; it does not say the prompt's length, because encoding stops at
  // the bound.
  // `listener` outlives the returned object.
  virtual absl::StatusOr<std::unique_ptr<Generation>> Start(GenerateRequest request,
                                                            IoLoop& io_loop,
                                                            GenerationListener* listener) = 0;

  // Cancels the generation with this public id; false when there is none (any
  // more). Any thread.
  virtual bool Abort(std::string_view id) = 0;

  // Encodes on the pool and calls `done` on the I/O loop's thread (not at all once
  // the I/O loop is gone). INVALID_ARGUMENT, NOT_FOUND (model) and RESOURCE_EXHAUSTED
  // are posted to `done` at once. Called on the I/O loop's thread.
  virtual void Tokenize(TokenizeRequest request, IoLoop& io_loop,
                        std::function<void(absl::StatusOr<std::vector<TokenId>>)> done) = 0;
  // Decodes. Special tokens become their text, and U+FFFD replaces invalid UTF-8. `done`
  // gets the same errors as in Tokenize, and INVALID_ARGUMENT also for more than
  // kMaxDetokenize tokens or a text longer than RequestLimits::max_prompt_bytes.
  virtual void Detokenize(DetokenizeRequest request, IoLoop& io_loop,
                          std::function<void(absl::StatusOr<std::string>)> done) = 0;

  // Lets a frontend process a long input off its thread. Runs `work` on the pool, charged to
  // the tenant as `input_bytes` of input, destroys it there, and runs the function that it
  // returned on the I/O loop's thread (not at all once the I/O loop is gone). If the pool's
  // queue is full, the result is RESOURCE_EXHAUSTED with a retry hint, and nothing runs. Nothing
  // runs either if `abandoned` (null: never) is set before the work's turn. Called on the I/O
  // loop's thread.
  virtual absl::Status RunOnPool(std::string_view tenant, std::size_t input_bytes, IoLoop& io_loop,
                                 std::function<std::function<void()>()> work,
                                 std::shared_ptr<const std::atomic<bool>> abandoned) = 0;

  // The raw bytes of one token (special tokens: their text); empty when outside
  // the vocabulary, or when there is no such model. May be part of a character. Any
  // thread.
  virtual std::string_view TokenBytes(std::string_view model, TokenId token) const = 0;

  // The models served, without those whose engine was never ready. Any thread.
  virtual std::vector<ModelInfo> Models() const = 0;

  // True when a new request for one of the models would be served now: a worker group is
  // up and the engine is not draining. Any thread.
  virtual bool Ready() const = 0;
};

}  // namespace flotilla::router
