#include "rpc/inbound_frames.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace flotilla::rpc {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6,
                       kContinuation = 9;
constexpr std::uint8_t kEnd = 4;

std::string Frame(std::uint8_t type, std::uint8_t flags, std::size_t length) {
  std::string frame = {static_cast<char>(length >> 16),
                       static_cast<char>(length >> 8),
                       static_cast<char>(length),
                       static_cast<char>(type),
                       static_cast<char>(flags),
                       0,
                       0,
                       0,
                       1};
  return frame + std::string(length, '\xff');  // no frame header, if it were taken for one
}

// Reads `bytes` in pieces of `piece`; the first error.
absl::Status ReadIn(std::size_t piece, const std::string& bytes) {
  InboundFrames frames;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const std::string part = bytes.substr(at, piece);
    const absl::Status status = frames.Read(
        absl::MakeConstSpan(reinterpret_cast<const std::uint8_t*>(part.data()), part.size()), 0);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(InboundFramesTest, CallsWithinTheBoundPassHoweverTheirBytesCome) {
  std::string bytes = std::string(kPreface) + Frame(kSettings, 0, 36);
  for (int call = 0; call < 100; ++call) {
    bytes += Frame(kHeaders, 0, 16000) + Frame(kContinuation, 0, 8000) +
             Frame(kContinuation, kEnd, 8000) + Frame(kData, 1, 16384) + Frame(kHeaders, kEnd, 9);
  }
  for (const std::size_t piece : {1, 7, 9, 8192, 1 << 20}) {
    EXPECT_TRUE(ReadIn(piece, bytes).ok()) << piece;
    EXPECT_TRUE(ReadIn(piece, bytes.substr(24)).ok()) << "a server's bytes, " << piece;
  }
}

TEST(InboundFramesTest, ABlockIsBoundedInBytesAndInFrames) {
  const std::string begin = std::string(kPreface) + Frame(kHeaders, 0, 16384);
  const std::string many = std::string(kPreface) + Frame(kHeaders, 0, 0) +
                           Frame(kContinuation, 0, 0) + Frame(kContinuation, 0, 0) +
                           Frame(kContinuation, 0, 0) + Frame(kContinuation, 0, 0);
  for (const std::size_t piece : {1, 7, 9, 8192, 1 << 20}) {
    EXPECT_TRUE(ReadIn(piece, begin + Frame(kContinuation, 0, 16000)).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(ReadIn(piece, begin + Frame(kContinuation, 0, 16384))));
    EXPECT_TRUE(ReadIn(piece, many).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(ReadIn(piece, many + Frame(kContinuation, kEnd, 0))));
  }
}

TEST(InboundFramesTest, AFrameThatClaimsTooMuchIsRefusedByItsHeader) {
  std::string header = Frame(kHeaders, kEnd, 0);
  header[0] = '\x7f';
  EXPECT_TRUE(absl::IsResourceExhausted(ReadIn(1 << 20, std::string(kPreface) + header)));
}

TEST(InboundFramesTest, PingsAndResetsAreAllowedAtARate) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  // Whether so many pass at once, and so many a second later.
  const auto pass = [](const std::string& frame, int first, int second) {
    const auto bytes =
        absl::MakeConstSpan(reinterpret_cast<const std::uint8_t*>(frame.data()), frame.size());
    InboundFrames frames;
    for (int i = 0; i < first + second; ++i) {
      const std::int64_t now_ns = i < first ? 500 * kSecond : 501 * kSecond;
      if (!frames.Read(bytes, now_ns).ok()) return false;
    }
    return true;
  };
  const std::string ping = Frame(kPing, 0, 8), reset = Frame(kReset, 0, 4);
  EXPECT_TRUE(pass(ping, 3000, 1000));
  EXPECT_FALSE(pass(ping, 3001, 0));
  EXPECT_FALSE(pass(ping, 3000, 1001));
  EXPECT_TRUE(pass(reset, 1024, 200));
  EXPECT_FALSE(pass(reset, 1025, 0));
  EXPECT_FALSE(pass(reset, 1024, 201));
  EXPECT_TRUE(pass(Frame(kSettings, 0, 36), 100'000, 0));
}

TEST(InboundFramesTest, AnswersToPingsAreNotCounted) {
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes += Frame(kPing, 1, 8);
  EXPECT_TRUE(ReadIn(1 << 20, bytes).ok());
}

}  // namespace
}  // namespace flotilla::rpc
