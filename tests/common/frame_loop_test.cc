// Sockets of frames: order, more than a socket holds, and how they end.
#include "common/rt/frame_loop.h"

#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace flotilla {
namespace {

std::pair<UniqueFd, UniqueFd> Pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// What one end heard, until its end.
class Recorder final : public FrameSocket::Handler {
 public:
  absl::Status AwaitEnd() {
    closed_.WaitForNotification();
    return why_;
  }
  void AwaitHeard(std::size_t count) {
    absl::MutexLock lock(&mu_);
    const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return heard_.size() >= count; };
    mu_.Await(absl::Condition(&done));
  }
  std::vector<std::string> heard() {
    absl::MutexLock lock(&mu_);
    return heard_;
  }

 private:
  void OnFrame(const std::string& message) override {
    absl::MutexLock lock(&mu_);
    EXPECT_FALSE(closed_.HasBeenNotified());
    heard_.push_back(message);
  }
  void OnClosed(const absl::Status& why) override {
    why_ = why;
    closed_.Notify();
  }

  absl::Mutex mu_;
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
  absl::Status why_;
  absl::Notification closed_;
};

class FrameLoopTest : public testing::Test {
 protected:
  std::shared_ptr<FrameSocket> Add(UniqueFd fd, Recorder* recorder) {
    auto socket = loop_.Add(std::move(fd), recorder);
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *std::move(socket);
  }

  FrameLoop loop_;
  Recorder one_, other_;
};

TEST_F(FrameLoopTest, CarriesFramesInOrderBothWays) {
  auto [a, b] = Pair();
  const auto left = Add(std::move(a), &one_), right = Add(std::move(b), &other_);
  std::vector<std::string> said;
  for (int i = 0; i < 5000; ++i) said.push_back(absl::StrCat(i));
  std::thread thread([&] {
    for (const std::string& text : said) right->Send(text);
  });
  for (const std::string& text : said) left->Send(text);
  thread.join();
  one_.AwaitHeard(said.size());
  other_.AwaitHeard(said.size());
  EXPECT_EQ(one_.heard(), said);
  EXPECT_EQ(other_.heard(), said);
  left->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(one_.AwaitEnd()));
  EXPECT_TRUE(absl::IsUnavailable(other_.AwaitEnd()));
  left->Send("nobody hears this");
}

TEST_F(FrameLoopTest, WhatASocketDoesNotTakeWaitsUntilTheOtherSideReads) {
  auto [a, b] = Pair();
  const auto left = Add(std::move(a), &one_);
  std::vector<std::string> said;
  for (int i = 0; i < 200; ++i) said.emplace_back(10'000, static_cast<char>('a' + i % 26));
  for (const std::string& text : said) left->Send(text);
  EXPECT_GT(left->waiting(), 100u);
  const auto right = Add(std::move(b), &other_);
  other_.AwaitHeard(said.size());
  EXPECT_EQ(other_.heard(), said);
  EXPECT_EQ(left->waiting(), 0u);
  left->Send("after");
  other_.AwaitHeard(said.size() + 1);
  left->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(one_.AwaitEnd()));
  EXPECT_TRUE(absl::IsUnavailable(other_.AwaitEnd()));
}

// As much as the socket has taken is heard by the other side after the end.
TEST_F(FrameLoopTest, WhatWasTakenBeforeTheEndIsHeard) {
  auto [a, b] = Pair();
  const auto left = Add(std::move(a), &one_);
  for (int i = 0; i < 20; ++i) left->Send(absl::StrCat(i));
  ASSERT_EQ(left->waiting(), 0u);
  left->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(one_.AwaitEnd()));
  const auto right = Add(std::move(b), &other_);
  EXPECT_TRUE(absl::IsUnavailable(other_.AwaitEnd()));
  EXPECT_EQ(other_.heard().size(), 20u);
}

TEST_F(FrameLoopTest, WhatHasComeBeforeOnesOwnEndIsHeard) {
  auto [a, b] = Pair();
  const std::string frames = Frame("1") + Frame("2") + Frame("half").substr(0, 6);
  ASSERT_EQ(send(b.get(), frames.data(), frames.size(), 0), static_cast<ssize_t>(frames.size()));
  const auto left = Add(std::move(a), &one_);
  left->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(one_.AwaitEnd()));
  EXPECT_EQ(one_.heard(), (std::vector<std::string>{"1", "2"}));
}

TEST_F(FrameLoopTest, ASizeAboveTheLimitIsTheEnd) {
  auto [a, b] = Pair();
  const auto left = Add(std::move(a), &one_);
  ASSERT_EQ(send(b.get(), "\xff\xff\xff\xff", 4, 0), 4);
  EXPECT_TRUE(absl::IsInvalidArgument(one_.AwaitEnd()));
  left->Send("nobody hears this");
  EXPECT_EQ(left->waiting(), 0u);
}

// Ends come from both sides, from any thread, while messages do.
TEST_F(FrameLoopTest, EndsWhileMuchIsUnderWay) {
  for (int life = 0; life < 50; ++life) {
    Recorder one, other;
    auto [a, b] = Pair();
    const auto left = Add(std::move(a), &one), right = Add(std::move(b), &other);
    std::thread thread([&right = right] {
      for (int i = 0; i < 50; ++i) right->Send(std::string(10'000, 'x'));
      right->Shutdown();
    });
    for (int i = 0; i < life; ++i) left->Send(std::string(10'000, 'y'));
    left->Shutdown();
    EXPECT_TRUE(absl::IsUnavailable(one.AwaitEnd()));
    EXPECT_TRUE(absl::IsUnavailable(other.AwaitEnd()));
    thread.join();
  }
}

}  // namespace
}  // namespace flotilla
