// Tests Discovery with a resolver whose answers the test sets.
#include "router/remote/discovery.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "tests/contract/scheduler_process.h"

namespace flotilla::testing {
namespace {

using Addresses = std::vector<std::string>;

class DiscoveryTest : public ::testing::Test {
 protected:
  void Start(const Addresses& targets) {
    auto started = router::Discovery::Start({
        .targets = targets,
        .interval = absl::Milliseconds(1),
        .resolve =
            [this](const router::DnsName&) {
              absl::MutexLock lock(&mu_);
              ++looks_;
              return answer_;
            },
        .on_addresses =
            [this](const Addresses& all) {
              absl::MutexLock lock(&mu_);
              received_.push_back(all);
            },
        .on_failure =
            [this](const router::DnsName&, const absl::Status&) {
              absl::MutexLock lock(&mu_);
              ++failures_;
            },
    });
    ASSERT_TRUE(started.ok()) << started.status();
    discovery_ = *std::move(started);
  }
  // Sets the answer, and waits until two later look-ups have begun.
  void Answer(absl::StatusOr<Addresses> answer) {
    int until = 0;
    {
      absl::MutexLock lock(&mu_);
      answer_ = std::move(answer);
      until = looks_ + 2;
    }
    WaitUntil([&] {
      absl::MutexLock lock(&mu_);
      return looks_ > until;
    });
  }
  std::vector<Addresses> heard() {
    absl::MutexLock lock(&mu_);
    return received_;
  }

  absl::Mutex mu_;
  absl::StatusOr<Addresses> answer_ = absl::UnavailableError("no server");
  int looks_ = 0, failures_ = 0;
  std::vector<Addresses> received_;
  std::unique_ptr<router::Discovery> discovery_;  // last: its thread uses the rest
};

TEST_F(DiscoveryTest, FixedAddressesAreToldAtOnce) {
  Start({"b:2", "a:1"});
  EXPECT_EQ(heard(), std::vector<Addresses>({{"a:1", "b:2"}}));
  discovery_.reset();
  EXPECT_EQ(looks_, 0);
}

TEST_F(DiscoveryTest, ChangesAreToldAndFailuresChangeNothing) {
  Start({"dns:///s:7"});
  Answer(absl::UnavailableError("no server"));
  EXPECT_TRUE(heard().empty());
  Answer(Addresses{"x:7", "y:7"});
  Answer(Addresses{"y:7", "x:7"});
  Answer(absl::UnavailableError("no server"));
  Answer(Addresses{});
  Answer(Addresses{"y:7"});
  discovery_.reset();
  EXPECT_EQ(heard(), std::vector<Addresses>({{"x:7", "y:7"}, {"y:7"}}));
  EXPECT_EQ(failures_, 2) << "each once";
}

TEST(Discovery, ResolvesARealName) {
  absl::Mutex mu;
  Addresses all;
  auto discovery = router::Discovery::Start(
      {.targets = {"dns:///localhost:7002"}, .on_addresses = [&](const Addresses& addresses) {
         absl::MutexLock lock(&mu);
         all = addresses;
       }});
  ASSERT_TRUE(discovery.ok());
  WaitUntil([&] {
    absl::MutexLock lock(&mu);
    return !all.empty();
  });
  discovery->reset();
  EXPECT_TRUE(all.front() == "127.0.0.1:7002" || all.front() == "[::1]:7002") << all.front();
}

TEST(Discovery, RefusesWhatIsNoAddress) {
  EXPECT_TRUE(absl::IsInvalidArgument(router::Discovery::Start({.targets = {"x"}}).status()));
}

}  // namespace
}  // namespace flotilla::testing
