// The service over engines that misbehave, without a front: replay, aborts,
// deadlines, and events for those who have gone.
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "router/service.h"
#include "tests/support/fake_engine.h"
#include "tests/support/test_model.h"

namespace flotilla {
namespace {

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
    for (const OutputToken& token : delta.tokens) tokens.push_back(token.id);
  }
  void OnChoiceEnd(const ChoiceEnd& choice) override { ends.push_back(choice); }
  void OnDone(const GenerationEnd& generation) override {
    EXPECT_FALSE(done);
    done = true;
    end = generation;
  }

  std::vector<TokenId> prompt, tokens;
  std::string text;
  int accepted = 0, deltas = 0;
  std::vector<ChoiceEnd> ends;
  GenerationEnd end;
  bool done = false;
};

// Gives every request back after `per_attempt` tokens, until its answer is whole.
class MovingEngine final : public Engine {
 public:
  MovingEngine(std::vector<TokenId> answer, std::size_t per_attempt)
      : answer_(std::move(answer)), per_attempt_(per_attempt) {}

  absl::StatusOr<EngineDescription> Describe() const override {
    EngineDescription description = FakeEngineOptions::DefaultDescription();
    description.vocab_size = 49152;
    return description;
  }
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override {
    submitted.push_back(request);
    std::size_t at = request.output_prefix.empty() ? 0 : request.output_prefix[0].size();
    std::vector<EngineEvent> events{Accepted{request.id, request.attempt}};
    const std::size_t until = std::min(at + per_attempt_, answer_.size());
    for (; at < until; ++at) {
      events.push_back(TokenEvent{request.id,
                                  request.attempt,
                                  BranchIndex(0),
                                  static_cast<std::uint32_t>(at),
                                  answer_[at],
                                  0,
                                  {}});
    }
    const FinishReason reason = at < answer_.size() ? FinishReason::kMoved : FinishReason::kStop;
    events.push_back(BranchEnd{request.id, request.attempt, BranchIndex(0), reason,
                               static_cast<std::uint32_t>(at)});
    events.push_back(RequestEnd{request.id, request.attempt, absl::OkStatus(), 0, {}});
    sink->Post(std::move(events));
  }
  void Cancel(const CancelRequest&) override {}
  EngineLoad Load() const override { return {.ready = true}; }
  absl::StatusOr<std::string> TokenizerBytes() const override { return std::string(); }
  void Drain(std::function<void()> done) override { done(); }

  std::vector<TokenizedRequest> submitted;

 private:
  const std::vector<TokenId> answer_;
  const std::size_t per_attempt_;
};

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    auto file = GgufFile::Open(testing::ModelPath());
    EXPECT_TRUE(file.ok()) << "the model file is missing: " << file.status();
    tokenizer_ = std::make_unique<Tokenizer>(*Tokenizer::FromGguf(*file));
  }
  void Make(Engine* engine) {
    ServiceOptions options;
    options.model_id = "m";
    options.end_tokens = {2};
    service_ =
        InferenceService::Create(options, {engine, tokenizer_.get(), nullptr, &clock_, nullptr});
    lane_ = service_->OpenLane(&dispatcher_);
  }
  std::unique_ptr<Generation> Start(ApiRequest api, Recorder* recorder) {
    api.model = "m";
    auto valid = service_->Validate(std::move(api));
    EXPECT_TRUE(valid.ok()) << valid.status();
    auto generation = service_->Start(*std::move(valid), *lane_, recorder);
    EXPECT_TRUE(generation.ok()) << generation.status();
    return *std::move(generation);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  ManualClock clock_;
  ManualDispatcher dispatcher_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<Lane> lane_;
};

TEST_F(ServiceTest, ARequestGivenBackIsContinuedAndNothingIsSaidTwice) {
  const std::string text = "The quick brown fox 😀 jumps over the lazy dog";
  auto answer = *tokenizer_->Encode(text);
  MovingEngine engine(answer, 4);
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.text, text);
  EXPECT_EQ(recorder.tokens, answer);
  EXPECT_EQ(recorder.accepted, 1);
  EXPECT_TRUE(recorder.end.status.ok());
  EXPECT_EQ(recorder.end.usage.output_tokens, answer.size());
  EXPECT_EQ(recorder.end.attempts, (answer.size() + 3) / 4);
  ASSERT_GT(engine.submitted.size(), 2u);
  const TokenizedRequest& second = engine.submitted[1];
  EXPECT_EQ(second.prompt, engine.submitted[0].prompt);
  EXPECT_EQ(second.sampling, engine.submitted[0].sampling);  // the seed too
  EXPECT_EQ(second.output_prefix[0], std::vector<TokenId>(answer.begin(), answer.begin() + 4));
}

TEST_F(ServiceTest, ARequestGivenBackForEverEndsUnavailable) {
  MovingEngine engine(std::vector<TokenId>(100, 500), 0);
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine.submitted.size(), ServiceOptions().max_attempts);
}

FakeEngineOptions Manual() {
  FakeEngineOptions options;
  options.description.vocab_size = 49152;
  options.manual = true;
  return options;
}

TEST_F(ServiceTest, AbortByPublicIdEndsItOnce) {
  FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::vector<std::int64_t>{1}, .max_tokens = 50}, &recorder);
  dispatcher_.RunOne();  // encoded
  engine.Step();
  dispatcher_.RunOne();
  engine.Step();
  dispatcher_.RunOne();
  EXPECT_EQ(recorder.tokens.size(), 1u);
  EXPECT_FALSE(service_->Abort("unknown"));
  EXPECT_TRUE(service_->Abort(generation->id()));
  EXPECT_TRUE(service_->Abort(generation->id()));
  dispatcher_.RunOne();
  dispatcher_.RunOne();
  ASSERT_EQ(engine.cancelled().size(), 1u);
  EXPECT_EQ(engine.cancelled()[0].keep_tokens, 1u);
  engine.StepAll();
  dispatcher_.RunUntil(recorder.done);
  ASSERT_EQ(recorder.ends.size(), 1u);
  EXPECT_EQ(recorder.ends[0].reason, ChoiceFinish::kCancelled);
  EXPECT_TRUE(recorder.end.status.ok());
  EXPECT_EQ(recorder.end.usage.output_tokens, 1u);
  EXPECT_FALSE(service_->Abort(generation->id()));
}

TEST_F(ServiceTest, CancelBeforeThePromptIsEncodedNeverReachesTheEngine) {
  FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  generation->Cancel();
  generation->Cancel();
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.ends[0].reason, ChoiceFinish::kCancelled);
  EXPECT_TRUE(engine.submitted().empty());
}

TEST_F(ServiceTest, TimeSpentBeforeAdmissionCounts) {
  FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi"), .timeout_ms = 10}, &recorder);
  clock_.AdvanceNs(11'000'000);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.end.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(engine.submitted().empty());
}

TEST_F(ServiceTest, DestroyedGenerationsAndLanesHearNothing) {
  FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::vector<std::int64_t>{1}}, &recorder);
  dispatcher_.RunOne();
  engine.Step();
  generation.reset();
  EXPECT_EQ(engine.cancelled().size(), 1u);
  dispatcher_.RunOne();
  EXPECT_EQ(recorder.accepted, 0);
  lane_.reset();
  engine.StepAll();
  EXPECT_FALSE(recorder.done);
}

TEST_F(ServiceTest, AStepsTokensComeAsOneDelta) {
  MovingEngine engine(*tokenizer_->Encode("one two three"), 100);
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.deltas, 1);
  EXPECT_EQ(recorder.text, "one two three");
}

}  // namespace
}  // namespace flotilla
