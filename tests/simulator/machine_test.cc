#include "simulator/machine.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/machine_json.h"

namespace flotilla::simulator {
namespace {

using ::testing::HasSubstr;

TEST(MachineTest, BuiltInOnesSurviveJson) {
  ASSERT_GE(BuiltInMachines().size(), 4u);
  for (const Machine& machine : BuiltInMachines()) {
    const absl::StatusOr<Machine> read = ParseMachine(MachineJson(machine));
    ASSERT_TRUE(read.ok()) << machine.name << ": " << read.status();
    EXPECT_EQ(MachineJson(*read), MachineJson(machine));
    const StepShape shape{
        .prefill_rows = 7, .decode_rows = 3, .prefill_context = 99, .decode_context = 500};
    EXPECT_EQ(CostOf(read->cost, shape).ns, CostOf(machine.cost, shape).ns);
    EXPECT_EQ(read->kv_tokens, machine.kv_tokens);
  }
}

TEST(MachineTest, AnUnknownNameListsThoseThereAre) {
  EXPECT_THAT(FindMachine("tpu").status().message(), HasSubstr("this-cpu, h200, 8xh200"));
}

TEST(MachineTest, HostileJsonIsRefusedByField) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "not JSON"},
      {"[]", "not a JSON object"},
      {"{}", "\"kind\""},
      {R"({"kind":"magic"})", "\"kind\""},
      {R"({"kind":"linear","step_ns":"fast"})", "\"step_ns\" is not a number"},
      {R"({"kind":"linear","step_ns":-1})", "\"step_ns\""},
      {R"({"kind":"linear","step_nss":1})", "\"step_nss\" is unknown"},
      {R"({"kind":"linear","weight_bytes":1})", "\"weight_bytes\" is unknown"},
      {R"({"kind":"linear","lag":0})", "\"lag\""},
      {R"({"kind":"linear","lag":1.5})", "\"lag\" is not a whole number"},
      {R"({"kind":"linear","kv_tokens":1e18})", "\"kv_tokens\""},
      {R"({"kind":"linear","kv_tokens":15})", "\"kv_tokens\" is below one block"},
      {R"({"kind":"linear","kv_windows":[]})", "\"kv_windows\" is not a list of 1 to 8"},
      {R"({"kind":"linear","kv_windows":[0,0,0,0,0,0,0,0,0]})", "\"kv_windows\""},
      {R"({"kind":"linear","kv_windows":[-1]})", "\"kv_windows\""},
      {R"({"kind":"linear","kv_windows":[0.5]})", "\"kv_windows\""},
      {R"({"kind":"linear","kv_windows":[1e99]})", "\"kv_windows\""},
      {R"({"kind":"linear","kv_windows":512})", "\"kv_windows\""},
      {R"({"kind":"linear","kv_windows":[0,512],"kv_tokens":1073741824})", "\"kv_tokens\""},
      {R"({"kind":"roofline"})", "\"bytes_per_second\""},
      {R"({"kind":"roofline","bytes_per_second":1e9})", "\"flops_per_second\""},
  };
  for (const auto& [json, message] : bad) {
    EXPECT_THAT(ParseMachine(json).status().message(), HasSubstr(message)) << json;
    EXPECT_EQ(ParseMachine(json).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(MachineTest, TheDescriptionHoldsWhatTheOptionsMayAsk) {
  Machine machine = FindMachine("this-cpu").value();
  machine.kv_tokens = 1000;
  scheduler::CoreOptions core = DefaultOptions(machine);
  core.max_seqs = 300;
  core.max_step_tokens = 999;
  const ExecutorDescription d = Describe(machine, core);
  EXPECT_EQ(d.block_count, 1000u / 16 + 1);
  EXPECT_GT(d.max_sequences, 2 * 300u);
  EXPECT_EQ(d.max_step_tokens, 999u);
  EXPECT_GT(d.decode_ns_per_step, 0);
}

TEST(MachineTest, APositionTakesASlotInEachKvGroup) {
  Machine machine = FindMachine("h200").value();
  machine.kv_tokens = 1000;
  machine.host_tokens = 2000;
  const ExecutorDescription one = Describe(machine, DefaultOptions(machine));
  machine.kv_windows = {0, 512, 512, 512};
  EXPECT_EQ(ParseMachine(MachineJson(machine)).value().kv_windows, machine.kv_windows);
  const ExecutorDescription d = Describe(machine, DefaultOptions(machine));
  ASSERT_EQ(d.groups.size(), 4u);
  EXPECT_EQ(d.groups[0].kind, KvGroup::Kind::kFull);
  EXPECT_EQ(d.groups[3].kind, KvGroup::Kind::kWindow);
  EXPECT_EQ(d.groups[3].window, 512u);
  EXPECT_EQ(d.block_count - 1, 4 * (one.block_count - 1));
  EXPECT_EQ(d.tiers.at(0).block_count, 4 * one.tiers.at(0).block_count);
  EXPECT_NEAR(4.0 * static_cast<double>(d.tiers[0].in_ns_per_block),
              static_cast<double>(one.tiers[0].in_ns_per_block), 4);
}

}  // namespace
}  // namespace flotilla::simulator
