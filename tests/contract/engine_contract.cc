#include "tests/contract/engine_contract.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/engine_recorder.h"
#include "tests/support/requests.h"

namespace flotilla::testing {
namespace {

TokenizedRequest Request(std::uint64_t number, std::uint32_t prompt_tokens = 20,
                         std::uint32_t max_tokens = 8) {
  return TestRequest({99, number}, CountingPrompt(number, prompt_tokens, 16), max_tokens);
}

class Session {
 public:
  explicit Session(const EngineCase& param) : made_(param.make()) {}

  Engine& engine() { return made_->engine(); }

  void Submit(const TokenizedRequest& request) {
    recorder->Expect(request);
    engine().Submit(request, recorder);
  }

  void Settle() { made_->Settle(); }

  // Runs the engine until `done` is true, a minute at most.
  template <class Done>
  void PumpUntil(const Done& done) {
    const absl::Time limit = absl::Now() + absl::Minutes(1);
    while (!done()) {
      ASSERT_LT(absl::Now(), limit) << "what was waited for did not come";
      if (!made_->Pump()) std::this_thread::yield();
    }
  }

  RecordedAnswer Finish(const TokenizedRequest& request) {
    PumpUntil([&] { return recorder->Ended(request.id); });
    return recorder->Answer(request.id);
  }

  RecordedAnswer Ask(const TokenizedRequest& request) {
    Submit(request);
    return Finish(request);
  }

  // Submits a request that the engine must refuse, and returns the refusal.
  RequestEnd Refusal(const TokenizedRequest& request) {
    const RecordedAnswer answer = Ask(request);
    EXPECT_FALSE(answer.accepted);
    return answer.ends.empty() ? RequestEnd{} : answer.ends[0];
  }

  std::shared_ptr<EngineRecorder> recorder = std::make_shared<EngineRecorder>();

 private:
  std::unique_ptr<EngineUnderTest> made_;
};

void ExpectEnd(const RecordedAnswer& answer, FinishReason reason, std::uint32_t output_tokens) {
  EXPECT_TRUE(answer.accepted);
  ASSERT_EQ(answer.sequence_ends.size(), 1u);
  EXPECT_EQ(answer.sequence_ends[0].reason, reason);
  EXPECT_EQ(answer.sequence_ends[0].output_tokens, output_tokens);
  ASSERT_EQ(answer.ends.size(), 1u);
  EXPECT_TRUE(answer.ends[0].status.ok()) << answer.ends[0].status;
  EXPECT_EQ(answer.ends[0].usage.output_tokens, output_tokens);
}

// Returns how many sequences per request to test: as many as the engine takes, and at most four.
std::uint32_t SomeSequences(Engine& engine) {
  return std::min(4u, engine.Describe().value().max_sequences);
}

// The one end of a sequence.
SequenceEnd EndOf(const RecordedAnswer& answer, std::uint32_t sequence) {
  for (const SequenceEnd& end : answer.sequence_ends) {
    if (end.sequence == SequenceIndex(sequence)) return end;
  }
  ADD_FAILURE() << "sequence " << sequence << " has no end";
  return {};
}

std::uint32_t TokensOfAll(const RecordedAnswer& answer) {
  std::size_t sum = 0;
  for (const auto& tokens : answer.tokens) sum += tokens.size();
  return static_cast<std::uint32_t>(sum);
}

TEST_P(EngineContract, DescribesWhatItServes) {
  Session session(GetParam());
  const auto description = session.engine().Describe();
  ASSERT_TRUE(description.ok()) << description.status();
  EXPECT_FALSE(description->model_id.empty());
  EXPECT_GE(description->vocab_size, 16u);
  EXPECT_GE(description->max_context, 64u);
  EXPECT_NE(description->numerics_id, 0u);
  EXPECT_GE(description->max_sequences, 1u);
  EXPECT_GT(description->max_queue_tokens, 0u);
  const EngineLoad load = session.engine().Load();
  EXPECT_TRUE(load.ready);
  EXPECT_FALSE(load.draining);
  EXPECT_EQ(load.running_requests + load.waiting_requests, 0u);
}

TEST_P(EngineContract, AnswersToMaxTokens) {
  Session session(GetParam());
  for (std::uint32_t max_tokens : {0u, 1u, 2u, 40u}) {
    const TokenizedRequest request = Request(max_tokens + 1, 20, max_tokens);
    const RecordedAnswer answer = session.Ask(request);
    EXPECT_EQ(answer.tokens[0].size(), max_tokens);
    ExpectEnd(answer, FinishReason::kLength, max_tokens);
    EXPECT_EQ(answer.ends[0].usage.prompt_tokens, 20u);
    for (const TokenEvent& token : answer.tokens[0]) EXPECT_LE(token.sampled.logprob, 0);
  }
}

TEST_P(EngineContract, EqualRequestsHaveEqualAnswers) {
  Session session(GetParam());
  TokenizedRequest request = Request(1);
  const std::vector<TokenId> first = session.Ask(request).token_ids();
  request.id.counter = 2;  // an id is a name and changes no answer
  EXPECT_EQ(session.Ask(request).token_ids(), first);
  request.id.counter = 1;  // an id is free again when its request has ended
  EXPECT_EQ(session.Ask(request).token_ids(), first);
  request.sampling.seed = 1234567;
  EXPECT_NE(session.Ask(request).token_ids(), first);
}

TEST_P(EngineContract, StopTokenIsTheLast) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 8);
  const std::vector<TokenId> tokens = session.Ask(request).token_ids();
  const auto first =
      static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), tokens[4]) - tokens.begin());
  request.stop.stop_tokens = {tokens[4]};
  const RecordedAnswer answer = session.Ask(request);
  EXPECT_EQ(answer.token_ids(), std::vector<TokenId>(tokens.begin(), tokens.begin() + first + 1));
  ExpectEnd(answer, FinishReason::kStop, static_cast<std::uint32_t>(first + 1));
}

