#include "rpc/held_messages.h"

#include <string>

#include "gtest/gtest.h"

namespace flotilla::rpc {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::string Number(std::uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string Data(std::uint32_t stream, const std::string& payload, bool ends = false) {
  return Number(static_cast<std::uint32_t>(payload.size()), 3) + std::string(1, '\0') +
         Number(ends ? 1 : 0, 1) + Number(stream, 4) + payload;
}

std::string Message(std::uint32_t announced, std::size_t sent) {
  return std::string(1, '\0') + Number(announced, 4) + std::string(sent, 'a');
}

// In pieces of `piece`.
void Read(HeldMessages& held, const std::string& bytes, std::size_t piece = 1 << 20,
          std::int64_t now_ns = 0) {
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string part = bytes.substr(at, piece);
    held.Read(absl::MakeConstSpan(reinterpret_cast<const std::uint8_t*>(part.data()), part.size()),
              now_ns);
  }
}

TEST(HeldMessagesTest, WholeMessagesAreNotHeld) {
  const std::string large = Message(40000, 40000) + Message(100, 100);
  std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (std::uint32_t stream : {1, 3}) {
    for (std::size_t at = 0; at < large.size(); at += 16384) {
      bytes += Data(stream, large.substr(at, 16384));
    }
    bytes += Data(stream, Message(0, 0) + Message(7, 7)) + Data(stream, "", true);
  }
  for (const std::size_t piece : {1, 7, 9, 8192, 1 << 20}) {
    HeldMessages held;
    held.Begin(1);
    held.Begin(3);
    Read(held, bytes, piece);
    EXPECT_EQ(held.bytes(), 0u) << piece;
  }
}

TEST(HeldMessagesTest, UnfinishedOnesAreUntilTheirStreamEnds) {
  HeldMessages held;
  for (std::uint32_t stream : {1, 3, 5}) held.Begin(stream);
  Read(held, Data(1, Message(50000, 16000)) + Data(1, std::string(16384, 'a')) + Data(3, "\1") +
                 Data(5, Message(1, 0)) + Data(7, Message(50000, 16000)));
  const std::size_t first = 16005 + 16384;
  EXPECT_EQ(held.bytes(), first + 2 * kLeastHeldBytes) << "of 7 there is no call";
  held.End(3);
  held.End(3);
  EXPECT_EQ(held.bytes(), first + kLeastHeldBytes);
  Read(held, Data(5, "a"));
  EXPECT_EQ(held.bytes(), first) << "it is whole";
  Read(held, Data(1, "", true));
  EXPECT_EQ(held.bytes(), 0u) << "gRPC refuses it";
}

TEST(HeldMessagesTest, AStreamOfMessagesThatFramesDoNotFitHoldsTheLastOneOnly) {
  HeldMessages held;
  held.Begin(1);
  std::string messages;
  for (int i = 0; i < 100; ++i) messages += Message(20000, 20000);
  messages.pop_back();
  for (std::size_t at = 0; at < messages.size(); at += 16384) {
    Read(held, Data(1, messages.substr(at, 16384)), 1 << 20, kSecond);
  }
  EXPECT_GT(held.bytes(), 16384u);
  EXPECT_LE(held.bytes(), 20000u + 2 * 16384u);
}

TEST(HeldMessagesTest, TimeCountsFromWhereTheMessageBegan) {
  HeldMessages old, fresh;
  old.Begin(1);
  fresh.Begin(1);
  Read(old, Data(1, Message(50000, 10000)));
  Read(old, Data(1, std::string(10000, 'a')), 1 << 20, kSecond);
  Read(fresh, Data(1, Message(50000, 16000)), 1 << 20, 2 * kSecond);
  EXPECT_NEAR(old.ByteSeconds(3 * kSecond), 3 * 20005., 1);
  EXPECT_NEAR(fresh.ByteSeconds(3 * kSecond), 16005., 1);
  EXPECT_GT(fresh.ByteSeconds(2 * kSecond), 0);
}

}  // namespace
}  // namespace flotilla::rpc
