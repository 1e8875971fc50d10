#include "simulator/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::simulator {
namespace {

using ::testing::HasSubstr;
using Arrivals = SyntheticOptions::Arrivals;

SyntheticOptions Preset(const char* name, std::uint32_t requests) {
  SyntheticOptions options = FindPreset(name).value();
  options.requests = requests;
  return options;
}

double MeanPrompt(const Workload& w) {
  double sum = 0;
  for (const SimulatedRequest& r : w.requests) sum += r.prompt_tokens;
  return sum / static_cast<double>(w.requests.size());
}
double MeanOutput(const Workload& w) {
  double sum = 0;
  for (const SimulatedRequest& r : w.requests) sum += r.output_tokens;
  return sum / static_cast<double>(w.requests.size());
}

TEST(WorkloadTest, PromptsOfATraceBeginAlikeWhereTheirBlocksAreEqual) {
  RequestTrace trace;
  trace.tenants = {""};
  trace.requests = {{.prompt_tokens = 1100, .blocks = {7, 8}},
                    {.prompt_tokens = 1100, .blocks = {7, 9}}};
  const Workload workload = WorkloadOf(trace);
  const std::vector<TokenId> a = MakeRequest(workload, 0, 0, true, 1).prompt;
  const std::vector<TokenId> b = MakeRequest(workload, 1, 0, true, 1).prompt;
  ASSERT_EQ(a.size(), 1100u);
  EXPECT_EQ(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin(), kTraceBlockTokens);
}

TEST(WorkloadTest, TheSeedDecidesAll) {
  SyntheticOptions options = Preset("long", 500);
  options.tenants = 3;
  options.prefix_groups = 5;
  options.prefix_tokens = 32;
  const Workload a = MakeWorkload(options).value(), b = MakeWorkload(options).value();
  EXPECT_EQ(a.requests, b.requests);
  EXPECT_EQ(MakeRequest(a, 7, 0, false, 100), MakeRequest(b, 7, 0, false, 100));
  options.seed = 2;
  EXPECT_NE(MakeWorkload(options).value().requests, a.requests);
}

TEST(WorkloadTest, PrioritiesAreDealtEvenlyAndChangeNothingElse) {
  SyntheticOptions options = Preset("long", 9'000);
  Workload plain = MakeWorkload(options).value();
  options.priorities = 3;
  Workload dealt = MakeWorkload(options).value();
  std::vector<int> count(3);
  for (SimulatedRequest& request : dealt.requests) ++count.at(std::exchange(request.priority, 0));
  for (const int one : count) EXPECT_NEAR(one, 3'000, 200);
  EXPECT_EQ(dealt.requests, plain.requests);
  options.priorities = 0;
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("priorities must be 1..100"));
}

TEST(WorkloadTest, PresetsHaveTheirMeans) {
  const Workload s = MakeWorkload(Preset("short", 50'000)).value();
  EXPECT_NEAR(MeanPrompt(s), 19, 19 * 0.02);
  EXPECT_NEAR(MeanOutput(s), 58, 58 * 0.02);
  const Workload l = MakeWorkload(Preset("long", 50'000)).value();
  EXPECT_NEAR(MeanPrompt(l), 161, 161 * 0.02);
  EXPECT_NEAR(MeanOutput(l), 338, 338 * 0.02);
  for (const SimulatedRequest& r : l.requests) {
    EXPECT_GE(r.prompt_tokens, 1u);
    EXPECT_LE(r.prompt_tokens, 1024u);
    EXPECT_LE(r.output_tokens, 1024u);
  }
  EXPECT_THAT(FindPreset("medium").status().message(), HasSubstr("short, long"));
}

struct Gaps {
  double mean = 0, variation = 0;  // standard deviation over mean
};
Gaps GapsOf(const Workload& w) {
  double sum = 0, squares = 0;
  const double count = static_cast<double>(w.requests.size() - 1);
  for (std::size_t i = 1; i < w.requests.size(); ++i) {
    const double gap =
        1e-9 * static_cast<double>(w.requests[i].arrival_ns - w.requests[i - 1].arrival_ns);
    EXPECT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean) / mean};
}

TEST(WorkloadTest, ArrivalsHaveTheirRateAndBurstiness) {
  SyntheticOptions options = Preset("short", 40'000);
  options.rate = 25;
  Gaps gaps = GapsOf(MakeWorkload(options).value());
  EXPECT_NEAR(gaps.mean, 1.0 / 25, 0.02 / 25);
  EXPECT_NEAR(gaps.variation, 1, 0.03);
  options.arrivals = Arrivals::kGamma;
  for (const double shape : {0.25, 4.0}) {
    options.gamma_shape = shape;
    gaps = GapsOf(MakeWorkload(options).value());
    EXPECT_NEAR(gaps.mean, 1.0 / 25, 0.05 / 25) << shape;
    EXPECT_NEAR(gaps.variation, 1 / std::sqrt(shape), 0.06 / std::sqrt(shape)) << shape;
  }
}

TEST(WorkloadTest, AnotherRateLeavesTheLengths) {
  SyntheticOptions options = Preset("long", 100);
  const Workload slow = MakeWorkload(options).value();
  options.rate = 100;
  const Workload fast = MakeWorkload(options).value();
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(slow.requests[i].prompt_tokens, fast.requests[i].prompt_tokens);
    EXPECT_EQ(slow.requests[i].output_tokens, fast.requests[i].output_tokens);
  }
  EXPECT_GT(slow.requests[99].arrival_ns, 50 * fast.requests[99].arrival_ns);
}

TEST(WorkloadTest, GroupsShareTheirPrefixAndNothingElse) {
  SyntheticOptions options = Preset("short", 60);
  options.prefix_groups = 2;
  options.prefix_tokens = 40;
  const Workload w = MakeWorkload(options).value();
  std::vector<TokenizedRequest> requests;
  for (std::uint32_t i = 0; i < 60; ++i) requests.push_back(MakeRequest(w, i, 0, false, 9));
  int same = 0;
  for (std::uint32_t i = 1; i < 60; ++i) {
    ASSERT_GT(requests[i].prompt.size(), 40u);
    const bool group = w.requests[i].prefix_group == w.requests[0].prefix_group;
    same += group;
    EXPECT_EQ(std::equal(requests[0].prompt.begin(), requests[0].prompt.begin() + 40,
                         requests[i].prompt.begin()),
              group);
    EXPECT_NE(requests[0].prompt[40], requests[i].prompt[40]);
  }
  EXPECT_GT(same, 10);
  EXPECT_LT(same, 50);
}

SyntheticOptions Chats(std::uint32_t users, std::uint32_t turns) {
  SyntheticOptions options = Preset("short", 10 * users);
  options.arrivals = Arrivals::kClosed;
  options.concurrency = users;
  options.turns = turns;
  return options;
}

TEST(WorkloadTest, APromptOfAChatBeginsWithAllThatWasSaid) {
  SyntheticOptions options = Chats(3, 4);
  options.tenants = 5;
  const Workload w = MakeWorkload(options).value();
  for (std::uint32_t user = 0; user < 3; ++user) {
    std::vector<TokenId> said;
    for (std::uint32_t turn = 0; turn < 10; ++turn) {
      const std::uint32_t index = user + 3 * turn;
      // The first chat of user u has 4 - u turns. Later ones have 4.
      const bool first = (turn + user) % 4 == 0 || turn == 0;
      if (first) said.clear();
      ASSERT_EQ(w.requests[index].history_tokens, said.size()) << index;
      const TokenizedRequest request = MakeRequest(w, index, 0, false, 1024);
      ASSERT_EQ(request.prompt.size(), w.requests[index].prompt_tokens);
      EXPECT_TRUE(std::equal(said.begin(), said.end(), request.prompt.begin())) << index;
      EXPECT_GT(request.prompt.size(), said.size());
      if (turn > 0) {
        EXPECT_EQ(w.requests[index].tenant, w.requests[index - 3].tenant);
      }
      said = request.prompt;
      for (std::uint32_t i = 0; i < w.requests[index].output_tokens; ++i) {
        said.push_back(SimulatedToken(w, index, SequenceIndex(0), i));
      }
    }
  }
}

TEST(WorkloadTest, AChatEndsBeforeItIsTooLong) {
  SyntheticOptions options = Chats(4, 1000);
  options.max_chat_tokens = 1200;
  const Workload w = MakeWorkload(options).value();
  int continued = 0;
  for (const SimulatedRequest& request : w.requests) {
    EXPECT_LE(request.prompt_tokens + request.output_tokens, 1200u);
    continued += request.history_tokens > 0;
  }
  EXPECT_GT(continued, 25);
}

TEST(WorkloadTest, UsersThinkForTheGivenTimeInTheMean) {
  SyntheticOptions options = Chats(10, 1);
  options.requests = 5'000;
  options.think_ns = 2'000'000'000;
  const Workload w = MakeWorkload(options).value();
  double sum = 0;
  for (const SimulatedRequest& request : w.requests) sum += 1e-9 * request.think_ns;
  EXPECT_NEAR(sum / 5'000, 2, 0.1);
  options.arrivals = Arrivals::kPoisson;
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("closed"));
}

TEST(WorkloadTest, DeadlinesAreSpreadAndLeaveTheRestAsItIs) {
  SyntheticOptions options = Preset("short", 2000);
  const Workload without = MakeWorkload(options).value();
  options.deadline_ns = 1'000'000'000;
  options.last_deadline_ns = 5'000'000'000;
  const Workload w = MakeWorkload(options).value();
  double sum = 0;
  std::int64_t least = options.last_deadline_ns, most = 0;
  for (std::size_t i = 0; i < w.requests.size(); ++i) {
    SimulatedRequest request = w.requests[i];
    least = std::min(least, request.deadline_ns);
    most = std::max(most, request.deadline_ns);
    sum += static_cast<double>(request.deadline_ns);
    request.deadline_ns = 0;
    EXPECT_EQ(request, without.requests[i]);
  }
  EXPECT_GE(least, 1'000'000'000);
  EXPECT_LE(most, 5'000'000'000);
  EXPECT_NEAR(sum / 2000, 3e9, 1e8);
  options.last_deadline_ns = 999'999'999;
  EXPECT_FALSE(MakeWorkload(options).ok());
  options.deadline_ns = 0;
  EXPECT_FALSE(MakeWorkload(options).ok());
}

TEST(WorkloadTest, TheFirstTenantSendsMost) {
  SyntheticOptions options = Preset("short", 11'000);
  options.tenants = 3;
  std::vector<double> count(3);
  const Workload w = MakeWorkload(options).value();
  for (const SimulatedRequest& r : w.requests) ++count[r.tenant];
  EXPECT_NEAR(count[0], 6000, 200);
  EXPECT_NEAR(count[1], 3000, 200);
  EXPECT_NEAR(count[2], 2000, 200);
}

TEST(WorkloadTest, LengthsAreUnknownToTheSchedulerUnlessAskedFor) {
  Workload w;
  w.requests.push_back({.prompt_tokens = 3, .output_tokens = 5, .deadline_ns = 70, .sequences = 2});
  const TokenizedRequest unknown = MakeRequest(w, 0, 1000, false, 99);
  EXPECT_EQ(unknown.stop.max_tokens, 99u);
  EXPECT_EQ(unknown.stop.stop_tokens, std::vector<TokenId>{kStopToken});
  EXPECT_EQ(unknown.deadline_ns, 1070);
  EXPECT_EQ(unknown.sequences, 2u);
  const TokenizedRequest known = MakeRequest(w, 0, 1000, true, 99);
  EXPECT_EQ(known.stop.max_tokens, 5u);
  EXPECT_TRUE(known.stop.stop_tokens.empty());
}

TEST(WorkloadTest, ParametersOutOfRangeAreNamed) {
  const auto message = [](auto change) {
    SyntheticOptions options = FindPreset("short").value();
    change(options);
    return std::string(MakeWorkload(options).status().message());
  };
  EXPECT_THAT(message([](auto& o) { o.rate = 0; }), HasSubstr("rate"));
  EXPECT_THAT(message([](auto& o) { o.rate = NAN; }), HasSubstr("rate"));
  EXPECT_THAT(message([](auto& o) { o.requests = 0; }), HasSubstr("requests"));
  EXPECT_THAT(message([](auto& o) { o.prompt.mean = 513; }), HasSubstr("mean prompt"));
  EXPECT_THAT(message([](auto& o) { o.output.sigma = -1; }), HasSubstr("output sigma"));
  EXPECT_THAT(message([](auto& o) { o.gamma_shape = 0; }), HasSubstr("burstiness"));
  EXPECT_THAT(message([](auto& o) { o.tenants = 0; }), HasSubstr("tenants"));
  EXPECT_THAT(message([](auto& o) {
                o.arrivals = Arrivals::kClosed;
                o.concurrency = 0;
              }),
              HasSubstr("concurrency"));
}

}  // namespace
}  // namespace flotilla::simulator
