// Several continuations of one prompt: n, best_of and beam search, through the
// service and over HTTP.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/router/http_fixture.h"
#include "tests/router/service_fixture.h"

namespace flotilla::router {
namespace {

// docs/api.md gives the formula to clients: SplitMix64, whose first outputs for
// seed 0 are published.
TEST(SequenceSeed, IsTheDocumentedOne) {
  EXPECT_EQ(SequenceSeed(0, SequenceIndex(0)), 0u);
  EXPECT_EQ(SequenceSeed(0, SequenceIndex(1)), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(SequenceSeed(0, SequenceIndex(2)), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(SequenceSeed(7, SequenceIndex(0)), 7u);
}

class SequencesTest : public ServiceTest {
 protected:
  testing::FakeSequence Say(const std::string& text, float logprob = -0.5f, float score = 0) {
    return {*tokenizer_->Encode(text), logprob, score};
  }
  static ApiRequest Api(std::int64_t n, std::optional<std::int64_t> best_of = std::nullopt) {
    ApiRequest api;
    api.prompt = std::vector<std::int64_t>{1, 2, 3};
    api.max_tokens = 50;
    api.n = n;
    api.best_of = best_of;
    return api;
  }
  // One step of a manual engine, seen by the service.
  void Step(testing::FakeEngine& engine) {
    engine.Step();
    dispatcher_.RunOne();
  }

  Recorder recorder_;
};

TEST_F(SequencesTest, ChoicesGrowTogether) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.sequences = {Say("one two"), Say("three"), Say("four five six")}});
  auto generation = Start(Api(3), &recorder_);
  dispatcher_.RunOne();  // encoded
  Step(engine);          // accepted
  Step(engine);
  EXPECT_EQ(recorder_.texts,
            (std::map<std::uint32_t, std::string>{{0, "one"}, {1, "three"}, {2, "four"}}));
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.texts, (std::map<std::uint32_t, std::string>{
                                 {0, "one two"}, {1, "three"}, {2, "four five six"}}));
  ASSERT_EQ(recorder_.ends.size(), 3u);
  EXPECT_EQ(recorder_.ends[0].choice, 1u);  // the shortest
  for (const ChoiceEnd& end : recorder_.ends) EXPECT_FALSE(end.score.has_value());
  EXPECT_EQ(recorder_.end.usage.output_tokens, 6u);
  EXPECT_EQ(recorder_.end.usage.prompt_tokens, 3u);
  EXPECT_EQ(engine.submitted()[0].sequences, 3u);
  EXPECT_FALSE(engine.submitted()[0].beam.has_value());
}

TEST_F(SequencesTest, AStopStringEndsItsChoiceAlone) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.sequences = {Say("one two three four"), Say("one END two three four")}});
  ApiRequest api = Api(2);
  api.stop = {" END"};
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunOne();
  while (engine.cancelled().empty()) Step(engine);
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.texts[0], "one two three four");
  EXPECT_EQ(recorder_.texts[1], "one");
  ASSERT_EQ(engine.cancelled().size(), 1u);
  EXPECT_EQ(engine.cancelled()[0].sequence, SequenceIndex(1));
  ASSERT_EQ(recorder_.ends.size(), 2u);
  EXPECT_EQ(recorder_.ends[0].choice, 1u);
  EXPECT_EQ(recorder_.ends[0].stop_string, " END");
  EXPECT_EQ(recorder_.end.usage.output_tokens, 4 + engine.cancelled()[0].keep_tokens);
}

// Text before min_tokens cannot match. It cannot even be the beginning of a stop string that
// ends later.
TEST_F(SequencesTest, StopStringsWaitForMinTokens) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.sequences = {Say("one two three two five"), Say("one two three four five")}});
  ApiRequest api = Api(2);
  api.stop = {" two", "three four"};
  api.min_tokens = 3;
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunOne();
  while (engine.cancelled().empty()) Step(engine);
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.texts[0], "one two three");
  EXPECT_EQ(recorder_.texts[1], "one two three four five");
  EXPECT_EQ(engine.submitted()[0].stop.min_tokens, 3u);
}

// The engine gives the request back in the same batch of events in which a stop string ends the
// answer.
TEST_F(SequencesTest, AWholeAnswerIsNotLostWithItsEngine) {
  MovingEngine engine({*tokenizer_->Encode("one two three four"),
                       *tokenizer_->Encode("five six seven two eight nine")},
                      3);
  Make(&engine);
  ApiRequest api = Api(2);
  api.stop = {" two", " seven"};
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(engine.submitted.size(), 1u);
  EXPECT_TRUE(recorder_.end.status.ok()) << recorder_.end.status;
  EXPECT_EQ(recorder_.texts[0], "one");
  EXPECT_EQ(recorder_.texts[1], "five six");
}

