#include "tests/support/engine_runner.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include <gtest/gtest.h>

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
  return bits;
}

EngineRunner::EngineRunner(std::shared_ptr<const model::GgufFile> file, Options options) {
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
        };
  }
  turns_ = std::move(options.turns);
  if (turns_ != nullptr) turn_ = turns_->Join(executor_.get());
  engine_ = std::make_unique<scheduler::InProcessEngine>(
      engine_options, turn_ == nullptr ? executor_.get() : turn_.get(), &clock_);
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

std::shared_ptr<const model::GgufFile> OpenRealModel() {
  auto file = model::GgufFile::Open(ModelPath());
  if (!file.ok()) {
    ADD_FAILURE() << "the model file is missing: run scripts/test, which fetches it, or set "
                     "FLOTILLA_MODEL: "
                  << file.status();
    return nullptr;
  }
  return std::make_shared<model::GgufFile>(*std::move(file));
}

bool LongTests() {
  const char* value = std::getenv("FLOTILLA_LONG");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace flotilla::testing
