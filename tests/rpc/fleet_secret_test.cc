// What a file of secrets may hold, what certificates may be, and who may listen where.
#include "rpc/fleet_secret.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "rpc/endpoint.h"
#include "rpc/pem.h"
#include "tests/support/test_certificates.h"

namespace flotilla::rpc {
namespace {

using ::flotilla::testing::Issue;
using ::flotilla::testing::MakeAuthority;
using ::flotilla::testing::PemPair;

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

TEST(PemTest, JudgesCertificatesBeforeTheyAreUsed) {
  const PemPair authority = testing::MakeAuthority("fleet");
  const PemPair member = testing::Issue(authority, "worker"),
                other = testing::Issue(authority, "other");
  const absl::Time now = absl::Now();
  EXPECT_TRUE(CheckKeyPair(member.certificate, member.key, now).ok());
  EXPECT_TRUE(CheckKeyPair(member.certificate + authority.certificate, member.key, now).ok());
  const auto message = [&](const std::string& certificate, const std::string& key, absl::Time t) {
    return std::string(CheckKeyPair(certificate, key, t).message());
  };
  EXPECT_EQ(message(member.certificate, other.key, now), "key: it is of another certificate");
  EXPECT_EQ(message(member.certificate, "", now), "key: there is none in PEM without a passphrase");
  EXPECT_EQ(message("", member.key, now), "certificate: there is none in PEM");
  EXPECT_EQ(message(member.key, member.key, now), "certificate: there is none in PEM");
  EXPECT_EQ(message(member.certificate, member.key, now + absl::Hours(2)),
            "certificate: it has expired");
  EXPECT_EQ(message(member.certificate, member.key, now - absl::Hours(2)),
            "certificate: it is not valid yet");
  ASSERT_TRUE(ExpiryOf(member.certificate).has_value());
  EXPECT_GT(*ExpiryOf(member.certificate), now);
  EXPECT_LT(*ExpiryOf(member.certificate), now + absl::Hours(2));
  EXPECT_EQ(ExpiryOf(member.key), std::nullopt);
  // Cut anywhere, it is no certificate, and nothing worse happens.
  for (std::size_t bytes = 0; bytes < member.certificate.size() - 2; bytes += 7) {
    EXPECT_FALSE(CheckKeyPair(member.certificate.substr(0, bytes), member.key, now).ok()) << bytes;
    EXPECT_FALSE(CheckAuthorities(member.certificate.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_TRUE(CheckAuthorities(authority.certificate).ok());
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