TEST_F(SequencesTest, TheBestComeAtTheEndBestFirst) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script(
      {.sequences = {Say("zero", -3), Say("one and more", -1), Say("two", -2), Say("three", -1)}});
  auto generation = Start(Api(2, 4), &recorder_);
  dispatcher_.RunOne();
  Step(engine);
  Step(engine);
  Step(engine);
  EXPECT_EQ(recorder_.accepted, 1);
  EXPECT_EQ(recorder_.deltas, 0);
  EXPECT_TRUE(recorder_.ends.empty());
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.texts,
            (std::map<std::uint32_t, std::string>{{0, "one and more"}, {1, "three"}}));
  ASSERT_EQ(recorder_.ends.size(), 2u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(recorder_.ends[i].choice, i);
    EXPECT_EQ(recorder_.ends[i].score, -1.0f);
  }
  EXPECT_EQ(recorder_.end.usage.output_tokens, 6u) << "those not returned are charged too";
}

TEST_F(SequencesTest, AStopStringCutsWhatIsRanked) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.sequences = {Say("zero", -2), Say("one END two", -1)}});
  ApiRequest api = Api(1, 2);
  api.stop = {" END"};
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunOne();
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.text, "one");
  ASSERT_EQ(recorder_.ends.size(), 1u);
  EXPECT_EQ(recorder_.ends[0].choice, 0u);
  EXPECT_EQ(recorder_.ends[0].stop_string, " END");
  EXPECT_EQ(recorder_.ends[0].score, -1.0f);
}

TEST_F(SequencesTest, BestOfAsManyAsComeBackIsNotHeld) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.sequences = {Say("zero", -3), Say("one", -1)}});
  auto generation = Start(Api(2, 2), &recorder_);
  dispatcher_.RunOne();
  Step(engine);
  Step(engine);
  EXPECT_EQ(recorder_.texts[0], "zero");
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  ASSERT_EQ(recorder_.ends.size(), 2u);
  EXPECT_EQ(recorder_.ends[0].choice, 0u);
  EXPECT_EQ(recorder_.ends[0].score, -3.0f);
}

TEST_F(SequencesTest, WithoutTokensThereIsNoScore) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  ApiRequest api = Api(2, 3);
  api.max_tokens = 0;
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunOne();
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  ASSERT_EQ(recorder_.ends.size(), 2u);
  EXPECT_EQ(recorder_.ends[1].choice, 1u);
  EXPECT_FALSE(recorder_.ends[1].score.has_value());
}

TEST_F(SequencesTest, AnAbortHandsOutTheBestSoFar) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.sequences = {Say("one two three", -2), Say("four five six", -1), Say("x", -9)}});
  auto generation = Start(Api(2, 3), &recorder_);
  dispatcher_.RunOne();
  Step(engine);
  Step(engine);
  generation->Cancel();
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.texts, (std::map<std::uint32_t, std::string>{{0, "four"}, {1, "one"}}));
  ASSERT_EQ(recorder_.ends.size(), 2u);
  EXPECT_EQ(recorder_.ends[0].reason, FinishReason::kCancelled);
  EXPECT_EQ(recorder_.end.usage.output_tokens, 3u);
}

TEST_F(SequencesTest, AFailureHandsOutNothingThatWasHeld) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  engine.Script({.error = absl::InternalError("lost"), .error_at = 2});
  auto generation = Start(Api(1, 3), &recorder_);
  dispatcher_.RunOne();
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(recorder_.end.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(recorder_.deltas, 0);
  EXPECT_TRUE(recorder_.ends.empty());
}

TEST_F(SequencesTest, ADeadlineIsCountedOnceAndHasNoScoreWithoutTokens) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  const testing::FakeSequence late{.reason = FinishReason::kDeadline};
  engine.Script({.sequences = {late, late}});
  ApiRequest api = Api(2);
  api.use_beam_search = true;
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunOne();
  engine.StepAll();
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_EQ(Cancelled("deadline"), 1);
  ASSERT_EQ(recorder_.ends.size(), 2u);
  EXPECT_EQ(recorder_.ends[1].reason, FinishReason::kDeadline);
  EXPECT_FALSE(recorder_.ends[1].score.has_value());
}

TEST_F(SequencesTest, BestOfIsReplayedFromWhatEachSequenceHad) {
  MovingEngine engine({*tokenizer_->Encode("a b c d e f g"), *tokenizer_->Encode("h i j k")}, 3);
  Make(&engine);
  auto generation = Start(Api(1, 2), &recorder_);
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_TRUE(recorder_.end.status.ok()) << recorder_.end.status;
  EXPECT_EQ(recorder_.text, "a b c d e f g");  // -1 per token: better than -2
  EXPECT_EQ(recorder_.ends[0].score, -1.0f);
  EXPECT_EQ(recorder_.end.usage.output_tokens, 11u);
  ASSERT_EQ(engine.submitted.size(), 3u);
  EXPECT_EQ(engine.submitted[2].output_prefix[0].size(), 6u);
  EXPECT_EQ(engine.submitted[2].output_prefix[1].size(), 4u);
}

