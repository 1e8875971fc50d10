// What travels between router and scheduler comes back as it was; what cannot be is
// refused by the field's name.
#include "proto/codec/engine.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/codec/random_values.h"
#include "tests/support/random.h"

namespace flotilla::codec {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNow = 5'000'000'000;

// The message, through its bytes.
template <class Proto>
Proto Sent(const Proto& proto) {
  Proto received;
  EXPECT_TRUE(received.ParseFromString(proto.SerializeAsString()));
  return received;
}

EngineCommand RoundTrip(const EngineCommand& command, std::int64_t later = kNow) {
  v1::EngineCommand proto;
  ToProto(command, kNow, &proto);
  absl::StatusOr<EngineCommand> back = FromProto(Sent(proto), later);
  EXPECT_TRUE(back.ok()) << back.status();
  return back.ok() ? *back : EngineCommand();
}

bool Same(const EngineEvent& a, const EngineEvent& b) {
  const auto* end = std::get_if<RequestEnd>(&a);
  if (end == nullptr) {
    return a.index() == b.index() && std::visit(
                                         [&](const auto& left) {
                                           using T = std::decay_t<decltype(left)>;
                                           if constexpr (std::is_same_v<T, RequestEnd>) {
                                             return false;
                                           } else {
                                             return left == std::get<T>(b);
                                           }
                                         },
                                         a);
  }
  const auto* other = std::get_if<RequestEnd>(&b);
  return other != nullptr && end->request == other->request && end->attempt == other->attempt &&
         end->status == other->status && end->retry_after_ms == other->retry_after_ms &&
         end->usage == other->usage;
}

TEST(EngineCodec, RequestsComeBackAsTheyWere) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const TokenizedRequest request = RandomValues(seed).Request();
    EXPECT_EQ(std::get<TokenizedRequest>(RoundTrip(request)), request) << "seed " << seed;
  }
}

TEST(EngineCodec, EventsComeBackAsTheyWere) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    RandomValues random(seed);
    EngineUpdate update;
    for (int i = 0; i < 4; ++i) update.events.push_back(random.RouterEvent());
    v1::EngineUpdate proto;
    ToProto(update, &proto);
    const absl::StatusOr<EngineUpdate> back = FromProto(Sent(proto));
    ASSERT_TRUE(back.ok()) << back.status() << " seed " << seed;
    ASSERT_EQ(back->events.size(), 4u);
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(Same(back->events[i], update.events[i])) << "seed " << seed << " event " << i;
    }
    EXPECT_FALSE(back->load.has_value());
    EXPECT_FALSE(back->description.has_value());
  }
}

TEST(EngineCodec, ADeadlineKeepsWhatIsLeftOfIt) {
  TokenizedRequest request;
  request.deadline_ns = kNow + 700;
  const EngineCommand back = RoundTrip(request, /*later=*/40);
  EXPECT_EQ(std::get<TokenizedRequest>(back).deadline_ns, 740);
  request.deadline_ns = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(std::get<TokenizedRequest>(RoundTrip(request, -5)).deadline_ns,
            std::numeric_limits<std::int64_t>::min());
}

TEST(EngineCodec, CancelsLoadAndDescriptionComeBack) {
  const CancelRequest one{.request = {3, 4}, .sequence = SequenceIndex(0), .keep_tokens = 9};
  const auto back = std::get<CancelRequest>(RoundTrip(one));
  EXPECT_EQ(back.request, one.request);
  EXPECT_EQ(back.sequence, one.sequence);
  EXPECT_EQ(back.keep_tokens, 9u);
  EXPECT_FALSE(
      std::get<CancelRequest>(RoundTrip(CancelRequest{.request = {3, 4}})).sequence.has_value());

  const EngineUpdate update{
      .events = {},
      .load = EngineLoad{1, 2, 3, 4, 5, true, true},
      .description = EngineDescription{"m", 1, 2, 3, 4, Exactness::kConsistent, 5, 6}};
  v1::EngineUpdate proto;
  ToProto(update, &proto);
  const absl::StatusOr<EngineUpdate> received = FromProto(Sent(proto));
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->load, update.load);
  EXPECT_EQ(received->description, update.description);
}

