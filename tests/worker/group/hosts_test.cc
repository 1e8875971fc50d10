#include "worker/group/hosts.h"

#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

TEST(Hosts, AnAddressIsFoundByItsNetwork) {
  for (const char* network : {"127.0.0.0/8", "127.0.0.1/32", "127.44.5.6/8"}) {
    const auto address = AddressInNetwork(network);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(*address, "127.0.0.1") << network;
  }
  EXPECT_TRUE(absl::IsNotFound(AddressInNetwork("240.0.0.0/8").status()));  // nobody has one
  for (const char* wrong : {"", "127.0.0.1", "127.0.0.0/", "127.0.0.0/0", "127.0.0.0/33",
                            "127.0.0.0/8/8", "fe80::/10", "localhost/8", "127.0.0.0/x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(AddressInNetwork(wrong).status())) << wrong;
  }
}

TEST(Hosts, WhoConnectsIsHeard) {
  const auto listener = ListenTcp("127.0.0.1");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string agent = "127.0.0.1:" + std::to_string(PortOf(*listener));
  EXPECT_TRUE(ConnectTcp(agent).ok());
  EXPECT_TRUE(absl::IsUnavailable(ListenTcp("240.0.0.1").status()));
  for (const char* wrong : {"", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "localhost:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ConnectTcp(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace flotilla::worker
