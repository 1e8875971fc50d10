#include "tests/support/fake_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/support/fake_executor.h"

namespace flotilla::testing {
namespace {

absl::Status CheckBeams(const TokenizedRequest& request) {
  if (!request.beam) return absl::OkStatus();
  const std::uint64_t per_beam = std::max<std::uint64_t>(2, 1 + request.stop.stop_tokens.size());
  if (request.beam->beams < request.sequences || !request.output_prefix.empty() ||
      !std::isfinite(request.beam->length_penalty) ||
      request.beam->beams * per_beam > BeamOptions::kMaxCandidates) {
    return absl::InvalidArgumentError("beam");
  }
  return absl::OkStatus();
}

// The script of a sequence: null without one.
const std::vector<TokenId>* ScriptOf(const FakeAnswer& answer, SequenceIndex sequence) {
  if (sequence.value() < answer.sequences.size()) return &answer.sequences[sequence.value()].tokens;
  return answer.tokens ? &*answer.tokens : nullptr;
}

}  // namespace

EngineDescription FakeEngineOptions::DefaultDescription() {
  EngineDescription description;
  description.model_id = "fake";
  description.vocab_size = 1000;
  description.max_context = 8192;
  description.tokenizer_hash = 1;
  description.numerics_id = 1;
  description.max_sequences = 8;
  description.max_queue_tokens = 65536;
  return description;
}

FakeEngine::FakeEngine(FakeEngineOptions options) : options_(std::move(options)) {}

FakeEngine::~FakeEngine() = default;

void FakeEngine::Script(FakeAnswer answer) {
  absl::MutexLock lock(&mu_);
  scripts_.push_back(std::move(answer));
}

void FakeEngine::SetReady(bool ready) {
  absl::MutexLock lock(&mu_);
  ready_ = ready;
}

bool FakeEngine::Step() {
  std::vector<std::function<void()>> drained;
  bool left;
  {
    absl::MutexLock lock(&mu_);
    // One batch per sink, in order of its first request.
    std::vector<std::pair<std::shared_ptr<EventSink>, std::vector<EngineEvent>>> batches;
    for (auto it = running_.begin(); it != running_.end();) {
      auto batch = std::find_if(batches.begin(), batches.end(),
                                [&](const auto& b) { return b.first == it->sink; });
      if (batch == batches.end()) batch = batches.insert(batches.end(), {it->sink, {}});
      const bool ended = StepRequest(*it, batch->second);
      it = ended ? running_.erase(it) : std::next(it);
    }
    for (auto& [sink, events] : batches) sink->Post(std::move(events));
    left = !running_.empty();
    drained = TakeDrained();
  }
  for (const auto& done : drained) done();
  return left;
}

void FakeEngine::StepAll() {
  while (Step()) {
  }
}

std::vector<TokenizedRequest> FakeEngine::submitted() const {
  absl::MutexLock lock(&mu_);
  return submitted_;
}

std::vector<CancelRequest> FakeEngine::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

absl::StatusOr<EngineDescription> FakeEngine::Describe() const { return options_.description; }

void FakeEngine::Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) {
  {
    absl::MutexLock lock(&mu_);
    Running running;
    if (!scripts_.empty()) {
      running.answer = std::move(scripts_.front());
      scripts_.pop_front();
    }
    if (absl::Status status = CheckEntry(request); !status.ok()) {
      running.answer.refusal = status;
      running.answer.retry_after_ms = 1000;
    }
    submitted_.push_back(request);
    running.sequences.resize(request.sequences);
    for (std::size_t i = 0; i < std::min(request.output_prefix.size(), running.sequences.size());
         ++i) {
      running.sequences[i].outputs = static_cast<std::uint32_t>(request.output_prefix[i].size());
    }
    running.request = std::move(request);
    running.sink = std::move(sink);
    running_.push_back(std::move(running));
  }
  if (!options_.manual) StepAll();
}

void FakeEngine::Cancel(const CancelRequest& cancel) {
  absl::MutexLock lock(&mu_);
  cancelled_.push_back(cancel);
  for (Running& running : running_) {
    if (running.request.id != cancel.request) continue;
    for (std::uint32_t i = 0; i < running.sequences.size(); ++i) {
      Sequence& sequence = running.sequences[i];
      if (cancel.sequence.value_or(SequenceIndex(i)) == SequenceIndex(i) &&
          !sequence.cancelled_keep) {
        sequence.cancelled_keep = cancel.keep_tokens;
      }
    }
  }
}

EngineLoad FakeEngine::Load() const {
  absl::MutexLock lock(&mu_);
  EngineLoad load;
  load.ready = ready_;
  load.draining = draining_;
  for (const Running& running : running_) {
    ++(running.accepted ? load.running_requests : load.waiting_requests);
  }
  return load;
}

absl::StatusOr<std::string> FakeEngine::TokenizerBytes() const { return options_.tokenizer_bytes; }

void FakeEngine::Drain(std::function<void()> done) {
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    drained_.push_back(std::move(done));
    drained = TakeDrained();
  }
  for (const auto& call : drained) call();
}

