#include "tests/support/fake_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::testing {
namespace {

std::uint64_t Mix(std::uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Candidates: the token that would be sampled and those after it in the vocabulary, each
// half as likely as the one before.
std::vector<TopLogprob> FakeCandidates(const worker::BatchItem& item, std::uint32_t vocab_size) {
  const TokenId first =
      FakeToken(item.sampling->seed, SequenceIndex(0), item.output_index, vocab_size);
  std::vector<TopLogprob> candidates;
  for (std::uint32_t i = 0; i < std::min(item.candidates, vocab_size); ++i) {
    const auto token = static_cast<TokenId>((static_cast<std::uint32_t>(first) + i) % vocab_size);
    candidates.push_back({token, -0.7f * static_cast<float>(i + 1)});
  }
  return candidates;
}

}  // namespace

TokenId FakeToken(std::uint64_t seed, SequenceIndex sequence, std::uint32_t output_index,
                  std::uint32_t vocab_size) {
  return static_cast<TokenId>(Mix(Mix(Mix(SequenceSeed(seed, sequence))) ^ output_index) %
                              vocab_size);
}

SampledToken FakeSample(TokenId token, std::int32_t top, std::uint32_t vocab_size) {
  SampledToken sampled;
  sampled.token = token;
  sampled.logprob = -0.5f;
  const std::uint32_t count = std::min<std::uint32_t>(std::max(top, 0), vocab_size);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto other = static_cast<TokenId>((static_cast<std::uint32_t>(token) + i) % vocab_size);
    sampled.top.push_back({other, -0.5f - static_cast<float>(i)});
  }
  return sampled;
}

std::vector<worker::ItemOutput> FakeOutputs(const worker::Batch& batch, std::uint32_t vocab_size) {
  std::vector<worker::ItemOutput> outputs;
  outputs.reserve(batch.items.size());
  for (const worker::BatchItem& item : batch.items) {
    worker::ItemOutput& output = outputs.emplace_back();
    if (item.samples) {
      const TokenId token =
          FakeToken(item.sampling->seed, item.index, item.output_index, vocab_size);
      output.sampled = {FakeSample(token, item.logprobs->output_top, vocab_size)};
    }
    if (item.candidates > 0) output.candidates = FakeCandidates(item, vocab_size);
    for (TokenId target : item.prompt_targets) {
      output.prompt.push_back(FakeSample(target, item.logprobs->prompt_top, vocab_size));
    }
  }
  return outputs;
}

ExecutorDescription FakeExecutorOptions::DefaultDescription() {
  ExecutorDescription description;
  description.model_id = "fake";
  description.vocab_size = 1000;
  description.max_context = 8192;
  description.numerics_id = 1;
  KvGroup group;
  group.tokens_per_block = 16;
  group.bytes_per_block = 1024;
  description.groups = {group};
  description.block_count = 1024;
  description.max_sequences = 64;
  description.max_step_tokens = 512;
  description.lag = 1;
  description.prefill_ns_per_token = 1000;
  description.decode_ns_per_step = 100'000;
  return description;
}

FakeExecutor::FakeExecutor(FakeExecutorOptions options) : options_(std::move(options)) {}

FakeExecutor::~FakeExecutor() { Stop(); }

absl::Status FakeExecutor::Start(ExecutorListener* listener) {
  absl::MutexLock lock(&mu_);
  if (phase_ != Phase::kIdle) return absl::FailedPreconditionError("started before");
  listener_ = listener;
  phase_ = Phase::kStarting;
  if (!options_.manual) thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

absl::Status FakeExecutor::Execute(StepPlan plan) {
  absl::MutexLock lock(&mu_);
  if (phase_ != Phase::kReady || plan.epoch != epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("epoch ", plan.epoch.value(), " is not current"));
  }
  if (unanswered_ > options_.description.lag) {
    return absl::ResourceExhaustedError("more than lag + 1 plans unanswered");
  }
  ++unanswered_;
  plans_.push_back(std::move(plan));
  return absl::OkStatus();
}

void FakeExecutor::EndEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  if (phase_ == Phase::kReady && epoch == epoch_) lose_now_ = Lost::Cause::kDigest;
}

void FakeExecutor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    phase_ = Phase::kStopped;
  }
  if (thread_.joinable()) thread_.join();
}

void FakeExecutor::LoseDuring(Step step, bool blames_requests) {
  absl::MutexLock lock(&mu_);
  lose_during_[step] = blames_requests;
}

void FakeExecutor::LoseAfter(Step step) {
  absl::MutexLock lock(&mu_);
  lose_after_.insert(step);
}

void FakeExecutor::LoseNow() {
  absl::MutexLock lock(&mu_);
  lose_now_ = Lost::Cause::kDied;
}

void FakeExecutor::CorruptDigest(Step step) {
  absl::MutexLock lock(&mu_);
  corrupt_.insert(step);
}

void FakeExecutor::CorruptDigestInEachEpoch(Step step) {
  absl::MutexLock lock(&mu_);
  corrupt_in_each_epoch_ = step;
}

void FakeExecutor::RefuseRequest(const RequestId& request, Lost::Cause cause) {
  absl::MutexLock lock(&mu_);
  refused_[request] = cause;
}

void FakeExecutor::HoldRestart() {
  absl::MutexLock lock(&mu_);
  hold_restart_ = true;
}

void FakeExecutor::Restart() {
  absl::MutexLock lock(&mu_);
  hold_restart_ = false;
  if (phase_ == Phase::kHeld) phase_ = Phase::kStarting;
}