TEST_P(EngineContract, ReplayContinuesAfterThePrefix) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 8);
  const std::vector<TokenId> tokens = session.Ask(request).token_ids();
  for (std::size_t had = 0; had <= tokens.size(); ++had) {
    request.attempt = Attempt(request.attempt.value() + 1);
    request.output_prefix = {{tokens.begin(), tokens.begin() + had}};
    const RecordedAnswer answer = session.Ask(request);
    EXPECT_EQ(answer.token_ids(), std::vector<TokenId>(tokens.begin() + had, tokens.end())) << had;
    ExpectEnd(answer, FinishReason::kLength, 8);
  }
}

// All tokens were delivered, and only the end of the request was lost.
TEST_P(EngineContract, ReplayOfACompleteAnswerEndsIt) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 8);
  request.stop.stop_tokens = {7};
  request.output_prefix = {{5, 6, 7}};
  const RecordedAnswer answer = session.Ask(request);
  EXPECT_TRUE(answer.tokens[0].empty());
  ExpectEnd(answer, FinishReason::kStop, 3);
}

TEST_P(EngineContract, EachSequenceIsARequestWithASeedOfItsOwn) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 8);
  request.sequences = SomeSequences(session.engine());
  const RecordedAnswer answer = session.Ask(request);
  ASSERT_EQ(answer.sequence_ends.size(), request.sequences);
  for (std::uint32_t b = 0; b < request.sequences; ++b) {
    EXPECT_EQ(EndOf(answer, b).reason, FinishReason::kLength);
    EXPECT_EQ(EndOf(answer, b).output_tokens, 8u);
    TokenizedRequest alone = request;
    alone.id.counter = 100 + b;
    alone.sequences = 1;
    alone.sampling.seed = SequenceSeed(request.sampling.seed, SequenceIndex(b));
    EXPECT_EQ(answer.token_ids(b), session.Ask(alone).token_ids()) << "sequence " << b;
  }
  ASSERT_EQ(answer.ends.size(), 1u);
  EXPECT_TRUE(answer.ends[0].status.ok()) << answer.ends[0].status;
  EXPECT_EQ(answer.ends[0].usage.prompt_tokens, 20u) << "the prompt counts once";
  EXPECT_EQ(answer.ends[0].usage.output_tokens, 8 * request.sequences);
}

TEST_P(EngineContract, AStopTokenEndsItsSequenceAlone) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 12);
  request.sequences = SomeSequences(session.engine());
  const RecordedAnswer whole = session.Ask(request);
  const TokenId stop = whole.token_ids(request.sequences - 1)[4];
  request.stop.stop_tokens = {stop};
  const RecordedAnswer answer = session.Ask(request);
  for (std::uint32_t b = 0; b < request.sequences; ++b) {
    std::vector<TokenId> expected = whole.token_ids(b);
    const auto at = std::find(expected.begin(), expected.end(), stop);
    const bool stops = at != expected.end();
    if (stops) expected.erase(at + 1, expected.end());
    EXPECT_EQ(answer.token_ids(b), expected) << "sequence " << b;
    EXPECT_EQ(EndOf(answer, b).reason, stops ? FinishReason::kStop : FinishReason::kLength);
  }
  EXPECT_EQ(answer.ends[0].usage.output_tokens, TokensOfAll(answer));
}