absl::Status FakeEngine::CheckEntry(const TokenizedRequest& request) const {
  const EngineDescription& limits = options_.description;
  const bool replay = request.attempt > Attempt(0);
  if (draining_ && !replay) return absl::UnavailableError("draining");
  const auto in_vocabulary = [&](TokenId token) {
    return token >= 0 && static_cast<std::uint32_t>(token) < limits.vocab_size;
  };
  if (request.prompt.empty() ||
      !std::all_of(request.prompt.begin(), request.prompt.end(), in_vocabulary) ||
      request.prompt.size() + std::uint64_t{request.stop.max_tokens} > limits.max_context) {
    return absl::InvalidArgumentError("prompt");
  }
  if (request.sequences == 0 || request.sequences > limits.max_sequences) {
    return absl::InvalidArgumentError("sequences");
  }
  if (absl::Status status = CheckBeams(request); !status.ok()) return status;
  absl::Status parameters = CheckSampling(request.sampling, limits.vocab_size);
  parameters.Update(CheckStopRule(request.stop));
  parameters.Update(CheckLogprobs(request.logprobs));
  if (!parameters.ok()) return parameters;
  std::size_t waiting = request.prompt.size();
  for (const Running& running : running_) {
    if (running.request.id == request.id) return absl::AlreadyExistsError("request id in use");
    if (!running.accepted && running.answer.refusal.ok()) waiting += running.request.prompt.size();
  }
  if (waiting > limits.max_queue_tokens && !replay) return absl::ResourceExhaustedError("queue");
  return absl::OkStatus();
}

void FakeEngine::Accept(const TokenizedRequest& request, std::vector<EngineEvent>& events) const {
  events.emplace_back(Accepted{request.id, request.attempt});
  if (request.logprobs.prompt_top == LogprobSpec::kOff || request.prompt.size() < 2) return;
  PromptLogprobs prompt{.request = request.id, .attempt = request.attempt, .first = 1};
  for (std::size_t i = 1; i < request.prompt.size(); ++i) {
    prompt.tokens.push_back(FakeSample(request.prompt[i], request.logprobs.prompt_top,
                                       options_.description.vocab_size));
  }
  events.emplace_back(std::move(prompt));
}

bool FakeEngine::StepRequest(Running& running, std::vector<EngineEvent>& events) const {
  const TokenizedRequest& request = running.request;
  RequestEnd end{.request = request.id, .attempt = request.attempt};
  if (!running.answer.refusal.ok()) {
    end.status = running.answer.refusal;
    end.retry_after_ms = running.answer.retry_after_ms;
    events.emplace_back(std::move(end));
    return true;
  }
  if (!std::exchange(running.accepted, true)) {
    Accept(request, events);
    return false;
  }
  end.usage.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  bool all_ended = true;
  for (std::uint32_t i = 0; i < running.sequences.size(); ++i) {
    Sequence& sequence = running.sequences[i];
    if (!sequence.ended) {
      auto reason = StepSequence(running, SequenceIndex(i), sequence, events);
      while (request.beam && !reason) {
        reason = StepSequence(running, SequenceIndex(i), sequence, events);
      }
      if (reason) {
        sequence.ended = true;
        running.failed |= *reason == FinishReason::kError;
        const bool scored = request.beam && i < running.answer.sequences.size();
        events.emplace_back(SequenceEnd{request.id, request.attempt, SequenceIndex(i), *reason,
                                        sequence.outputs,
                                        scored ? running.answer.sequences[i].score : 0.0f});
      }
    }
    all_ended &= sequence.ended;
    end.usage.output_tokens += sequence.outputs;
  }
  if (!all_ended) return false;
  if (running.failed) end.status = running.answer.error;
  events.emplace_back(std::move(end));
  return true;
}

std::optional<FinishReason> FakeEngine::StepSequence(const Running& running, SequenceIndex index,
                                                     Sequence& sequence,
                                                     std::vector<EngineEvent>& events) const {
  const TokenizedRequest& request = running.request;
  const FakeAnswer& answer = running.answer;
  const std::uint32_t vocab = options_.description.vocab_size;
  if (sequence.cancelled_keep) {
    sequence.outputs = std::min(sequence.outputs, *sequence.cancelled_keep);
    return FinishReason::kCancelled;
  }
  if (!answer.error.ok() && sequence.outputs >= answer.error_at) return FinishReason::kError;
  const std::vector<TokenId>& stops = request.stop.stop_tokens;
  if (index.value() < request.output_prefix.size()) {
    const std::vector<TokenId>& prefix = request.output_prefix[index.value()];
    if (!prefix.empty() && sequence.outputs == prefix.size() &&
        std::binary_search(stops.begin(), stops.end(), prefix.back())) {
      return FinishReason::kStop;
    }
  }
  if (sequence.outputs >= request.stop.max_tokens) return FinishReason::kLength;
  const std::vector<TokenId>* script = ScriptOf(answer, index);
  const FakeSequence* scripted =
      index.value() < answer.sequences.size() ? &answer.sequences[index.value()] : nullptr;
  if (script != nullptr && sequence.outputs >= script->size()) {
    return scripted != nullptr ? scripted->reason : FinishReason::kStop;
  }

  const std::uint32_t position = sequence.outputs++;
  const TokenId token = script != nullptr ? (*script)[position]
                                          : FakeToken(SequenceSeed(request.sampling.seed, index),
                                                      SequenceIndex(0), position, vocab);
  SampledToken sampled = FakeSample(token, request.logprobs.output_top, vocab);
  if (scripted != nullptr) sampled.logprob = scripted->logprob;
  events.emplace_back(TokenEvent{request.id, request.attempt, index, position, std::move(sampled)});
  if (std::binary_search(stops.begin(), stops.end(), token)) return FinishReason::kStop;
  if (sequence.outputs >= request.stop.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

std::vector<std::function<void()>> FakeEngine::TakeDrained() {
  return running_.empty() ? std::exchange(drained_, {}) : std::vector<std::function<void()>>{};
}

}  // namespace flotilla::testing