void FakeExecutor::Pause() {
  absl::MutexLock lock(&mu_);
  paused_ = true;
}

void FakeExecutor::Resume() {
  absl::MutexLock lock(&mu_);
  paused_ = false;
}

std::uint32_t FakeExecutor::queued() const {
  absl::MutexLock lock(&mu_);
  return unanswered_;
}

Epoch FakeExecutor::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

bool FakeExecutor::CanAdvance() const {
  return phase_ == Phase::kStarting ||
         (phase_ == Phase::kReady && (lose_now_.has_value() || (!paused_ && !plans_.empty())));
}

bool FakeExecutor::CanAdvanceOrStopped() const { return phase_ == Phase::kStopped || CanAdvance(); }

void FakeExecutor::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &FakeExecutor::CanAdvanceOrStopped));
      if (phase_ == Phase::kStopped) return;
    }
    Advance();
  }
}

bool FakeExecutor::Advance() {
  enum class Next { kEpoch, kLoss, kPlan } next;
  Lost::Cause cause{};
  StepPlan plan;
  {
    absl::MutexLock lock(&mu_);
    if (!CanAdvance()) return false;
    next = phase_ == Phase::kStarting ? Next::kEpoch : lose_now_ ? Next::kLoss : Next::kPlan;
    if (next == Next::kLoss) cause = *lose_now_;
    if (next == Next::kPlan) {
      plan = std::move(plans_.front());
      plans_.pop_front();
    }
  }
  switch (next) {
    case Next::kEpoch:
      BeginEpoch();
      break;
    case Next::kLoss:
      Lose(cause, "ended between steps", {});
      break;
    case Next::kPlan:
      RunPlan(plan);
      break;
  }
  return true;
}

void FakeExecutor::AdvanceAll() {
  while (Advance()) {
  }
}

void FakeExecutor::BeginEpoch() {
  Epoch epoch;
  {
    absl::MutexLock lock(&mu_);
    if (phase_ == Phase::kStopped) return;
    epoch_ = epoch = Epoch(epoch_.value() + 1);
    state_.emplace(epoch, options_.description);
    phase_ = Phase::kReady;
    if (lose_after_.count(Step(0)) > 0) lose_now_ = Lost::Cause::kDied;
  }
  listener_->OnReady(epoch, options_.description);
}

void FakeExecutor::RunPlan(const StepPlan& plan) {
  bool lose_during, lose_after, blames_requests, refused = false;
  StepPlan applied = plan;
  {
    absl::MutexLock lock(&mu_);
    const auto lose = lose_during_.find(plan.step);
    lose_during = lose != lose_during_.end();
    blames_requests = lose_during && lose->second;
    lose_after = lose_after_.count(plan.step) > 0;
    bool corrupt = corrupt_.count(plan.step) > 0 || corrupt_in_each_epoch_ == plan.step;
    for (const PlanOp& op : plan.ops) {
      const auto* open = std::get_if<OpenSequence>(&op);
      const auto one = open != nullptr ? refused_.find(open->request) : refused_.end();
      if (one == refused_.end()) continue;
      (one->second == Lost::Cause::kDigest ? corrupt : refused) = true;
    }
    if (corrupt) applied.digest = ~applied.digest;
  }
  if (refused)
    return Lose(Lost::Cause::kInvalidPlan, "an operation is refused", {}, false, plan.step);
  const absl::StatusOr<worker::Batch> batch = state_->Apply(applied);
  if (!batch.ok()) {
    const bool digest = batch.status().code() == absl::StatusCode::kDataLoss;
    Lose(digest ? Lost::Cause::kDigest : Lost::Cause::kInvalidPlan,
         std::string(batch.status().message()), {}, false, plan.step);
    return;
  }
  if (lose_during) {
    Lose(Lost::Cause::kDied, "killed in a step", {plan.step}, blames_requests);
    return;
  }
  StepResult result = Compute(*batch);
  {
    absl::MutexLock lock(&mu_);
    if (phase_ == Phase::kStopped) return;
    --unanswered_;
  }
  listener_->OnResult(std::move(result));
  if (lose_after) Lose(Lost::Cause::kDied, "killed after a step", {});
}

StepResult FakeExecutor::Compute(const worker::Batch& batch) {
  const ExecutorDescription& description = options_.description;
  // The outputs fit by construction.
  StepResult result =
      state_->Complete(batch.step, FakeOutputs(batch, description.vocab_size)).value();
  result.timings.rows = static_cast<std::uint32_t>(batch.tokens.size());
  result.timings.decode_rows = batch.decode_rows;
  result.timings.compute_ns =
      description.decode_ns_per_step + description.prefill_ns_per_token * result.timings.rows;
  return result;
}

void FakeExecutor::Lose(Lost::Cause cause, std::string detail, std::vector<Step> started,
                        bool blames_requests, std::optional<Step> refused) {
  Lost lost;
  lost.cause = cause;
  lost.detail = std::move(detail);
  lost.started = std::move(started);
  lost.blames_requests = blames_requests;
  lost.refused = refused;
  {
    absl::MutexLock lock(&mu_);
    if (phase_ == Phase::kStopped) return;
    lost.epoch = epoch_;
    phase_ = hold_restart_ ? Phase::kHeld : Phase::kStarting;
    plans_.clear();
    unanswered_ = 0;
    lose_now_.reset();
    lose_during_.clear();
    lose_after_.clear();
    corrupt_.clear();
  }
  listener_->OnLost(lost);
}

}  // namespace flotilla::testing