TEST_P(EngineContract, CancelOfASequenceLeavesTheOthers) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 40);
  request.sequences = SomeSequences(session.engine());
  const std::uint32_t last = request.sequences - 1;
  session.Submit(request);
  session.PumpUntil([&] { return session.recorder->TokenCount(request.id, last) >= 3; });
  session.engine().Cancel(
      {.request = request.id, .sequence = SequenceIndex(last), .keep_tokens = 2});
  const RecordedAnswer answer = session.Finish(request);
  EXPECT_EQ(EndOf(answer, last).reason, FinishReason::kCancelled);
  EXPECT_EQ(EndOf(answer, last).output_tokens, 2u);
  for (std::uint32_t b = 0; b < last; ++b) {
    EXPECT_EQ(EndOf(answer, b).reason, FinishReason::kLength);
    EXPECT_EQ(answer.tokens[b].size(), 40u);
  }
  EXPECT_TRUE(answer.ends[0].status.ok()) << answer.ends[0].status;
  EXPECT_EQ(answer.ends[0].usage.output_tokens, 40 * last + 2);
}

TEST_P(EngineContract, CancelWithoutASequenceEndsAll) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 400);
  request.sequences = SomeSequences(session.engine());
  session.Submit(request);
  session.PumpUntil([&] { return session.recorder->TokenCount(request.id) >= 3; });
  session.engine().Cancel({.request = request.id, .keep_tokens = 1});
  const RecordedAnswer answer = session.Finish(request);
  for (std::uint32_t b = 0; b < request.sequences; ++b) {
    EXPECT_EQ(EndOf(answer, b).reason, FinishReason::kCancelled);
  }
}

// The engine gave the sequences back at different lengths. One of them is complete.
TEST_P(EngineContract, ReplayContinuesEachSequenceWhereItWas) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 8);
  request.sequences = SomeSequences(session.engine());
  const RecordedAnswer whole = session.Ask(request);
  request.attempt = Attempt(request.attempt.value() + 1);
  for (std::uint32_t b = 0; b < request.sequences; ++b) {
    const std::vector<TokenId> tokens = whole.token_ids(b);
    const std::size_t had = b == 1 ? 8 : 2 * b;
    request.output_prefix.emplace_back(tokens.begin(), tokens.begin() + had);
  }
  const RecordedAnswer answer = session.Ask(request);
  for (std::uint32_t b = 0; b < request.sequences; ++b) {
    std::vector<TokenId> all = request.output_prefix[b];
    for (const TokenId token : answer.token_ids(b)) all.push_back(token);
    EXPECT_EQ(all, whole.token_ids(b)) << "sequence " << b;
    EXPECT_EQ(EndOf(answer, b).output_tokens, 8u);
  }
  EXPECT_EQ(answer.ends[0].usage.output_tokens, 8 * request.sequences);
}

TEST_P(EngineContract, BeamsComeBestFirstOrAreRefusedByName) {
  Session session(GetParam());
  TokenizedRequest request = Request(1, 20, 8);
  request.beam = BeamOptions{.beams = 3};
  request.sequences = std::min(2u, session.engine().Describe()->max_sequences);
  const RecordedAnswer answer = session.Ask(request);
  if (!answer.accepted) {
    EXPECT_TRUE(absl::IsUnimplemented(answer.ends[0].status)) << answer.ends[0].status;
    return;
  }
  EXPECT_TRUE(answer.ends[0].status.ok()) << answer.ends[0].status;
  ASSERT_EQ(answer.sequence_ends.size(), request.sequences);
  for (std::uint32_t b = 0; b < request.sequences; ++b) {
    const SequenceEnd end = EndOf(answer, b);
    EXPECT_TRUE(end.reason == FinishReason::kStop || end.reason == FinishReason::kLength);
    EXPECT_EQ(end.output_tokens, answer.tokens[b].size());
    EXPECT_GE(answer.tokens[b].size(), 1u);
    EXPECT_LE(answer.tokens[b].size(), 8u);
    EXPECT_LE(end.score, EndOf(answer, b == 0 ? 0 : b - 1).score);
  }
  EXPECT_GE(answer.ends[0].usage.output_tokens, TokensOfAll(answer));
}

