#include "tests/support/engine_runner.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/test_model.h"

namespace flotilla::testing {
namespace {

class Collector final : public EventSink {
 public:
  explicit Collector(const std::vector<TokenizedRequest>& requests) : answers_(requests.size()) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      index_[requests[i].id] = i;
      answers_[i].sequences.resize(requests[i].sequences);
    }
  }

  void Post(std::vector<EngineEvent> events) override {
    absl::MutexLock lock(&mu_);
    for (EngineEvent& event : events) {
      Answer& answer = answers_[index_.at(EventKey(event).first)];
      EXPECT_FALSE(answer.ended) << "an event after RequestEnd";
      std::visit([&](auto& e) { Take(answer, e); }, event);
    }
  }

  std::vector<Answer> Wait() {
    absl::MutexLock lock(&mu_);
    const auto all = [this] { return ended_ == answers_.size(); };
    mu_.Await(absl::Condition(&all));
    return answers_;
  }

 private:
  void Take(Answer&, Accepted&) {}
  void Take(Answer&, CrashCount&) {}
  void Take(Answer& answer, PromptLogprobs& event) {
    EXPECT_EQ(event.first, answer.prompt_logprobs.size() + 1);
    for (SampledToken& token : event.tokens) {
      answer.prompt_logprobs.push_back(token.logprob);
      answer.prompt_top.push_back(std::move(token.top));
    }
  }
  void Take(Answer& answer, TokenEvent& event) {
    Answer::Sequence& sequence = answer.sequences.at(event.sequence.value());
    EXPECT_EQ(event.position, sequence.tokens.size());
    sequence.tokens.push_back(event);
    if (event.sequence.value() == 0) answer.tokens.push_back(std::move(event));
  }
  void Take(Answer& answer, SequenceEnd& event) {
    Answer::Sequence& sequence = answer.sequences.at(event.sequence.value());
    sequence.reason = answer.reason = event.reason;
    sequence.score = event.score;
  }
  void Take(Answer& answer, RequestEnd& event) {
    answer.status = event.status;
    answer.usage = event.usage;
    answer.ended = true;
    ++ended_;
  }

  absl::Mutex mu_;
  std::map<RequestId, std::size_t> index_;
  std::vector<Answer> answers_;
  std::size_t ended_ = 0;
};

void AppendBits(std::vector<std::uint32_t>& bits, const SampledToken& token) {
  bits.push_back(static_cast<std::uint32_t>(token.token));
  bits.push_back(std::bit_cast<std::uint32_t>(token.logprob));
  for (const TopLogprob& t : token.top) {
    bits.push_back(static_cast<std::uint32_t>(t.token));
    bits.push_back(std::bit_cast<std::uint32_t>(t.logprob));
  }
}

}  // namespace

// Hands the engine a result only after the round that handled the one before. Otherwise two results
// that meet in one round are followed by two plans, and what is planned depends on the machine.
class EngineRunner::OneByOne final : public StepExecutor, private ExecutorListener {
 public:
  OneByOne(StepExecutor* inner, bool fixed_costs) : inner_(inner), fixed_costs_(fixed_costs) {}

  absl::Status Start(ExecutorListener* listener) override {
    listener_ = listener;
    return inner_->Start(this);
  }
  absl::Status Execute(StepPlan plan) override { return inner_->Execute(std::move(plan)); }
  void EndEpoch(Epoch epoch) override { inner_->EndEpoch(epoch); }
  void Stop() override {
    {
      absl::MutexLock lock(&mu_);
      stopped_ = true;
    }
    inner_->Stop();
  }

  // A round of the engine has ended.
  void OnRound() {
    absl::MutexLock lock(&mu_);
    pending_ = false;
  }

