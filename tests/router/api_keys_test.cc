// Files of keys, also hostile ones, and the gate that reads them.
#include "router/api_keys.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/errors.h"
#include "router/key_gate.h"
#include "tests/support/log_lines.h"
#include "tests/support/manual_clock.h"
#include "tests/support/secret_files.h"

namespace flotilla::router {
namespace {

const std::string kKey = "sk-0123456789abcdef", kOther = "sk-fedcba9876543210";

// Empty: nobody's.
std::string NameOf(const ApiKeys& keys, const std::string& key) {
  return keys.Find(key).value_or(KeyOwner()).name;
}

TEST(ApiKeysTest, FindsTheNameOfAKeyAndOfNothingElse) {
  const auto keys = ApiKeys::Parse("# people\n\n alice\t" + kKey + " \r\nbob " + kOther +
                                   "\nalice sk-another-key-of-alices\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 3u);
  EXPECT_EQ(NameOf(*keys, kKey), "alice");
  EXPECT_EQ(NameOf(*keys, kOther), "bob");
  EXPECT_EQ(NameOf(*keys, "sk-another-key-of-alices"), "alice");
  for (const std::string& wrong :
       {std::string(), kKey + "0", kKey.substr(1), std::string("alice"), "alice " + kKey,
        std::string("sk-0123456789ABCDEF"), kKey + std::string(1, '\0')}) {
    EXPECT_EQ(NameOf(*keys, wrong), "") << wrong;
  }
}

TEST(ApiKeysTest, AFileNeedNotTellTheKey) {
  // printf sk-0123456789abcdef | sha256sum
  const std::string hex = "221df437bc4f8c4d9718bd7a9ec4c1021c72fd69dfb2a5f568ecf4607c824bee";
  const auto keys = ApiKeys::Parse("alice sha256:" + hex);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(NameOf(*keys, kKey), "alice");
  EXPECT_EQ(NameOf(*keys, hex), "");
  EXPECT_EQ(NameOf(*keys, "sha256:" + hex), "");
}

TEST(ApiKeysTest, AKeyMayHaveAHighestPriority) {
  const auto keys = ApiKeys::Parse("alice " + kKey + " max-priority=0\nbob " + kOther +
                                   "\t max-priority=-100 \ncarol sk-another-key-of-carols\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->Find(kKey)->max_priority, 0);
  EXPECT_EQ(keys->Find(kOther)->max_priority, -100);
  EXPECT_EQ(keys->Find("sk-another-key-of-carols")->max_priority, 100);  // whatever there is
}

TEST(ApiKeysTest, AKeyHasAClassAndANameHasLimits) {
  const auto keys = ApiKeys::Parse("root " + kKey + " admin max-priority=5\nalice " + kOther +
                                   " user tokens-per-minute=1000 max-concurrent=2\n"
                                   "alice sk-another-key-of-alices max-concurrent=2\n"
                                   "bob sk-0123456789abcdef-of-bob\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Find(kKey)->is_admin);
  EXPECT_EQ(keys->Find(kKey)->max_priority, 5);
  EXPECT_FALSE(keys->Find(kOther)->is_admin);
  EXPECT_FALSE(keys->Find("sk-0123456789abcdef-of-bob")->is_admin);
  EXPECT_EQ(keys->LimitsOf("alice").tokens_per_minute, 1000);
  EXPECT_EQ(keys->LimitsOf("alice").max_concurrent, 2);
  EXPECT_EQ(keys->LimitsOf("bob").tokens_per_minute, 0);
  EXPECT_EQ(keys->LimitsOf("nobody").max_concurrent, 0);
  EXPECT_EQ(ApiKeys::Parse("bob " + kKey + " max-concurrent=2\nbob " + kOther + " max-concurrent=3")
                .status()
                .message(),
            "line 2: a line before gives this name another limit");
}

TEST(ApiKeysTest, RefusesByLineAndNeverRepeatsAKey) {
  const std::string good = "alice " + kKey + "\n";
  const std::vector<std::string> files = {
      "",
      "\n# nothing\n",
      kKey,                                      // no name
      good + "bob\n",                            // no key
      good + "bob " + kOther + " x\n",           // no option
      good + "bob " + kOther + " " + kKey,       // the same
      good + "bob " + kOther + " max-priority",  // no value
      good + "bob " + kOther + " max-priority=",
      good + "bob " + kOther + " max-priority=1.5",
      good + "bob " + kOther + " max-priority=101",
      good + "bob " + kOther + " max-priority=-101",
      good + "bob " + kOther + " max-priority=99999999999999999999",
      good + "bob " + kOther + " max-priority=1 max-priority=1",
      good + "bob " + kOther + " Max-Priority=1",
      good + "bob " + kOther + " Admin",
      good + "bob " + kOther + " user admin",
      good + "bob " + kOther + " max-priority=1 admin",
      good + "bob " + kOther + " tokens-per-minute=0",
      good + "bob " + kOther + " tokens-per-minute=100000001",
      good + "bob " + kOther + " max-concurrent=-1",
      good + "bob max-priority=1 " + kOther,
      good + "bob " + kKey + "\n",                    // twice
      good + "b/b " + kOther + "\n",                  // a name that is none
      good + std::string(65, 'n') + " " + kOther,     // too long a name
      good + "bob secret-of-15-ch",                   // too short
      good + "bob " + std::string(257, 'k'),          // too long a key
      good + "bob sk-0123456789\xc3\xa4" + "abcdef",  // no ASCII
      good + "bob sk-0123456789" + std::string(1, '\0') + "abcdef",
      good + "bob sha256:" + std::string(63, 'a'),
      good + "bob sha256:" + std::string(64, 'x'),
      std::string(1 << 20, 'x'),
      std::string(1 << 20, '\n'),
      std::string(1 << 16, '\0'),
  };
  for (const std::string& file : files) {
    const auto keys = ApiKeys::Parse(file);
    ASSERT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument) << file.substr(0, 100);
    const std::string message(keys.status().message());
    EXPECT_EQ(message.find("sk-"), std::string::npos) << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    EXPECT_EQ(message.starts_with("line 2: "), file.starts_with(good)) << message;
  }
}

TEST(ApiKeysTest, KeysAreBounded) {
  std::string file;
  for (std::size_t i = 0; i < ApiKeys::kMaxKeys; ++i) {
    absl::StrAppend(&file, "n", i, " key-number-00000000000-", i, "\n");
  }
  EXPECT_TRUE(ApiKeys::Parse(file).ok());
  EXPECT_FALSE(ApiKeys::Parse(file + "one " + kKey).ok());
  EXPECT_TRUE(ApiKeys::Parse("n " + std::string(16, 'k')).ok());
  EXPECT_TRUE(ApiKeys::Parse("n " + std::string(256, 'k')).ok());
}

TEST(ApiKeysTest, EveryCutOfAGoodFileIsGoodOrRefused) {
  const std::string file =
      "alice " + kKey + " max-priority=-10\n# x\nbob sha256:" + std::string(64, 'a') + "\n";
  for (std::size_t bytes = 0; bytes <= file.size(); ++bytes) {
    const auto keys = ApiKeys::Parse(file.substr(0, bytes));
    EXPECT_EQ(keys.ok(), keys.status().message().empty());
    EXPECT_TRUE(!keys.ok() || keys->size() >= 1) << bytes;
  }
}

TEST(KeyGateTest, AdmitsByTheFileAsItIsNow) {
  testing::SecretFiles files;
  testing::LogLines log;
  testing::ManualClock clock;
  Metrics registry;
  RouterMetrics metrics(registry);
  auto gate = KeyGate::Open(
      {.path = files.Write("keys", "alice " + kKey), .clock = &clock, .log = &log.logger()},
      &metrics);
  ASSERT_TRUE(gate.ok()) << gate.status();
  EXPECT_EQ((*gate)->Admit("Bearer " + kKey).value().name, "alice");
  for (const std::string& wrong :
       {std::string(), kKey, "Basic " + kKey, "Bearer " + kOther, std::string("Bearer ")}) {
    const auto refused = (*gate)->Admit(wrong);
    EXPECT_TRUE(absl::IsUnauthenticated(refused.status())) << wrong;
    EXPECT_EQ(ErrorCode(refused.status()), kInvalidApiKey);
    EXPECT_EQ(refused.status().ToString().find("sk-"), std::string::npos);
  }
  const Metrics::Labels unauthenticated = {{"reason", "unauthenticated"}};
  EXPECT_EQ(registry.AddCounter("flotilla_router_rejected_total", "", unauthenticated).Value(), 5);

  files.Write("keys", "bob " + kOther);
  clock.AdvanceNs(1'000'000'000);
  EXPECT_EQ((*gate)->Admit("Bearer " + kOther).value().name, "bob");
  EXPECT_FALSE((*gate)->Admit("Bearer " + kKey).ok());
  files.Write("keys", "bob");
  clock.AdvanceNs(1'000'000'000);
  EXPECT_EQ((*gate)->Admit("Bearer " + kOther).value().name, "bob");
  EXPECT_EQ(log.Count("expected NAME KEY"), 1);
  for (const std::string& line : log.lines()) EXPECT_EQ(line.find("sk-"), std::string::npos);
}

}  // namespace
}  // namespace flotilla::router