TEST_P(EngineContract, LogprobsOfPromptAndOutput) {
  Session session(GetParam());
  for (std::uint32_t max_tokens : {0u, 3u}) {
    TokenizedRequest request = Request(max_tokens + 1, 50, max_tokens);
    request.logprobs = {.output_top = 4, .prompt_top = 2};
    const RecordedAnswer answer = session.Ask(request);
    std::size_t prompt = 0;
    for (const PromptLogprobs& part : answer.prompt) {
      for (const SampledToken& token : part.tokens) {
        EXPECT_EQ(token.token, request.prompt[++prompt]);
        EXPECT_EQ(token.top.size(), 2u);
      }
    }
    EXPECT_EQ(prompt, 49u);
    for (const TokenEvent& token : answer.tokens[0]) EXPECT_EQ(token.sampled.top.size(), 4u);
  }
}

TEST_P(EngineContract, CancelKeepsWhatItNames) {
  Session session(GetParam());
  const std::uint32_t limit = session.engine().Describe()->max_context - 20;
  for (std::uint32_t keep : {0u, 2u, 1000u}) {
    const TokenizedRequest request = Request(keep + 1, 20, limit);
    session.Submit(request);
    session.PumpUntil([&] { return session.recorder->TokenCount(request.id) >= 3; });
    session.engine().Cancel({.request = request.id, .keep_tokens = keep});
    const RecordedAnswer answer = session.Finish(request);
    EXPECT_LT(answer.tokens[0].size(), limit);
    ExpectEnd(answer, FinishReason::kCancelled,
              std::min<std::uint32_t>(keep, answer.tokens[0].size()));
  }
}

TEST_P(EngineContract, CancelBeforeTheFirstToken) {
  Session session(GetParam());
  const TokenizedRequest request = Request(1, 20, 8);
  session.Submit(request);
  session.engine().Cancel({.request = request.id, .sequence = SequenceIndex(0)});
  session.Settle();
  ExpectEnd(session.Finish(request), FinishReason::kCancelled, 0);
}

TEST_P(EngineContract, CancelOfOthersIsIgnored) {
  Session session(GetParam());
  const TokenizedRequest request = Request(1);
  session.Submit(request);
  session.engine().Cancel({.request = {99, 2}});  // never seen
  session.engine().Cancel({.request = {98, 1}});  // another router's
  session.engine().Cancel({.request = request.id, .sequence = SequenceIndex(1)});
  ExpectEnd(session.Finish(request), FinishReason::kLength, 8);
  session.engine().Cancel({.request = request.id});  // ended
  ExpectEnd(session.Ask(Request(3)), FinishReason::kLength, 8);
}

TEST_P(EngineContract, RefusesWhatItCannotServe) {
  Session session(GetParam());
  const EngineDescription limits = session.engine().Describe().value();
  std::vector<TokenizedRequest> hopeless;
  std::uint64_t number = 0;
  const auto add = [&](auto change) {
    hopeless.push_back(Request(++number));
    change(hopeless.back());
  };
  add([](auto& r) { r.prompt.clear(); });
  add([](auto& r) { r.prompt[3] = -1; });
  add([&](auto& r) { r.prompt[3] = static_cast<TokenId>(limits.vocab_size); });
  add([&](auto& r) { r.prompt.assign(limits.max_context + 1, 1); });
  add([&](auto& r) { r.stop.max_tokens = limits.max_context; });
  add([&](auto& r) { r.stop.max_tokens = ~0u; });
  add([&](auto& r) { r.sequences = limits.max_sequences + 1; });
  add([](auto& r) { r.sequences = 0; });
  add([](auto& r) { r.beam = BeamOptions{.beams = 0}; });
  add([](auto& r) { r.beam = BeamOptions{.beams = BeamOptions::kMaxCandidates}; });
  add([](auto& r) { r.sampling.temperature = -1; });
  add([](auto& r) { r.sampling.top_p = 0; });
  add([](auto& r) { r.sampling.top_k = -1; });
  add([](auto& r) { r.sampling.min_p = 1.5f; });
  add([](auto& r) { r.sampling.repetition_penalty = 0; });
  add([](auto& r) { r.sampling.presence_penalty = 3; });
  add([](auto& r) { r.sampling.logit_bias = {{-1, 1}}; });
  add([](auto& r) { r.stop.stop_tokens = {5, 4}; });
  add([](auto& r) { r.logprobs.output_top = 21; });
  for (const TokenizedRequest& request : hopeless) {
    const absl::Status status = session.Refusal(request).status;
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status))
        << "request " << request.id.counter << ": " << status;
  }
  ExpectEnd(session.Ask(Request(100)), FinishReason::kLength, 8);
}

