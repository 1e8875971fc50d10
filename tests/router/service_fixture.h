// A service on an I/O loop that moves when the test says so, and an engine that gives
// requests back, for tests of the service without a frontend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "model/checkpoint.h"
#include "model/text/tokenizer.h"
#include "router/metrics.h"
#include "router/service.h"
#include "tests/support/fake_engine.h"
#include "tests/support/manual_clock.h"
#include "tests/support/test_model.h"

namespace flotilla::router {

// Runs posted work when the test says so.
class ManualDispatcher final : public Dispatcher {
 public:
  void Post(std::function<void()> work) override {
    absl::MutexLock lock(&mu_);
    queue_.push_back(std::move(work));
  }
  // Waits for one piece of work and runs it.
  void RunOne() {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](std::deque<std::function<void()>>* queue) { return !queue->empty(); }, &queue_));
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
  void RunUntil(const bool& done) {
    while (!done) RunOne();
  }

 private:
  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_;
};

struct Recorder final : GenerationListener {
  void OnPrompt(const PromptInfo& info) override { prompt = info.tokens; }
  void OnAccepted() override { ++accepted; }
  void OnPromptScores(PromptScores) override {}
  void OnDelta(Delta delta) override {
    ++deltas;
    text += delta.text;
    texts[delta.choice] += delta.text;
    for (const SampledToken& token : delta.tokens) tokens.push_back(token.token);
  }
  void OnChoiceEnd(const ChoiceEnd& choice) override { ends.push_back(choice); }
  void OnDone(const GenerationEnd& generation) override {
    EXPECT_FALSE(done);
    done = true;
    end = generation;
  }

  std::vector<TokenId> prompt, tokens;
  std::string text;                            // of all choices
  std::map<std::uint32_t, std::string> texts;  // by choice
  int accepted = 0, deltas = 0;
  std::vector<ChoiceEnd> ends;
  GenerationEnd end;
  bool done = false;
};

// Gives every request back after `per_attempt` tokens of each sequence, until its
// answers are whole. A beam search is given back once, before it says anything.
class MovingEngine final : public Engine {
 public:
  // `answers[i]` is the answer of sequence i. Its tokens have the log-probability -1 - i.
  MovingEngine(std::vector<std::vector<TokenId>> answers, std::size_t per_attempt)
      : answers_(std::move(answers)), per_attempt_(per_attempt) {}

  absl::StatusOr<EngineDescription> Describe() const override {
    EngineDescription description = testing::FakeEngineOptions::DefaultDescription();
    description.vocab_size = 49152;
    return description;
  }
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override {
    submitted.push_back(request);
    std::vector<EngineEvent> events{Accepted{request.id, request.attempt}};
    for (std::uint32_t b = 0; b < request.sequences; ++b) SaySequence(request, b, events);
    const bool moved = std::any_of(events.begin(), events.end(), [](const EngineEvent& event) {
      const auto* end = std::get_if<SequenceEnd>(&event);
      return end != nullptr && end->reason == FinishReason::kMoved;
    });
    const absl::Status status = moved ? absl::UnavailableError("gone") : absl::OkStatus();
    Usage usage{.output_tokens = 99};
    events.push_back(RequestEnd{request.id, request.attempt, status, 0, usage});
    sink->Post(std::move(events));
  }
  void Cancel(const CancelRequest&) override {}
  EngineLoad Load() const override { return {.ready = true}; }
  absl::StatusOr<std::string> TokenizerBytes() const override { return std::string(); }
  void Drain(std::function<void()> done) override { done(); }

  std::vector<TokenizedRequest> submitted;

 private:
  void SaySequence(const TokenizedRequest& request, std::uint32_t b,
                   std::vector<EngineEvent>& events) const {
    const std::vector<TokenId>& answer = answers_[b];
    std::size_t at = request.output_prefix.empty() ? 0 : request.output_prefix[b].size();
    std::size_t until = std::min(at + per_attempt_, answer.size());
    if (request.beam) until = submitted.size() == 1 ? 0 : answer.size();
    for (; at < until; ++at) {
      events.push_back(TokenEvent{request.id,
                                  request.attempt,
                                  SequenceIndex(b),
                                  static_cast<std::uint32_t>(at),
                                  {answer[at], -1.0f - static_cast<float>(b), {}}});
    }
    const FinishReason reason = at < answer.size() ? FinishReason::kMoved : FinishReason::kStop;
    events.push_back(SequenceEnd{request.id, request.attempt, SequenceIndex(b), reason,
                                 static_cast<std::uint32_t>(at), -0.5f * static_cast<float>(b)});
  }

  const std::vector<std::vector<TokenId>> answers_;
  const std::size_t per_attempt_;
};

// A FakeEngine of the real vocabulary that steps when told.
inline testing::FakeEngineOptions Manual() {
  testing::FakeEngineOptions options;
  options.description.vocab_size = 49152;
  options.manual = true;
  return options;
}

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    auto file = model::OpenCheckpoint(testing::ModelPath());
    EXPECT_TRUE(file.ok()) << "the model file is missing: " << file.status();
    tokenizer_ =
        std::make_unique<model::Tokenizer>(*model::Tokenizer::Create(*(*file)->ReadTokenizer()));
  }
  void Make(Engine* engine) {
    service_ = InferenceService::Create(options_, &clock_, &metrics_);
    Add("m", engine);
    io_loop_ = service_->OpenIoLoop(&dispatcher_);
  }
  void Add(const std::string& model, Engine* engine) {
    service_->AddModel({.id = model,
                        .end_tokens = {2},
                        .engine = engine,
                        .tokenizer = tokenizer_.get(),
                        .metrics = &metrics_});
  }
  std::unique_ptr<Generation> Start(ApiRequest api, Recorder* recorder) {
    if (api.model.empty()) api.model = "m";
    auto valid = service_->Validate(std::move(api));
    EXPECT_TRUE(valid.ok()) << valid.status();
    auto generation = service_->Start(*std::move(valid), *io_loop_, recorder);
    EXPECT_TRUE(generation.ok()) << generation.status();
    return *std::move(generation);
  }

  double Cancelled(const char* by) {
    return registry_.AddCounter("flotilla_router_cancelled_total", "", {{"by", by}}).Value();
  }
  double Refused(const char* reason) {
    return registry_.AddCounter("flotilla_router_rejected_total", "", {{"reason", reason}}).Value();
  }

  std::unique_ptr<model::Tokenizer> tokenizer_;
  testing::ManualClock clock_;
  Metrics registry_;
  RouterMetrics metrics_{registry_};
  ServiceOptions options_;
  ManualDispatcher dispatcher_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<IoLoop> io_loop_;
};

}  // namespace flotilla::router