 private:
  void OnReady(Epoch epoch, const ExecutorDescription& measured) override {
    ExecutorDescription description = measured;
    for (KvTier& tier : description.tiers) {
      if (fixed_costs_) tier.out_ns_per_block = tier.in_ns_per_block = 1;
    }
    listener_->OnReady(epoch, description);
  }
  void OnResult(StepResult result) override {
    {
      absl::MutexLock lock(&mu_);
      const auto free = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !pending_ || stopped_; };
      mu_.Await(absl::Condition(&free));
      pending_ = true;
    }
    if (fixed_costs_) result.timings.compute_ns = 1'000'000;
    listener_->OnResult(std::move(result));
  }
  void OnLost(const Lost& lost) override { listener_->OnLost(lost); }

  StepExecutor* const inner_;
  const bool fixed_costs_;
  ExecutorListener* listener_ = nullptr;
  absl::Mutex mu_;
  bool pending_ ABSL_GUARDED_BY(mu_) = false;  // a result waits for its round
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

std::vector<TokenId> Answer::Sequence::ids() const {
  std::vector<TokenId> ids;
  for (const TokenEvent& event : tokens) ids.push_back(event.sampled.token);
  return ids;
}

std::vector<TokenId> Answer::ids() const {
  return sequences.empty() ? std::vector<TokenId>{} : sequences[0].ids();
}

std::vector<std::uint32_t> Answer::Bits() const {
  std::vector<std::uint32_t> bits;
  for (std::size_t i = 0; i < prompt_logprobs.size(); ++i) {
    AppendBits(bits, {0, prompt_logprobs[i], prompt_top[i]});
  }
  for (const TokenEvent& event : tokens) AppendBits(bits, event.sampled);
  for (std::size_t i = 1; i < sequences.size(); ++i) {
    for (const TokenEvent& event : sequences[i].tokens) AppendBits(bits, event.sampled);
  }
  if (sequences.size() > 1) {
    for (const Sequence& sequence : sequences) {
      bits.push_back(std::bit_cast<std::uint32_t>(sequence.score));
    }
  }
  return bits;
}

EngineRunner::EngineRunner(std::shared_ptr<const model::Checkpoint> file, Options options) {
  executor_ = std::make_unique<worker::InProcessExecutor>(
      std::move(file), options.rank,
      options.frozen_clock ? static_cast<const Clock*>(&frozen_clock_) : &clock_);
  scheduler::InProcessEngineOptions engine_options;
  engine_options.core = options.core;
  engine_options.on_preemption = std::move(options.on_preemption);
  engine_options.on_planned = std::move(options.on_planned);
  if (options.together) {
    engine_options.on_planned =
        [this, inner = std::move(engine_options.on_planned)](const scheduler::SchedulerCore& core) {
          submitted_.WaitForNotification();
          if (inner) inner(core);
          one_by_one_->OnRound();
        };
    one_by_one_ = std::make_unique<OneByOne>(executor_.get(), options.fixed_costs);
  }
  turns_ = std::move(options.turns);
  if (turns_ != nullptr) turn_ = turns_->Join(executor_.get());
  engine_ = std::make_unique<scheduler::InProcessEngine>(
      engine_options,
      turn_ != nullptr         ? turn_.get()
      : one_by_one_ != nullptr ? one_by_one_.get()
                               : static_cast<StepExecutor*>(executor_.get()),
      &clock_);
  const absl::Status status = engine_->Start();
  EXPECT_TRUE(status.ok()) << status;
  while (status.ok() && !engine_->Describe().ok()) std::this_thread::yield();
}

EngineRunner::~EngineRunner() {
  if (!submitted_.HasBeenNotified()) submitted_.Notify();
  engine_->Stop();
}

std::vector<Answer> EngineRunner::Run(const std::vector<TokenizedRequest>& requests) {
  auto collector = std::make_shared<Collector>(requests);
  for (const TokenizedRequest& request : requests) engine_->Submit(request, collector);
  if (!submitted_.HasBeenNotified()) submitted_.Notify();
  return collector->Wait();
}

std::shared_ptr<const model::Checkpoint> OpenRealModel() {
  auto file = model::OpenCheckpoint(ModelPath());
  if (!file.ok()) {
    ADD_FAILURE() << "the model file is missing: run scripts/test, which fetches it, or set "
                     "FLOTILLA_MODEL: "
                  << file.status();
    return nullptr;
  }
  return *std::move(file);
}

bool LongTests() {
  const char* value = std::getenv("FLOTILLA_LONG");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace flotilla::testing
