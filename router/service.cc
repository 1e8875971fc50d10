#include "router/service.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "common/types/text.h"
#include "model/text/tokenizer.h"
#include "router/chat_prompt.h"
#include "router/encoder.h"
#include "router/generation.h"
#include "router/io_loop_state.h"
#include "router/model_name.h"
#include "router/tokenizer_pool.h"

namespace flotilla::router {
namespace {

// FNV-1a over both labels, the first closed by its length, then the finaliser
// of SplitMix64. Stable across processes and builds.
std::uint64_t SeedOf(std::string_view tenant, std::string_view request_id) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  const auto add = [&h](std::uint8_t byte) { h = (h ^ byte) * 0x100000001b3ull; };
  for (char c : tenant) add(static_cast<std::uint8_t>(c));
  for (int shift = 0; shift < 64; shift += 8) {
    add(static_cast<std::uint8_t>(static_cast<std::uint64_t>(tenant.size()) >> shift));
  }
  for (char c : request_id) add(static_cast<std::uint8_t>(c));
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

// What Constraint::tenant says of a tenant: the same at every router.
std::uint32_t NumberOf(std::string_view tenant) {
  return static_cast<std::uint32_t>(SeedOf(tenant, {}));
}

// A token may have a hundred bytes, so a text that is too long is refused before it is written.
absl::StatusOr<std::string> Decode(const model::Tokenizer& tokenizer,
                                   const std::vector<std::int64_t>& tokens, std::size_t most) {
  const std::vector<TokenId> ids(tokens.begin(), tokens.end());
  std::size_t bytes = 0;
  for (const TokenId id : ids) bytes += tokenizer.TokenBytes(id).size();
  if (bytes > most) {
    return InvalidField("tokens", Cat("the text of tokens is ", bytes, " bytes long; at most ",
                                      most, " are allowed"));
  }
  return tokenizer.Decode(ids, /*skip_special=*/false);
}

// The error for an input of Tokenize, which need not fit a context.
absl::Status TooManyTokens(const Input& input, std::size_t most) {
  return InvalidField(input.index() == 0 ? "prompt" : "messages",
                      Cat("the text has more than ", most, " tokens"));
}

absl::Status PoolFull() {
  // A full queue of the pool clears in tens of milliseconds.
  return WithRetryAfter(absl::ResourceExhaustedError("too many prompts wait for the tokenizer"),
                        200);
}

// A model, and the values that are computed of it once. It is never moved.
struct Model {
  Model(ServedModel served_model, const ServiceOptions& options, RouterMetrics* unread)
      : served(std::move(served_model)),
        encoder({served.tokenizer, served.chat_template, served.tool_template, options.strftime_now,
                 served.end_tokens}) {
    if (served.metrics == nullptr) served.metrics = unread;
  }
  ServedModel served;
  const Encoder encoder;
};

class ServiceImpl final : public InferenceService, public GenerationRegistry {
 public:
  ServiceImpl(ServiceOptions options, const Clock* clock, RouterMetrics* metrics)
      : options_(std::move(options)),
        clock_(clock),
        metrics_(metrics == nullptr ? &unread_metrics_ : metrics),
        validator_(options_.limits),
        incarnation_(Random()),
        pool_(options_.tokenizer_threads, options_.tokenizer_queue,
              options_.tokenizer_queue_bytes) {}

  void AddModel(ServedModel served) override {
    auto model = std::make_unique<Model>(std::move(served), options_, &unread_metrics_);
    absl::MutexLock lock(&models_mu_);
    models_.push_back(std::move(model));
  }

  std::unique_ptr<IoLoop> OpenIoLoop(Dispatcher* dispatcher) override {
    return std::make_unique<IoLoopImpl>(dispatcher);
  }

  absl::StatusOr<GenerateRequest> Validate(ApiRequest api) const override {
    absl::StatusOr<Known> known = Find(api.model);
    if (!known.ok()) {
      metrics_->OnRefused(known.status());
      return known.status();
    }
    const Model& model = *known->model;
    api.model = model.served.id;
    absl::StatusOr<GenerateRequest> request =
        validator_.Validate(std::move(api), known->info.limits);
    if (request.ok()) {
      if (const auto* conversation = std::get_if<Conversation>(&request->api().prompt)) {
        absl::Status status = model.encoder.chat_prompt().Check(*conversation);
        if (!status.ok()) request = std::move(status);
      }
    }
    if (!request.ok()) model.served.metrics->OnRefused(request.status());
    return request;
  }

