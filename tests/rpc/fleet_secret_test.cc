// What a file of secrets may hold, and who may listen where.
#include "rpc/fleet_secret.h"

#include <string>

#include <gtest/gtest.h>

#include "rpc/endpoint.h"

namespace flotilla::rpc {
namespace {

const std::string kOne(32, 'a'), kTwo(256, 'b');

TEST(FleetSecretTest, AcceptsEachLineAndSendsTheFirst) {
  const auto secret = FleetSecret::Parse("\n" + kOne + " \r\n\n\t" + kTwo + "\n");
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(secret->first(), kOne);
  EXPECT_TRUE(secret->Accepts(kOne));
  EXPECT_TRUE(secret->Accepts(kTwo));
  EXPECT_FALSE(secret->Accepts(""));
  EXPECT_FALSE(secret->Accepts(kOne + "a"));
  EXPECT_FALSE(secret->Accepts(kOne + "\n" + kTwo));
}

TEST(FleetSecretTest, RefusesWhatIsNoSecretWithoutRepeatingIt) {
  const std::string inside = "cccccccccccccccccccccccccccccccc dddddddddddddddddddddddd";
  for (const std::string& text :
       {std::string(), std::string("\n \n"), std::string(31, 'c'), std::string(257, 'c'), inside,
        kOne + "\n" + kTwo + "\n" + std::string(40, 'c'), kOne + "\n" + std::string(32, '\0'),
        std::string(40, '\xff'), std::string(1 << 20, '\n')}) {
    const auto secret = FleetSecret::Parse(text);
    ASSERT_EQ(secret.status().code(), absl::StatusCode::kInvalidArgument) << text.size();
    EXPECT_EQ(secret.status().message().find("cccc"), absl::string_view::npos);
  }
}

TEST(EndpointTest, KnowsLoopbackAddresses) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host :
       {"", "0.0.0.0", "::", "10.0.0.1", "127.example.com", "128.0.0.1", "worker"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace flotilla::rpc
