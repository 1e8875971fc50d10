#include "loadtest/core/sse_parser.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

using ::testing::ElementsAre;

TEST(SseParserTest, EventsAreTheSameHoweverTheyAreCut) {
  const std::string stream =
      ": a comment\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\n\r\nid: 7\ndata: [DONE]\n\n";
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    SseParser parser;
    std::vector<std::string> events;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      EXPECT_TRUE(parser.Feed(absl::string_view(stream).substr(at, piece),
                              [&](absl::string_view data) { events.emplace_back(data); }));
    }
    EXPECT_THAT(events, ElementsAre("{\"a\":1}", "two", "[DONE]")) << piece;
  }
}

TEST(SseParserTest, WhatIsNoStreamIsRefused) {
  const auto nothing = [](absl::string_view) {};
  EXPECT_FALSE(SseParser().Feed("garbage without a colon\n", nothing));
  SseParser endless;
  bool fine = true;
  for (int i = 0; i < 20 && fine; ++i) fine = endless.Feed(std::string(100'000, 'x'), nothing);
  EXPECT_FALSE(fine);
  EXPECT_FALSE(SseParser().Feed("data:" + std::string(2 << 20, 'x') + "\n", nothing));
}

}  // namespace
}  // namespace flotilla::loadtest
