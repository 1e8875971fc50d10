#include "simulator/variants.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::simulator {
namespace {

using ::testing::HasSubstr;

TEST(VariantsTest, AxesAreMultiplied) {
  const auto variants =
      ExpandVariants({}, {"max_chunk_tokens=64,128", "prefix_cache=true,false"}, {"fcfs"});
  ASSERT_TRUE(variants.ok()) << variants.status();
  ASSERT_EQ(variants->size(), 4u);
  EXPECT_EQ((*variants)[0].label, "max_chunk_tokens=64 prefix_cache=true");
  EXPECT_EQ((*variants)[3].core.max_chunk_tokens, 128u);
  EXPECT_FALSE((*variants)[3].core.prefix_cache);
  EXPECT_EQ((*variants)[3].policy, "fcfs");
}

TEST(VariantsTest, NothingToCompareIsOneRun) {
  const auto variants = ExpandVariants({.max_seqs = 9}, {}, {});
  ASSERT_TRUE(variants.ok());
  ASSERT_EQ(variants->size(), 1u);
  EXPECT_EQ((*variants)[0].label, "");
  EXPECT_EQ((*variants)[0].core.max_seqs, 9u);
}

TEST(VariantsTest, APolicyMayHaveFairShare) {
  const auto variants = ExpandVariants({}, {}, {"fcfs", "fcfs+fair_share"});
  ASSERT_TRUE(variants.ok()) << variants.status();
  EXPECT_FALSE((*variants)[0].core.fair_share);
  EXPECT_TRUE((*variants)[1].core.fair_share);
  EXPECT_EQ((*variants)[1].policy, "fcfs");
  EXPECT_EQ((*variants)[1].label, "policy=fcfs+fair_share");
  EXPECT_TRUE(ExpandVariants({}, {}, {"srpt+fair_share"})->at(0).core.fair_share);
}

TEST(VariantsTest, TiersAreCompared) {
  const auto variants = ExpandVariants({}, {"host_tokens=0,4096"}, {});
  ASSERT_TRUE(variants.ok()) << variants.status();
  EXPECT_EQ((*variants)[0].host_tokens, 0u);
  EXPECT_EQ((*variants)[1].host_tokens, 4096u);
  EXPECT_EQ((*variants)[1].label, "host_tokens=4096");
  EXPECT_FALSE(ExpandVariants({}, {"host_tokens=x"}, {}).ok());
  EXPECT_FALSE(ExpandVariants({}, {}, {})->at(0).host_tokens.has_value());
}

TEST(VariantsTest, EveryNamedOptionAndPolicyExists) {
  for (const std::string& name : CoreOptionNames()) {
    scheduler::CoreOptions options;
    EXPECT_TRUE(SetCoreOption(name, "1", &options).ok()) << name;
  }
  for (const absl::string_view name : scheduler::PolicyNames()) {
    EXPECT_TRUE(CheckPolicy(name).ok()) << name;
  }
}

TEST(VariantsTest, BadAxesAreRefusedByName) {
  const auto message = [](std::vector<std::string> axes, std::vector<std::string> policies) {
    return std::string(ExpandVariants({}, axes, policies).status().message());
  };
  EXPECT_THAT(message({"speed=1"}, {}), HasSubstr("no option named \"speed\""));
  EXPECT_THAT(message({"max_seqs"}, {}), HasSubstr("option=value"));
  EXPECT_THAT(message({"max_seqs=0"}, {}), HasSubstr("max_seqs is a number in 1.."));
  EXPECT_THAT(message({"prefix_cache=maybe"}, {}), HasSubstr("true or false"));
  EXPECT_THAT(message({}, {"lifo"}), HasSubstr("no policy named \"lifo\""));
  EXPECT_THAT(message({"max_seqs=1,2,3,4,5,6,7,8,9", "max_step_tokens=1,2,3,4,5,6,7,8"}, {}),
              HasSubstr("more than 64"));
}

}  // namespace
}  // namespace flotilla::simulator