TEST_F(SequencesTest, BeamsCarryTheEnginesScoresAndUsage) {
  MovingEngine engine({*tokenizer_->Encode("a b"), *tokenizer_->Encode("c d e")}, 0);
  Make(&engine);
  ApiRequest api = Api(2, 5);
  api.use_beam_search = true;
  api.length_penalty = 0.5;
  api.early_stopping = BeamOptions::EarlyStopping::kNever;
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunUntil(recorder_.done);
  EXPECT_TRUE(recorder_.end.status.ok()) << recorder_.end.status;
  EXPECT_EQ(recorder_.texts, (std::map<std::uint32_t, std::string>{{0, "a b"}, {1, "c d e"}}));
  ASSERT_EQ(recorder_.ends.size(), 2u);
  EXPECT_EQ(recorder_.ends[0].score, 0.0f);
  EXPECT_EQ(recorder_.ends[1].score, -0.5f);
  EXPECT_EQ(recorder_.end.usage.output_tokens, 99u);
  // The engine gave the request back once. The second submission has no output prefix.
  ASSERT_EQ(engine.submitted.size(), 2u);
  for (const TokenizedRequest& request : engine.submitted) {
    EXPECT_TRUE(request.output_prefix.empty());
    EXPECT_EQ(request.sequences, 2u);
    EXPECT_EQ(request.beam, (BeamOptions{5, 0.5f, BeamOptions::EarlyStopping::kNever}));
  }
}

TEST_F(SequencesTest, BeamsAreCancelledAsAWhole) {
  testing::FakeEngine engine(Manual());
  Make(&engine);
  ApiRequest api = Api(2, 3);
  api.use_beam_search = true;
  auto generation = Start(std::move(api), &recorder_);
  dispatcher_.RunOne();
  Step(engine);
  generation.reset();
  ASSERT_EQ(engine.cancelled().size(), 1u);
  EXPECT_FALSE(engine.cancelled()[0].sequence.has_value());
}

// Over HTTP.
class HttpSequencesTest : public HttpTest {
 protected:
  testing::FakeSequence Say(const std::string& text, float logprob = -0.5f, float score = 0) {
    testing::FakeSequence sequence{text_.Encode(text), logprob, score};
    sequence.tokens.push_back(text_.eos);
    return sequence;
  }
};

TEST_F(HttpSequencesTest, ChatWithSeveralChoices) {
  Serve();
  engine_->Script({.sequences = {Say("Paris."), Say("It is Paris."), Say("France!")}});
  const json body = Chat(R"(,"n":3,"logprobs":true,"return_token_ids":true)").json();
  ASSERT_EQ(body["choices"].size(), 3u);
  std::size_t tokens = 0;
  for (int i = 0; i < 3; ++i) {
    const json& choice = body["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["prompt_token_ids"], engine_->submitted()[0].prompt);
    EXPECT_EQ(choice["logprobs"]["content"].size(), choice["token_ids"].size());
    EXPECT_FALSE(choice.contains("score"));
    tokens += choice["token_ids"].size();
  }
  EXPECT_EQ(body["choices"][1]["message"]["content"], "It is Paris.");
  EXPECT_EQ(body["prompt_token_ids"], engine_->submitted()[0].prompt);
  EXPECT_EQ(body["usage"]["completion_tokens"], tokens);
  EXPECT_EQ(body["usage"]["prompt_tokens"], engine_->submitted()[0].prompt.size());
}

TEST_F(HttpSequencesTest, StreamedChoicesCarryTheirIndex) {
  Serve();
  engine_->Script({.sequences = {Say("one two three"), Say("four")}});
  const auto events =
      Chat(R"(,"n":2,"stream":true,"stream_options":{"include_usage":true})").events();
  std::map<int, std::string> texts;
  std::map<int, int> roles, finishes;
  ASSERT_GE(events.size(), 6u);
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    const json choice = json::parse(events[i])["choices"][0];
    const int index = choice["index"];
    roles[index] += choice["delta"].contains("role") ? 1 : 0;
    finishes[index] += choice["finish_reason"] == "stop" ? 1 : 0;
    texts[index] += choice["delta"].value("content", "");
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "one two three"}, {1, "four"}}));
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_EQ(finishes, roles);
  const json usage = json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["usage"]["completion_tokens"], 6);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(HttpSequencesTest, ChoicesOfSeveralPromptsAreNumberedOn) {
  Serve();
  engine_->Script({.sequences = {Say("a"), Say("b")}});
  engine_->Script({.sequences = {Say("c"), Say("d")}});
  const std::string request = R"({"model":"m","prompt":[[1],[2]],"n":2,"max_tokens":9)";
  const json body = Post("/v1/completions", request + "}").json();
  ASSERT_EQ(body["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], std::string(1, static_cast<char>('a' + i)));
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);

  engine_->Script({.sequences = {Say("a"), Say("b")}});
  engine_->Script({.sequences = {Say("c"), Say("d")}});
  std::map<int, std::string> texts;
  for (const std::string& event :
       Post("/v1/completions", request + R"(,"stream":true})").events()) {
    if (event == "[DONE]") break;
    const json choice = json::parse(event)["choices"][0];
    texts[choice["index"]] += choice["text"];
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "a"}, {1, "b"}, {2, "c"}, {3, "d"}}));
}

