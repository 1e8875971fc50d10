// The service over engines that misbehave, without a frontend: replay, aborts,
// deadlines, and events for those who have gone.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "model/chat_template.h"
#include "tests/router/service_fixture.h"
#include "tests/support/sentence_pieces.h"

namespace flotilla::router {
namespace {

TEST_F(ServiceTest, ARequestGivenBackIsContinuedAndNothingIsSaidTwice) {
  const std::string text = "The quick brown fox 😀 jumps over the lazy dog";
  auto answer = *tokenizer_->Encode(text);
  MovingEngine engine({answer}, 4);
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

TEST_F(ServiceTest, SaysWhatBecameOfARequest) {
  struct Seen {
    RequestOutcome outcome;
    std::string label;
    TraceContext trace;
    std::uint64_t parent_span;
    std::uint32_t attempts, output_tokens;
  };
  std::vector<Seen> seen;
  options_.on_over = [&](const RequestRecord& r) {
    seen.push_back({r.outcome, std::string(r.label), r.trace, r.parent_span, r.attempts,
                    r.usage.output_tokens});
  };
  MovingEngine engine({std::vector<TokenId>(6, 500)}, 4);
  Make(&engine);
  Recorder recorder;
  const TraceContext client{.trace_high = 1, .trace_low = 2, .span = 3, .sampled = true};
  ApiRequest request{.prompt = std::string("hi"), .trace = client};
  request.client_request_id = "mine";
  auto generation = Start(request, &recorder);
  dispatcher_.RunUntil(recorder.done);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].outcome, RequestOutcome::kFinished);
  EXPECT_EQ(seen[0].label, "mine");
  EXPECT_EQ(seen[0].attempts, 2u);
  EXPECT_EQ(seen[0].output_tokens, 6u);
  EXPECT_EQ(seen[0].parent_span, 3u);
  TraceContext own = client;
  own.span = seen[0].trace.span;
  EXPECT_EQ(seen[0].trace, own);
  EXPECT_NE(own.span, client.span);
  EXPECT_EQ(engine.submitted.back().trace, own);
  EXPECT_EQ(engine.submitted.back().label, "mine");

  Recorder too_long;
  ApiRequest long_one{.prompt = std::vector<std::int64_t>{1}};
  long_one.max_tokens = 8192;
  auto refused = Start(long_one, &too_long);
  dispatcher_.RunUntil(too_long.done);
  Recorder left;
  Start({.prompt = std::string("hi"), .label = "made-up"}, &left).reset();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[1].outcome, RequestOutcome::kRefused);
  EXPECT_EQ(seen[1].attempts, 0u);
  EXPECT_NE(seen[1].trace.trace_high, 0u);
  EXPECT_EQ(seen[1].parent_span, 0u);
  EXPECT_EQ(seen[2].outcome, RequestOutcome::kCancelled);
  EXPECT_EQ(seen[2].label, "made-up");
}

TEST_F(ServiceTest, ARequestGivenBackForEverEndsUnavailable) {
  MovingEngine engine({std::vector<TokenId>(100, 500)}, 0);
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine.submitted.size(), ServiceOptions().max_attempts);
}

TEST_F(ServiceTest, AbortByPublicIdEndsItOnce) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  ApiRequest request{.prompt = std::vector<std::int64_t>{1}};
  request.max_tokens = 50;
  auto generation = Start(request, &recorder);
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
  EXPECT_EQ(recorder.ends[0].reason, FinishReason::kCancelled);
  EXPECT_TRUE(recorder.end.status.ok());
  EXPECT_EQ(recorder.end.usage.output_tokens, 1u);
  EXPECT_FALSE(service_->Abort(generation->id()));
}

// What a client has to know to abort a request: nobody guesses it. Of 64 ids each of the
// 128 bits is 0 and is 1; that it is not, is as likely as 1 in 2^56.
TEST_F(ServiceTest, PublicIdsAreRandomInEachBit) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  std::vector<std::uint8_t> ever(16, 0), always(16, 0xff);
  for (int i = 0; i < 64; ++i) {
    Recorder recorder;
    const std::string bytes =
        absl::HexStringToBytes(Start({.prompt = std::vector<std::int64_t>{1}}, &recorder)->id());
    ASSERT_EQ(bytes.size(), 16u);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      ever[at] |= static_cast<std::uint8_t>(bytes[at]);
      always[at] &= static_cast<std::uint8_t>(bytes[at]);
    }
  }
  EXPECT_EQ(ever, std::vector<std::uint8_t>(16, 0xff));
  EXPECT_EQ(always, std::vector<std::uint8_t>(16, 0));
}