TEST(EngineCodec, WhatCannotBeIsRefusedByName) {
  const auto refusal = [](auto change) {
    v1::EngineCommand proto;
    ToProto(EngineCommand(TokenizedRequest{}), kNow, &proto);
    change(*proto.mutable_submit());
    return std::string(FromProto(proto, kNow).status().message());
  };
  EXPECT_THAT(refusal([](auto& r) { r.add_prompt(-1); }), HasSubstr("submit.prompt"));
  EXPECT_THAT(refusal([](auto& r) { r.add_output_prefix()->add_tokens(-2); }),
              HasSubstr("submit.output_prefix"));
  EXPECT_THAT(refusal([](auto& r) { r.mutable_sampling()->set_top_p(NAN); }),
              HasSubstr("submit.sampling.top_p"));
  EXPECT_THAT(refusal([](auto& r) { r.mutable_sampling()->set_frequency_penalty(NAN); }),
              HasSubstr("submit.sampling.frequency_penalty"));
  EXPECT_THAT(refusal([](auto& r) { r.mutable_sampling()->add_biases(1); }),
              HasSubstr("submit.sampling.biased_tokens"));
  EXPECT_THAT(refusal([](auto& r) {
                r.mutable_sampling()->add_biased_tokens(1);
                r.mutable_sampling()->add_biases(NAN);
              }),
              HasSubstr("submit.sampling.biases"));
  EXPECT_THAT(refusal([](auto& r) { r.mutable_beam(); }), HasSubstr("early_stopping"));
  EXPECT_THAT(std::string(FromProto(v1::EngineCommand(), kNow).status().message()),
              HasSubstr("command"));

  const auto wrong = [](auto change) {
    v1::EngineUpdate proto;
    change(*proto.add_events());
    return std::string(FromProto(proto).status().message());
  };
  EXPECT_THAT(wrong([](auto&) {}), HasSubstr("event"));
  EXPECT_THAT(wrong([](auto& e) { e.mutable_token()->set_token(-1); }), HasSubstr("token.token"));
  EXPECT_THAT(wrong([](auto& e) { e.mutable_token()->mutable_top()->add_ids(1); }),
              HasSubstr("token.top"));
  EXPECT_THAT(wrong([](auto& e) { e.mutable_sequence_end(); }), HasSubstr("sequence_end.reason"));
  EXPECT_THAT(wrong([](auto& e) { e.mutable_request_end()->set_code(17); }),
              HasSubstr("request_end.code"));
  EXPECT_THAT(wrong([](auto& e) {
                e.mutable_prompt_logprobs()->add_chosen(-1);
                e.mutable_prompt_logprobs()->add_top_counts(4'000'000'000u);
              }),
              HasSubstr("prompt_logprobs.top_counts"));
  EXPECT_THAT(wrong([](auto& e) {
                e.mutable_prompt_logprobs()->add_chosen(-1);
                e.mutable_prompt_logprobs()->add_top_counts(0);
                for (const TokenId token : {1, 2}) e.mutable_prompt_logprobs()->add_tokens(token);
              }),
              HasSubstr("prompt_logprobs.tokens"));
}

// Routers and schedulers of two versions talk to each other during a rolling update.
TEST(EngineCodec, WhatAnEarlierVersionLeavesOutHasItsDefault) {
  v1::EngineCommand command;
  ToProto(EngineCommand(TokenizedRequest{}), kNow, &command);
  command.mutable_submit()->mutable_sampling()->clear_typical_p();
  const auto request = FromProto(Sent(command), kNow);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<TokenizedRequest>(*request).sampling, SamplingParams{});

  v1::EngineUpdate update;
  ToProto(EngineUpdate{.events = {PromptLogprobs{.first = 1, .tokens = {{7, -1}, {8, -2}}}}},
          &update);
  update.mutable_events(0)->mutable_prompt_logprobs()->clear_tokens();
  const auto received = FromProto(Sent(update));
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(std::get<PromptLogprobs>(received->events[0]).tokens,
            (std::vector<SampledToken>{{0, -1}, {0, -2}}));
}

// Any bytes of a peer give a value or a refusal.
TEST(EngineCodec, DamagedMessagesAreRefusedOrRead) {
  testing::Random random(9);
  std::size_t parsed = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomValues values(seed);
    v1::EngineUpdate update;
    v1::EngineCommand command;
    ToProto(EngineUpdate{.events = {values.RouterEvent(), values.RouterEvent()}}, &update);
    ToProto(EngineCommand(values.Request()), kNow, &command);
    for (std::string bytes : {update.SerializeAsString(), command.SerializeAsString()}) {
      for (int i = 0; i < 3 && !bytes.empty(); ++i) {
        bytes[random.Next() % bytes.size()] = static_cast<char>(random.Next());
      }
      if (update.ParseFromString(bytes)) parsed += FromProto(update).ok();
      if (command.ParseFromString(bytes)) parsed += FromProto(command, kNow).ok();
    }
  }
  EXPECT_GT(parsed, 100u);
}

}  // namespace
}  // namespace flotilla::codec