TEST_F(HttpSequencesTest, EchoIsPartOfEachChoice) {
  Serve();
  engine_->Script({.sequences = {Say(" a"), Say(" b")}});
  const json body = Complete(R"(,"n":2,"echo":true,"logprobs":0)").json();
  EXPECT_EQ(body["choices"][0]["text"], "hi a");
  EXPECT_EQ(body["choices"][1]["text"], "hi b");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(),
            body["choices"][1]["logprobs"]["tokens"].size());
  EXPECT_EQ(body["choices"][1]["logprobs"]["tokens"][0], "hi");
}

TEST_F(HttpSequencesTest, BestOfOnBothEndpoints) {
  Serve();
  for (const bool chat : {false, true}) {
    engine_->Script({.sequences = {Say("bad", -2), Say("good", -0.25f), Say("fair", -1)}});
    const std::string more = R"(,"n":2,"best_of":3)";
    const json body = (chat ? Chat(more) : Complete(more)).json();
    ASSERT_EQ(body["choices"].size(), 2u);
    EXPECT_EQ(chat ? body["choices"][0]["message"]["content"] : body["choices"][0]["text"], "good");
    EXPECT_EQ(body["choices"][0]["score"], -0.25);
    EXPECT_EQ(body["choices"][1]["index"], 1);
    EXPECT_EQ(body["choices"][1]["score"], -1);
    EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  }
}

TEST_F(HttpSequencesTest, BeamSearchWholeAndStreamed) {
  Serve();
  const std::string more = R"(,"use_beam_search":true,"best_of":4,"n":2,"length_penalty":0)";
  engine_->Script({.sequences = {Say("best", -1, -0.5f), Say("second", -1, -0.75f)}});
  const json body = Complete(more).json();
  ASSERT_EQ(body["choices"].size(), 2u) << body;
  EXPECT_EQ(body["choices"][0]["text"], "best");
  EXPECT_EQ(body["choices"][0]["score"], -0.5);
  EXPECT_EQ(body["choices"][1]["score"], -0.75);
  EXPECT_EQ(engine_->submitted()[0].beam, (BeamOptions{4, 0.0f}));
  EXPECT_EQ(engine_->submitted()[0].sequences, 2u);

  engine_->Script({.sequences = {Say("best", -1, -0.5f), Say("second", -1, -0.75f)}});
  std::map<int, double> scores;
  for (const std::string& event : Complete(more + R"(,"stream":true)").events()) {
    if (event == "[DONE]") break;
    const json choice = json::parse(event)["choices"][0];
    EXPECT_EQ(choice.contains("score"), !choice["finish_reason"].is_null());
    if (choice.contains("score")) scores[choice["index"]] = choice["score"];
  }
  EXPECT_EQ(scores, (std::map<int, double>{{0, -0.5}, {1, -0.75}}));
}

TEST_F(HttpSequencesTest, RefusalsNameFieldAndLimit) {
  Serve();
  for (const auto& [more, field] : std::vector<std::pair<std::string, std::string>>{
           {R"(,"n":9)", "n"},
           {R"(,"best_of":9)", "best_of"},
           {R"(,"best_of":2,"stream":true)", "stream"},
           {R"(,"use_beam_search":true,"n":2,"stop":"x")", "stop"}}) {
    const HttpResponse response = Chat(more);
    EXPECT_EQ(response.status, 400) << more;
    EXPECT_EQ(response.json()["error"]["param"], field) << more;
  }
  const std::string message = Chat(R"(,"n":9)").json()["error"]["message"];
  EXPECT_NE(message.find("from 1 to 8"), std::string::npos) << message;
  EXPECT_TRUE(engine_->submitted().empty());
}

}  // namespace
}  // namespace flotilla::router