// Clients wait 10 minutes, unless they say otherwise. Files are answered however long it takes.
TEST_F(ServiceTest, LinesOfFilesHaveNoDeadlineButTheirOwn) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  for (const bool is_line : {false, true}) {
    for (const std::optional<std::int64_t> timeout_ms : {std::optional<std::int64_t>(), {5000}}) {
      Recorder recorder;
      ApiRequest api{.prompt = std::vector<std::int64_t>{1}};
      api.is_line = is_line;
      api.timeout_ms = timeout_ms;
      auto generation = Start(api, &recorder);
      dispatcher_.RunOne();
      const TokenizedRequest request = engine.submitted().back();
      EXPECT_EQ(request.has_own_deadline(), timeout_ms.has_value());
      EXPECT_EQ(request.deadline_ns.has_value(), timeout_ms.has_value() || !is_line);
    }
  }
}

TEST_F(ServiceTest, CancelBeforeThePromptIsEncodedNeverReachesTheEngine) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  generation->Cancel();
  generation->Cancel();
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.ends[0].reason, FinishReason::kCancelled);
  EXPECT_TRUE(engine.submitted().empty());
}

TEST_F(ServiceTest, TimeSpentBeforeAdmissionCounts) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  ApiRequest request{.prompt = std::string("hi")};
  request.timeout_ms = 10;
  auto generation = Start(request, &recorder);
  clock_.AdvanceNs(11'000'000);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.end.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(engine.submitted().empty());
}

// Wherever its time runs out: the record says deadline, and metrics count one.
TEST_F(ServiceTest, WhatEndsByItsDeadlineIsToldAndCountedOnce) {
  std::vector<RequestOutcome> seen;
  options_.on_over = [&](const RequestRecord& r) { seen.push_back(r.outcome); };
  testing::FakeEngine engine(Manual());
  Make(&engine);
  const auto start = [&](Recorder* recorder) {
    ApiRequest request{.prompt = std::vector<std::int64_t>{1}};
    request.timeout_ms = 100;
    return Start(request, recorder);
  };
  const auto submit = [&](std::size_t count) {
    while (engine.submitted().size() < count) dispatcher_.RunOne();
  };
  const auto expect = [&](const char* where, int deadlines, int refused, int clients) {
    EXPECT_EQ(Cancelled("deadline"), deadlines) << where;
    EXPECT_EQ(Refused("deadline"), refused) << where;
    EXPECT_EQ(Cancelled("client"), clients) << where;
    for (const char* other : {"queue_full", "draining", "too_long", "invalid", "other"}) {
      EXPECT_EQ(Refused(other), 0) << where << ", " << other;
    }
    ASSERT_EQ(seen.size(), static_cast<std::size_t>(deadlines + refused + clients)) << where;
    EXPECT_EQ(seen.back() == RequestOutcome::kDeadline, clients == 0) << where;
  };
  {
    Recorder recorder;
    auto waits = start(&recorder);
    clock_.AdvanceNs(200'000'000);
    dispatcher_.RunUntil(recorder.done);
    expect("before the engine heard of it", 0, 1, 0);
  }
  {
    Recorder recorder;
    auto waits = start(&recorder);
    clock_.AdvanceNs(200'000'000);
    waits.reset();
    expect("its client left when it was late already", 0, 2, 0);
  }
  {
    engine.Script({.refusal = absl::DeadlineExceededError("late")});
    Recorder recorder;
    auto refused = start(&recorder);
    submit(1);
    engine.StepAll();
    dispatcher_.RunUntil(recorder.done);
    EXPECT_EQ(recorder.end.status.code(), absl::StatusCode::kDeadlineExceeded);
    expect("at the engine's door", 0, 3, 0);
  }
  {
    engine.Script({.error = absl::DeadlineExceededError("late"), .error_at = 2});
    Recorder recorder;
    auto running = start(&recorder);
    submit(2);
    engine.StepAll();
    dispatcher_.RunUntil(recorder.done);
    EXPECT_EQ(recorder.end.status.code(), absl::StatusCode::kDeadlineExceeded);
    expect("while it ran", 1, 3, 0);
  }
  for (const int deadlines : {2, 3}) {  // by the call's deadline, before and after its own
    Recorder recorder;
    auto call = start(&recorder);
    submit(static_cast<std::size_t>(deadlines) + 1);
    engine.Step();
    while (recorder.accepted == 0) dispatcher_.RunOne();
    if (deadlines == 3) clock_.AdvanceNs(200'000'000);
    if (deadlines == 2) call->Expire();
    call.reset();
    engine.StepAll();
    expect("cut off", deadlines, 3, 0);
  }
  Recorder recorder;
  auto left = start(&recorder);
  submit(5);
  left.reset();
  expect("a client that leaves in time", 3, 3, 1);
}