  absl::StatusOr<std::unique_ptr<Generation>> Start(GenerateRequest request, IoLoop& io_loop,
                                                    GenerationListener* listener) override;
  bool Abort(std::string_view id) override;
  void Tokenize(TokenizeRequest request, IoLoop& io_loop,
                std::function<void(absl::StatusOr<std::vector<TokenId>>)> done) override;
  void Detokenize(DetokenizeRequest request, IoLoop& io_loop,
                  std::function<void(absl::StatusOr<std::string>)> done) override;

  absl::Status RunOnPool(std::string_view tenant, std::size_t input_bytes, IoLoop& io_loop,
                         std::function<std::function<void()>()> work,
                         std::shared_ptr<const std::atomic<bool>> abandoned) override;

  std::string_view TokenBytes(std::string_view name, TokenId token) const override {
    const Model* model = FindServed(name);
    return model == nullptr ? std::string_view() : model->served.tokenizer->TokenBytes(token);
  }

  std::vector<ModelInfo> Models() const override {
    std::vector<ModelInfo> infos;
    absl::ReaderMutexLock lock(&models_mu_);
    for (const auto& model : models_) {
      if (auto info = InfoOf(*model); info.ok()) infos.push_back(*std::move(info));
    }
    return infos;
  }

  bool Ready() const override {
    absl::ReaderMutexLock lock(&models_mu_);
    return std::any_of(models_.begin(), models_.end(), [](const auto& model) {
      const EngineLoad load = model->served.engine->Load();
      return load.ready && !load.draining;
    });
  }

  void Forget(const std::string& public_id) override {
    absl::MutexLock lock(&mu_);
    running_.erase(public_id);
  }

 private:
  struct Running {
    std::weak_ptr<IoLoopState> io_loop;
    RequestId id;
  };

  static IoLoopState& StateOf(IoLoop& io_loop) {
    return *static_cast<IoLoopImpl&>(io_loop).state();
  }

  absl::StatusOr<ModelInfo> InfoOf(const Model& model) const {
    absl::StatusOr<EngineDescription> engine = model.served.engine->Describe();
    if (!engine.ok()) return absl::UnavailableError("the model is not ready yet");
    ModelInfo info;
    info.limits = {model.served.id, engine->vocab_size, engine->max_context, engine->max_sequences,
                   model.served.end_tokens};
    info.sampling = model.served.sampling;
    if (options_.model_sampling) info.limits.sampling = info.sampling;
    info.numerics_id = engine->numerics_id;
    info.exactness = engine->exactness;
    info.created_s = model.served.created_s;
    return info;
  }

  // The model that a client means; null: there is none.
  const Model* FindServed(std::string_view name) const {
    absl::ReaderMutexLock lock(&models_mu_);
    const auto called = [this](std::string_view id) ABSL_SHARED_LOCKS_REQUIRED(models_mu_) {
      const auto at = std::find_if(models_.begin(), models_.end(),
                                   [id](const auto& model) { return model->served.id == id; });
      return at == models_.end() ? nullptr : at->get();
    };
    if (const Model* exactly = called(name)) return exactly;
    std::vector<std::string_view> ids;
    for (const auto& model : models_) ids.push_back(model->served.id);
    const std::string_view meant = ModelMeant(name, ids);
    return meant.empty() ? nullptr : called(meant);
  }

  std::vector<std::string> ModelNames() const {
    std::vector<std::string> names;
    for (ModelInfo& model : Models()) names.push_back(std::move(model.limits.id));
    return names;
  }

  struct Known {
    const Model* model;
    ModelInfo info;
  };
  // A model that is served. UNAVAILABLE while there is none at all.
  absl::StatusOr<Known> Find(std::string_view name) const {
    const Model* model = FindServed(name);
    if (model == nullptr) {
      std::vector<std::string> served = ModelNames();
      if (served.empty()) return absl::UnavailableError("the model is not ready yet");
      return NoSuchModel(name, std::move(served));
    }
    absl::StatusOr<ModelInfo> info = InfoOf(*model);
    if (!info.ok()) return info.status();
    return Known{model, *std::move(info)};
  }

  std::uint64_t Random() {
    absl::MutexLock lock(&mu_);
    return absl::Uniform<std::uint64_t>(random_);
  }
  GenerationImpl::Identity NewIdentity();
  TokenizedRequest Resolve(const ApiRequest& api, const ModelLimits& model, const RequestId& id);

