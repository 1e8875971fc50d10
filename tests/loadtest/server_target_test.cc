#include "loadtest/server_target.h"

#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

std::string Shown(const char* url) {
  const absl::StatusOr<ServerTarget> target = ParseServerTarget(url);
  if (!target.ok()) return "none";
  return std::string(target->tls ? "tls " : "") + target->host + " " + target->port + " " +
         target->path + " " + target->HostHeader();
}

TEST(ServerTargetTest, AddressesOfServers) {
  EXPECT_EQ(Shown("http://127.0.0.1:8080"), "127.0.0.1 8080  127.0.0.1:8080");
  EXPECT_EQ(Shown("127.0.0.1:8080/"), "127.0.0.1 8080  127.0.0.1:8080");
  EXPECT_EQ(Shown("https://api.example.com/v1"), "tls api.example.com 443  api.example.com");
  EXPECT_EQ(Shown("http://h/openai/v1/"), "h 80 /openai h");
  EXPECT_EQ(Shown("http://[::1]:80"), "::1 80  [::1]");
}

TEST(ServerTargetTest, WhatIsNoAddressIsRefused) {
  for (const char* bad :
       {"", "http://", "http://:80", "http://h:0", "http://h:99999", "http://h:x", "http://[::1",
        "ftp://h", "http://a b", "http://h:1\r\nX: y", "http://u@h"}) {
    EXPECT_EQ(Shown(bad), "none") << bad;
  }
}

}  // namespace
}  // namespace flotilla::loadtest