TEST_F(ServiceTest, DestroyedGenerationsAndIoLoopsReceiveNothing) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::vector<std::int64_t>{1}}, &recorder);
  dispatcher_.RunOne();
  engine.Step();
  generation.reset();
  EXPECT_EQ(engine.cancelled().size(), 1u);
  dispatcher_.RunOne();
  EXPECT_EQ(recorder.accepted, 0);
  io_loop_.reset();
  engine.StepAll();
  EXPECT_FALSE(recorder.done);
}

TEST_F(ServiceTest, AStepsTokensComeAsOneDelta) {
  MovingEngine engine({*tokenizer_->Encode("one two three")}, 100);
  Make(&engine);
  Recorder recorder;
  auto generation = Start({.prompt = std::string("hi")}, &recorder);
  dispatcher_.RunUntil(recorder.done);
  EXPECT_EQ(recorder.deltas, 1);
  EXPECT_EQ(recorder.text, "one two three");
}

// SentencePiece puts a space in front of a text. A message is one; a completion is the end of its
// prompt.
TEST_F(ServiceTest, AMessageLosesTheSpaceThatItGot) {
  auto spaces = model::Tokenizer::Create(testing::SentencePieces());
  ASSERT_TRUE(spaces.ok()) << spaces.status();
  tokenizer_ = std::make_unique<model::Tokenizer>(*std::move(spaces));
  const auto chat = model::ChatTemplate::Compile("{{ messages[0]['content'] }}");
  ASSERT_TRUE(chat.ok()) << chat.status();
  MovingEngine engine({{testing::kFirstPiece + 2, testing::kFirstPiece + 2}}, 1);
  Make(&engine);
  service_->AddModel({.id = "chat",
                      .end_tokens = {2},
                      .engine = &engine,
                      .tokenizer = tokenizer_.get(),
                      .chat_template = &*chat,
                      .metrics = &metrics_});
  Recorder message, completion;
  const Conversation turns{.turns = {{.role = "user", .content = "a"}}};
  auto first = Start({.model = "chat", .prompt = turns}, &message);
  dispatcher_.RunUntil(message.done);
  auto second = Start({.model = "chat", .prompt = std::string("a")}, &completion);
  dispatcher_.RunUntil(completion.done);
  EXPECT_EQ(message.text, "a a");
  EXPECT_EQ(completion.text, " a a");
}

TEST_F(ServiceTest, EachModelHasItsEngine) {
  testing::FakeEngine first(Manual()), second(Manual());
  Make(&first);
  EXPECT_EQ(service_->Models().size(), 1u);
  ApiRequest api{.model = "other", .prompt = std::string("hi")};
  EXPECT_TRUE(absl::IsNotFound(service_->Validate(api).status()));
  Add("other", &second);
  ASSERT_EQ(service_->Models().size(), 2u);
  EXPECT_EQ(service_->Models()[1].limits.id, "other");
  Recorder recorder;
  ApiRequest request{.model = "other", .prompt = std::vector<std::int64_t>{1}};
  request.max_tokens = 1;
  auto generation = Start(request, &recorder);
  dispatcher_.RunOne();  // encoded
  EXPECT_TRUE(first.submitted().empty());
  EXPECT_EQ(second.submitted().size(), 1u);
  EXPECT_EQ(service_->TokenBytes("other", 500), tokenizer_->TokenBytes(500));
  EXPECT_EQ(service_->TokenBytes("third", 500), "");
}

}  // namespace
}  // namespace flotilla::router
