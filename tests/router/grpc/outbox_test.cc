#include "router/grpc/outbox.h"

#include <string>

#include "gtest/gtest.h"

namespace flotilla::router {
namespace {

Outbox MakeOutbox(bool token_ids = false, bool logprobs = false) {
  return Outbox({.token_ids = token_ids, .logprobs = logprobs, .token_bytes = [](TokenId) {
                   return std::string_view("tok");
                 }});
}

SampledToken Token(TokenId id) { return {.token = id, .logprob = -1.0f, .top = {{id, -1.0f}}}; }

TEST(Outbox, MergesDeltasOfAChoiceIntoOneMessage) {
  Outbox outbox = MakeOutbox(true, true);
  outbox.Add(Delta{.choice = 0, .text = "one ", .tokens = {Token(1)}});
  outbox.Add(Delta{.choice = 1, .text = "uno ", .tokens = {Token(2)}});
  outbox.Add(Delta{.choice = 0, .text = "two", .tokens = {Token(3), Token(4)}});
  outbox.Add(ChoiceEnd{.choice = 0, .reason = FinishReason::kStop, .stop_string = "STOP"});
  outbox.Add(ChoiceEnd{.choice = 1, .reason = FinishReason::kStop, .stop_token = 7});
  outbox.Add(Usage{.prompt_tokens = 5, .output_tokens = 4, .cached_tokens = 3});
  ASSERT_EQ(outbox.size(), 1u);
  const v1::GenerateResponse message = outbox.Take();
  ASSERT_EQ(message.deltas_size(), 2);
  EXPECT_EQ(message.deltas(0).text(), "one two");
  EXPECT_EQ(message.deltas(0).token_ids_size(), 3);
  EXPECT_EQ(message.deltas(0).logprobs(2).chosen().token_id(), 4);
  EXPECT_EQ(message.deltas(1).choice(), 1u);
  EXPECT_EQ(message.finishes(0).stop_string(), "STOP");
  EXPECT_FALSE(message.finishes(0).has_stop_token());
  EXPECT_EQ(message.finishes(1).stop_token(), 7);
  EXPECT_EQ(message.usage().cached_tokens(), 3u);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0u);
}

TEST(Outbox, MergesThePiecesOfACall) {
  Outbox outbox = MakeOutbox();
  outbox.Add(Delta{.reasoning = "so", .tool_calls = {{.index = 0, .id = "1", .name = "f"}}});
  outbox.Add(Delta{.text = "t",
                   .reasoning = "!",
                   .tool_calls = {{.index = 0, .arguments = "{"},
                                  {.index = 1, .id = "2", .name = "g", .arguments = "{}"}}});
  outbox.Add(Delta{.tool_calls = {{.index = 1, .arguments = " "}}});
  const v1::GenerateResponse message = outbox.Take();
  ASSERT_EQ(message.deltas_size(), 1);
  const v1::Delta& delta = message.deltas(0);
  EXPECT_EQ(delta.text(), "t");
  EXPECT_EQ(delta.reasoning(), "so!");
  ASSERT_EQ(delta.tool_calls_size(), 2);
  EXPECT_EQ(delta.tool_calls(0).id(), "1");
  EXPECT_EQ(delta.tool_calls(0).name(), "f");
  EXPECT_EQ(delta.tool_calls(0).arguments(), "{");
  EXPECT_EQ(delta.tool_calls(1).index(), 1u);
  EXPECT_EQ(delta.tool_calls(1).arguments(), "{} ");
}

TEST(Outbox, SendsOnlyWhatWasAskedFor) {
  Outbox outbox = MakeOutbox();
  outbox.Add(Delta{.text = "", .tokens = {Token(1)}});
  EXPECT_TRUE(outbox.empty());
  outbox.Add(Delta{.text = "t", .tokens = {Token(1)}});
  const v1::GenerateResponse message = outbox.Take();
  EXPECT_EQ(message.deltas(0).token_ids_size(), 0);
  EXPECT_EQ(message.deltas(0).logprobs_size(), 0);
}

TEST(Outbox, PromptScoresStayContiguousAcrossMessages) {
  Outbox outbox = MakeOutbox();
  constexpr std::uint32_t kTokens = 40'000;
  PromptScores scores{.first = 1};
  for (std::uint32_t i = 0; i < kTokens; ++i) scores.tokens.push_back(Token(i));
  outbox.Add(scores);
  EXPECT_GT(outbox.size(), 2u);
  std::uint32_t next = 1;
  while (!outbox.empty()) {
    const v1::GenerateResponse message = outbox.Take();
    EXPECT_LE(message.ByteSizeLong(), Outbox::kMaxMessageBytes + 1024);
    EXPECT_EQ(message.prompt_logprobs().first(), next);
    for (const auto& position : message.prompt_logprobs().positions()) {
      EXPECT_EQ(position.chosen().token_id(), static_cast<TokenId>(next - 1));
      ++next;
    }
  }
  EXPECT_EQ(next, kTokens + 1);
}

TEST(Outbox, LongTextIsCutBetweenCharacters) {
  Outbox outbox = MakeOutbox();
  std::string text = "x";
  while (text.size() < 3 * Outbox::kMaxMessageBytes) text += "\xe2\x82\xac";  // euro sign
  outbox.Add(Delta{.text = text});
  EXPECT_GE(outbox.size(), 3u);
  std::string joined;
  while (!outbox.empty()) {
    const std::string piece = outbox.Take().deltas(0).text();
    EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80);
    joined += piece;
  }
  EXPECT_EQ(joined, text);
}

TEST(Outbox, CountsAboutTheBytesOnTheWire) {
  Outbox outbox = MakeOutbox(true, true);
  for (int i = 0; i < 1000; ++i) outbox.Add(Delta{.text = "word ", .tokens = {Token(i)}});
  const std::size_t counted = outbox.bytes();
  ASSERT_EQ(outbox.size(), 1u);
  const std::size_t actual = outbox.Take().ByteSizeLong();
  EXPECT_GE(counted, actual);
  EXPECT_LE(counted, actual * 2);
}

}  // namespace
}  // namespace flotilla::router
