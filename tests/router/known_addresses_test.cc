#include "router/core/known_addresses.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

using Addresses = std::vector<std::string>;

TEST(KnownAddresses, AreFixedOnesAndThoseOfNames) {
  auto known = KnownAddresses::Parse({"b:1", "dns:///s.ns.svc:7", "a:1", "b:1", "dns:///[::1]:8"});
  ASSERT_TRUE(known.ok()) << known.status();
  ASSERT_EQ(known->names().size(), 2u);
  EXPECT_EQ(known->names()[0], (DnsName{"s.ns.svc", "7"}));
  EXPECT_EQ(known->names()[1], (DnsName{"::1", "8"}));
  EXPECT_EQ(known->All(), (Addresses{"a:1", "b:1"}));
  known->OnResolved(0, {"c:7", "a:1", "c:7"});
  EXPECT_EQ(known->All(), (Addresses{"a:1", "b:1", "c:7"}));
  known->OnResolved(1, {"d:8"});
  known->OnResolved(0, {"e:7"});
  EXPECT_EQ(known->All(), (Addresses{"a:1", "b:1", "d:8", "e:7"}));
}

TEST(KnownAddresses, NoAnswerKeepsWhatWasKnown) {
  auto known = KnownAddresses::Parse({"dns:///s:7"});
  known->OnResolved(0, {"c:7"});
  known->OnResolved(0, {});
  EXPECT_EQ(known->All(), Addresses{"c:7"});
}

TEST(KnownAddresses, AreBounded) {
  auto known = KnownAddresses::Parse({"dns:///s:7"});
  known->OnResolved(0, Addresses(3, "x:7"));
  EXPECT_EQ(known->All().size(), 1u);
  Addresses many;
  for (int i = 0; i < 1000; ++i) many.push_back("h" + std::to_string(i) + ":7");
  known->OnResolved(0, many);
  EXPECT_EQ(known->All().size(), KnownAddresses::kMaxPerName);
}

TEST(KnownAddresses, WhatIsNoAddressIsRefusedByName) {
  for (const char* bad :
       {"", "a", ":1", "a:", "a:0", "a:65536", "a:http", "dns:///", "dns:///a", "dns:///:7"}) {
    const auto known = KnownAddresses::Parse({"a:1", bad});
    ASSERT_TRUE(absl::IsInvalidArgument(known.status())) << bad;
    EXPECT_NE(known.status().message().find("'" + std::string(bad) + "'"), std::string::npos);
  }
  EXPECT_FALSE(KnownAddresses::Parse({}).ok());
}

}  // namespace
}  // namespace flotilla::router