  const ServiceOptions options_;
  const Clock* const clock_;
  Metrics unread_;  // of models and services without metrics
  RouterMetrics unread_metrics_{unread_};
  RouterMetrics* const metrics_;
  const Validator validator_;
  mutable absl::Mutex models_mu_;
  // The models in the order in which they came. None is ever removed.
  std::vector<std::unique_ptr<const Model>> models_ ABSL_GUARDED_BY(models_mu_);
  absl::Mutex mu_;
  absl::BitGen random_ ABSL_GUARDED_BY(mu_);
  std::uint64_t next_counter_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<std::string, Running> running_ ABSL_GUARDED_BY(mu_);  // by public id
  const std::uint64_t incarnation_;
  TokenizerPool pool_;  // last: its threads use the rest
};

GenerationImpl::Identity ServiceImpl::NewIdentity() {
  const std::uint64_t high = Random(), low = Random();
  std::array<char, 33> hex;
  std::snprintf(hex.data(), hex.size(), "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  absl::MutexLock lock(&mu_);
  return {{incarnation_, next_counter_++}, std::string(hex.data(), 32)};
}

TokenizedRequest ServiceImpl::Resolve(const ApiRequest& api, const ModelLimits& model,
                                      const RequestId& id) {
  TokenizedRequest request;
  request.id = id;
  ForEachOfSampler([&](const Parameter& row, auto member) {
    auto& value = request.sampling.*member;
    const auto set = [&value](const auto& asked) {
      if constexpr (requires { value = static_cast<float>(*asked); }) {
        value = static_cast<std::remove_reference_t<decltype(value)>>(*asked);
      }
    };
    std::visit([&](auto asked) { set(api.*asked); }, row.asked);
  });
  for (const auto& [token, bias] : api.logit_bias) {
    request.sampling.logit_bias.push_back({static_cast<TokenId>(token), static_cast<float>(bias)});
  }
  std::sort(request.sampling.logit_bias.begin(), request.sampling.logit_bias.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  std::vector<TokenId>& allowed = request.sampling.allowed_tokens;
  allowed.assign(api.allowed_token_ids.begin(), api.allowed_token_ids.end());
  std::sort(allowed.begin(), allowed.end());
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  request.sampling.constraint = api.constraint;
  if (api.constraint) request.sampling.constraint.tenant = NumberOf(api.tenant);
  if (api.seed) {
    request.sampling.seed = *api.seed;
  } else if (!api.client_request_id.empty()) {
    // The same request sent twice, to whichever router, gives the same answer.
    request.sampling.seed = SeedOf(api.tenant, api.client_request_id);
  } else {
    request.sampling.seed = Random();
  }
  request.stop.stop_tokens = StopTokens(api, model);
  request.stop.min_tokens = static_cast<std::uint32_t>(*api.min_tokens);
  const auto candidates = static_cast<std::uint32_t>(api.best_of.value_or(*api.n));
  request.sequences = candidates;
  if (api.use_beam_search) {
    request.sequences = static_cast<std::uint32_t>(*api.n);
    request.beam = BeamOptions{
        .beams = candidates,
        .length_penalty = static_cast<float>(*api.length_penalty),
        .early_stopping = api.early_stopping.value_or(BeamOptions::EarlyStopping::kFalse)};
  }
  request.logprobs.output_top = static_cast<std::int32_t>(api.logprobs.value_or(LogprobSpec::kOff));
  request.logprobs.prompt_top =
      static_cast<std::int32_t>(api.prompt_logprobs.value_or(LogprobSpec::kOff));
  if (api.timeout_ms.has_value()) {
    request.deadline_ns = clock_->NowNs() - api.waited_ns + *api.timeout_ms * 1'000'000;
  }
  request.deadline_absent = api.timeout_absent;
  request.priority = static_cast<std::int32_t>(*api.priority);
  request.tenant = api.tenant;
  request.cache_salt = api.cache_salt;
  request.label = api.client_request_id.empty() ? api.label : api.client_request_id;
  request.trace = api.trace;
  if (api.trace == TraceContext()) {  // it begins here
    request.trace.trace_high = Random();
    request.trace.trace_low = Random();
  }
  request.trace.span = Random();
  return request;
}

absl::StatusOr<std::unique_ptr<Generation>> ServiceImpl::Start(GenerateRequest request,
                                                               IoLoop& io_loop,
                                                               GenerationListener* listener) {
  ApiRequest api = std::move(request).Release();
  absl::StatusOr<Known> known = Find(api.model);
  if (!known.ok()) return known.status();
  const Model& model = *known->model;
  const ModelLimits& limits = known->info.limits;
  absl::StatusOr<std::shared_ptr<void>> permit = std::shared_ptr<void>();
  if (options_.permit && !api.background) permit = options_.permit(api.tenant, api.prompts);
  if (!permit.ok()) {
    model.served.metrics->OnRefused(permit.status());
    return permit.status();
  }
  const std::shared_ptr<IoLoopState>& state = static_cast<IoLoopImpl&>(io_loop).state();
  GenerationImpl::Identity identity = NewIdentity();
  const RequestId id = identity.id;
  {
    absl::MutexLock lock(&mu_);
    running_[identity.public_id] = {state, id};
  }
  const GenerationImpl::Environment environment{model.served.engine,
                                                model.served.tokenizer,
                                                clock_,
                                                model.served.metrics,
                                                this,
                                                options_.max_attempts,
                                                options_.on_over,
                                                &model.encoder.chat_prompt(),
                                                *std::move(permit)};
  auto generation = std::make_unique<GenerationImpl>(
      environment, std::move(identity), api, Resolve(api, limits, id), limits, state, listener);
  using Encoded = GenerationImpl::Encoded;
  const auto deliver = [state, id](absl::StatusOr<Encoded> encoded) {
    state->Run([id, encoded = std::move(encoded)](IoLoopState& io_loop_state) mutable {
      if (GenerationImpl* self = io_loop_state.Find(id)) self->OnEncoded(std::move(encoded));
    });
  };
  Encoded encoded;
  std::optional<Input> input;  // none: the prompt is encoded
  std::size_t bytes = 0;
  if (const auto* tokens = std::get_if<std::vector<std::int64_t>>(&api.prompt)) {
    const auto cut = static_cast<std::size_t>(
        api.truncate_prompt_tokens.value_or(std::numeric_limits<std::int64_t>::max()));
    encoded.prompt.assign(tokens->end() - std::min(tokens->size(), cut), tokens->end());
    bytes = encoded.prompt.size() * sizeof(TokenId);
  } else if (auto* text = std::get_if<std::string>(&api.prompt)) {
    input.emplace(std::move(*text));
  } else {
    input.emplace(std::get<Conversation>(std::move(api.prompt)));
  }
  if (input.has_value()) bytes = InputBytes(*input);
  for (const std::string& word : api.bad_words) bytes += word.size();
  const bool uses_dry = *api.dry_multiplier > 0 && *api.dry_penalty_last_n != 0;
  if (uses_dry) bytes += model.encoder.dry_breakers().Cost(api.dry_sequence_breakers);
  if (!input.has_value() && api.bad_words.empty() && !uses_dry) {
    deliver(std::move(encoded));
    return generation;
  }
  const bool cuts = api.truncate_prompt_tokens.has_value();  // what is left fits the context
  const bool queued = pool_.TryRun(
      api.tenant, bytes,
      [&model, input = std::move(input), encoded = std::move(encoded),
       bad_words = std::move(api.bad_words), uses_dry,
       breakers = std::move(api.dry_sequence_breakers), form = std::move(api.constraint),
       form_field = std::move(api.constraint_field), number = NumberOf(api.tenant),
       thinking_budget = *api.thinking_token_budget, deliver, add_special = api.add_special_tokens,
       max_tokens = cuts ? options_.limits.max_tokenized : limits.max_context, cuts]() mutable {
        deliver(OrNoMemory([&]() -> absl::StatusOr<Encoded> {
          auto words = model.encoder.EncodeBadWords(bad_words);
          if (!words.ok()) return words.status();
          encoded.bad_words = *std::move(words);
          if (uses_dry) {
            auto found = model.encoder.dry_breakers().Find(breakers);
            if (!found.ok()) return found.status();
            encoded.dry_breakers = *std::move(found);
          }
          if (!input.has_value()) return std::move(encoded);
          auto prompt = model.encoder.Encode(
              *input,
              {.parse_special = false, .add_special = add_special, .max_tokens = max_tokens}, form,
              form_field, thinking_budget);
          if (cuts && absl::IsOutOfRange(prompt.status())) return TooManyTokens(*input, max_tokens);
          if (!prompt.ok()) return prompt.status();
          encoded.prompt = std::move(prompt->tokens);
          encoded.in_reasoning = prompt->in_reasoning;
          encoded.constraint = std::move(prompt->constraint);
          if (encoded.constraint) encoded.constraint.tenant = number;
          encoded.thinking = std::move(prompt->thinking);
          encoded.argument_types = std::move(prompt->argument_types);
          return std::move(encoded);
        }));
      },
      generation->abandoned());
  if (queued) return generation;
  generation->Detach();
  model.served.metrics->OnRefused(PoolFull());
  return PoolFull();
}

bool ServiceImpl::Abort(std::string_view id) {
  absl::MutexLock lock(&mu_);
  const auto it = running_.find(std::string(id));
  if (it == running_.end()) return false;
  const std::shared_ptr<IoLoopState> io_loop = it->second.io_loop.lock();
  if (io_loop == nullptr) return false;
  io_loop->Run([request = it->second.id](IoLoopState& state) {
    if (GenerationImpl* generation = state.Find(request)) generation->Cancel();
  });
  return true;
}

void ServiceImpl::Tokenize(TokenizeRequest request, IoLoop& io_loop,
                           std::function<void(absl::StatusOr<std::vector<TokenId>>)> done) {
  const std::shared_ptr<IoLoopState> state = StateOf(io_loop).shared_from_this();
  const auto answer = [state, done = std::move(done)](absl::StatusOr<std::vector<TokenId>> result) {
    state->Run(
        [done, result = std::move(result)](IoLoopState&) mutable { done(std::move(result)); });
  };
  const absl::StatusOr<Known> known = Find(request.model);
  if (!known.ok()) return answer(known.status());
  const Encoder& encoder = known->model->encoder;
  if (auto s = CheckInput(request.input, options_.limits); !s.ok()) return answer(s);
  if (const auto* conversation = std::get_if<Conversation>(&request.input)) {
    if (auto s = encoder.chat_prompt().Check(*conversation); !s.ok()) return answer(s);
  }
  const std::size_t bytes = InputBytes(request.input);
  const std::string tenant = request.tenant;
  const auto abandoned = request.abandoned;
  const bool queued = pool_.TryRun(
      tenant, bytes,
      [&encoder, request = std::move(request), most = options_.limits.max_tokenized, answer] {
        auto prompt = OrNoMemory([&] {
          return encoder.Encode(request.input, {.parse_special = request.parse_special,
                                                .add_special = request.add_special_tokens,
                                                .max_tokens = most});
        });
        if (absl::IsOutOfRange(prompt.status())) return answer(TooManyTokens(request.input, most));
        if (!prompt.ok()) return answer(prompt.status());
        answer(std::move(prompt->tokens));
      },
      abandoned);
  if (!queued) answer(PoolFull());
}

void ServiceImpl::Detokenize(DetokenizeRequest request, IoLoop& io_loop,
                             std::function<void(absl::StatusOr<std::string>)> done) {
  const std::shared_ptr<IoLoopState> state = StateOf(io_loop).shared_from_this();
  const auto answer = [state, done = std::move(done)](absl::StatusOr<std::string> result) {
    state->Run(
        [done, result = std::move(result)](IoLoopState&) mutable { done(std::move(result)); });
  };
  const absl::StatusOr<Known> known = Find(request.model);
  if (!known.ok()) return answer(known.status());
  if (request.tokens.size() > kMaxDetokenize) {
    return answer(
        InvalidField("tokens", Cat("tokens has ", request.tokens.size(), " entries; at most ",
                                   kMaxDetokenize, " are allowed")));
  }
  if (auto s = CheckTokenIds("tokens", request.tokens, known->info.limits); !s.ok()) {
    return answer(s);
  }
  const model::Tokenizer* tokenizer = known->model->served.tokenizer;
  const std::size_t bytes = request.tokens.size() * sizeof request.tokens[0];
  const std::string tenant = request.tenant;
  const auto abandoned = request.abandoned;
  const bool queued = pool_.TryRun(
      tenant, bytes,
      [tokenizer, tokens = std::move(request.tokens), most = options_.limits.max_prompt_bytes,
       answer] { answer(OrNoMemory([&] { return Decode(*tokenizer, tokens, most); })); },
      abandoned);
  if (!queued) answer(PoolFull());
}

absl::Status ServiceImpl::RunOnPool(std::string_view tenant, std::size_t input_bytes,
                                    IoLoop& io_loop, std::function<std::function<void()>()> work,
                                    std::shared_ptr<const std::atomic<bool>> abandoned) {
  const bool queued = pool_.TryRun(
      tenant, input_bytes,
      [state = StateOf(io_loop).shared_from_this(), work = std::move(work)]() mutable {
        std::function<void()> then = std::exchange(work, nullptr)();  // `work` goes here
        state->Run([then = std::move(then)](IoLoopState&) { then(); });
      },
      std::move(abandoned));
  return queued ? absl::OkStatus() : PoolFull();
}

}  // namespace

std::unique_ptr<InferenceService> InferenceService::Create(ServiceOptions options,
                                                           const Clock* clock,
                                                           RouterMetrics* metrics) {
  return std::make_unique<ServiceImpl>(std::move(options), clock, metrics);
}

}  // namespace flotilla::router
