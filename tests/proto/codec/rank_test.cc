// What travels between an agent and its ranks comes out unchanged; broken bytes are
// refused or understood.
#include "proto/codec/rank.h"

#include <string>
#include <variant>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "tests/proto/codec/random_values.h"

namespace flotilla::codec {
namespace {

constexpr int kRankRounds = 2000;

RankCommand RandomCommand(RandomValues& random) {
  if (random.Below(4) == 0) return BeginEpoch{Epoch(random.Below(1'000'000))};
  return random.Plan();
}

RankEvent RandomEvent(RandomValues& random) {
  const auto number = [&] { return static_cast<std::uint32_t>(random.Below(1u << 31)); };
  switch (random.Below(5)) {
    case 0:
      return RankHello{.rank = number(),
                       .size = number(),
                       .token = std::string(random.Below(20), 't'),
                       .pid = number()};
    case 1:
      return RankLoaded{.weight_bytes = std::int64_t{number()} << 20,
                        .buffer_bytes = number(),
                        .device = std::string(random.Below(20), 'd'),
                        .no_gpu = std::string(random.Below(20), 'n'),
                        .exchange = std::string(random.Below(20), 'e'),
                        .no_nccl = std::string(random.Below(20), 'c'),
                        .kv_memory = std::string(random.Below(20), 'm')};
    case 2:
      return RankRefused{absl::Status(static_cast<absl::StatusCode>(1 + random.Below(16)),
                                      std::string(random.Below(20), 'x'))};
    case 3:
      return RankHeartbeat{.phase = number(),
                           .epoch = random.Below(1'000'000),
                           .started_step = random.Below(1'000'000),
                           .done_step = random.Below(1'000'000),
                           .cpu_ns = std::int64_t{number()} << 20,
                           .resident_bytes = std::int64_t{number()} << 10,
                           .load_phase = number(),
                           .loaded_bytes = random.Below(1'000'000),
                           .load_bytes = random.Below(1'000'000),
                           .load_moves = random.Below(1'000'000)};
    default:
      return random.Event();
  }
}

TEST(RankCodec, MessagesComeThroughUnchanged) {
  RandomValues random(7);
  std::vector<int> commands(std::variant_size_v<RankCommand>, 0);
  std::vector<int> events(std::variant_size_v<RankEvent>, 0);
  for (int i = 0; i < kRankRounds; ++i) {
    const RankCommand command = RandomCommand(random);
    const auto command_back = DecodeRankCommand(Encode(command));
    ASSERT_TRUE(command_back.ok()) << command_back.status() << " round " << i;
    ASSERT_TRUE(*command_back == command) << "round " << i;
    ++commands[command.index()];
    const RankEvent event = RandomEvent(random);
    const auto event_back = DecodeRankEvent(Encode(event));
    ASSERT_TRUE(event_back.ok()) << event_back.status() << " round " << i;
    ASSERT_TRUE(*event_back == event) << "round " << i;
    ++events[event.index()];
  }
  for (const int count : commands) EXPECT_GT(count, kRankRounds / 10);
  for (const int count : events) EXPECT_GT(count, kRankRounds / 10);
}

TEST(RankCodec, BrokenBytesAreRefusedOrUnderstood) {
  const google::protobuf::LogSilencer quiet;
  RandomValues random(8);
  int refused = 0;
  for (int i = 0; i < 10 * kRankRounds; ++i) {
    std::string bytes =
        random.Below(2) == 0 ? Encode(RandomCommand(random)) : Encode(RandomEvent(random));
    for (std::size_t edits = 1 + random.Below(3); edits > 0 && !bytes.empty(); --edits) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    }
    const auto command = DecodeRankCommand(bytes);
    const auto event = DecodeRankEvent(bytes);
    for (const absl::Status& status : {command.status(), event.status()}) {
      if (status.ok()) continue;
      ++refused;
      ASSERT_TRUE(absl::IsInvalidArgument(status)) << status;
    }
  }
  EXPECT_GT(refused, kRankRounds);
}

TEST(RankCodec, WhatSaysNothingIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeRankCommand("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeRankEvent("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      DecodeRankEvent(Encode(RankEvent(RankRefused{absl::OkStatus()}))).status()));
}

}  // namespace
}  // namespace flotilla::codec