TEST_P(EngineContract, AnIdIsServedOnceAtATime) {
  Session session(GetParam());
  const TokenizedRequest request = Request(1);
  session.Submit(request);
  auto second = std::make_shared<EngineRecorder>();
  second->Expect(request);
  session.engine().Submit(request, second);
  session.PumpUntil([&] { return second->Ended(request.id); });
  EXPECT_TRUE(absl::IsAlreadyExists(second->Answer(request.id).ends[0].status));
  ExpectEnd(session.Finish(request), FinishReason::kLength, 8);
}

TEST_P(EngineContract, FullQueueRefusesWithAHint) {
  Session session(GetParam());
  const EngineDescription limits = session.engine().Describe().value();
  const std::uint32_t prompt = std::min(limits.max_context - 8, limits.max_queue_tokens);
  const std::uint32_t count = limits.max_queue_tokens / prompt + 20;
  std::vector<TokenizedRequest> requests;
  for (std::uint32_t i = 0; i < count; ++i) {
    requests.push_back(Request(i + 1, prompt, 1));
    session.Submit(requests.back());
  }
  int accepted = 0, refused = 0;
  for (const TokenizedRequest& request : requests) {
    const RecordedAnswer answer = session.Finish(request);
    ++(answer.accepted ? accepted : refused);
    if (answer.accepted) continue;
    EXPECT_TRUE(absl::IsResourceExhausted(answer.ends[0].status)) << answer.ends[0].status;
    EXPECT_GT(answer.ends[0].retry_after_ms, 0);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST_P(EngineContract, AReplayPassesAFullQueue) {
  Session session(GetParam());
  const EngineDescription limits = session.engine().Describe().value();
  const std::uint32_t prompt = std::min(limits.max_context - 8, limits.max_queue_tokens);
  const std::uint32_t count = limits.max_queue_tokens / prompt + 20;
  std::vector<TokenizedRequest> requests;
  for (std::uint32_t i = 0; i < count; ++i) {
    requests.push_back(Request(i + 1, prompt, 1));
    requests.back().attempt = Attempt(1);
    session.Submit(requests.back());
  }
  for (const TokenizedRequest& request : requests) {
    ExpectEnd(session.Finish(request), FinishReason::kLength, 1);
  }
}

TEST_P(EngineContract, ManyThreadsEachWithItsSink) {
  Session session(GetParam());
  constexpr int kThreads = 4;
  constexpr std::uint64_t kEach = 12;
  std::vector<std::shared_ptr<EngineRecorder>> recorders;
  std::vector<std::thread> threads;
  std::vector<TokenizedRequest> requests;
  for (int t = 0; t < kThreads; ++t) {
    recorders.push_back(std::make_shared<EngineRecorder>());
    for (std::uint64_t i = 0; i < kEach; ++i) {
      requests.push_back(Request(100 * t + i, 1 + static_cast<std::uint32_t>(i * 5 % 40), 6));
      recorders[t]->Expect(requests.back());
    }
  }
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        session.engine().Submit(requests[t * kEach + i], recorders[t]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EngineRecorder& recorder = *recorders[i / kEach];
    session.PumpUntil([&] { return recorder.Ended(requests[i].id); });
    ExpectEnd(recorder.Answer(requests[i].id), FinishReason::kLength, 6);
  }
  // The other requests have not changed the answer.
  TokenizedRequest alone = requests[kEach + 3];
  EXPECT_EQ(session.Ask(alone).token_ids(), recorders[1]->Answer(alone.id).token_ids());
  session.PumpUntil([&] {
    const EngineLoad load = session.engine().Load();
    return load.blocks_used == 0 && load.running_requests + load.waiting_requests == 0;
  });
}

TEST_P(EngineContract, DrainEndsWhatRunsAndRefusesTheRest) {
  Session session(GetParam());
  const TokenizedRequest request = Request(1);
  session.Submit(request);
  session.PumpUntil([&] { return session.recorder->TokenCount(request.id) > 0; });
  std::atomic<int> done{0};
  session.engine().Drain([&] {
    EXPECT_TRUE(session.recorder->Ended(request.id)) << "drained before the last request ended";
    ++done;
  });
  EXPECT_TRUE(absl::IsUnavailable(session.Refusal(Request(2)).status));
  TokenizedRequest replay = Request(3);  // it was accepted once
  replay.attempt = Attempt(1);
  ExpectEnd(session.Ask(replay), FinishReason::kLength, 8);
  ExpectEnd(session.Finish(request), FinishReason::kLength, 8);
  session.PumpUntil([&] { return done == 1 && session.engine().Load().draining; });
  session.engine().Drain([&] { ++done; });  // idle: at once
  session.PumpUntil([&] { return done == 2; });
}

}  // namespace
}  // namespace flotilla::testing
