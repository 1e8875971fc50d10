// Every op of kernels/cuda/ on the simulated GPU equals kernels/reference bit for bit, whatever its
// shape, and in whatever order the threads of a block run.
//
// Environment:
//   FLOTILLA_LONG=1      more cases, also of large shapes, and 8 schedules of each
//   FLOTILLA_CASE=N      only this case
//   FLOTILLA_SCHEDULE=N  only this schedule of each case
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/ops.h"
#include "tests/kernels/cuda/op_cases.h"
#include "tests/kernels/cuda/simulated_memory.h"
#include "tests/support/random.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace flotilla::kernels::cuda {
namespace {

using Numbers = std::vector<uint64_t>;

constexpr uint64_t kCases = 100;
// Cases from this number on have the shapes that tests of GPUs have. Some take seconds.
constexpr uint64_t kFirstLarge = 1'000;

std::optional<uint64_t> EnvNumber(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

bool Long() { return EnvNumber("FLOTILLA_LONG").value_or(0) != 0; }

Numbers Range(uint64_t begin, uint64_t end) {
  Numbers numbers;
  for (uint64_t i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

Numbers Cases() {
  if (const auto only = EnvNumber("FLOTILLA_CASE")) return {*only};
#if defined(__SANITIZE_ADDRESS__)
  return Range(0, Long() ? kCases : 12);
#else
  Numbers cases = Range(0, Long() ? 2 * kCases : kCases);
  if (Long()) std::ranges::copy(Range(kFirstLarge, kFirstLarge + 16), std::back_inserter(cases));
  return cases;
#endif
}

Numbers Schedules() {
  if (const auto only = EnvNumber("FLOTILLA_SCHEDULE")) return {*only};
  return Range(0, Long() ? 8 : 4);
}

// Schedules 0 and 1 are ascending and descending order; the others differ from case to case.
uint64_t ScheduleSeed(uint64_t number, uint64_t schedule) {
  return schedule < 2 ? schedule : testing::MixBits(number << 8 | schedule);
}

// What runs now. A kernel that writes where nothing is ends the program.
struct Running {
  const char* op = "";
  uint64_t number = 0, schedule = 0;
} running;

std::string RepeatWith() {
  char line[200];
  std::snprintf(line, sizeof line,
                "repeat with: FLOTILLA_CASE=%llu FLOTILLA_SCHEDULE=%llu kernels_cuda_ops_test "
                "--gtest_filter=*/%s\n",
                static_cast<unsigned long long>(running.number),
                static_cast<unsigned long long>(running.schedule), running.op);
  return line;
}

void WriteRepeatWith() {
  const std::string line = RepeatWith();
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

void TellOnCrash() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(WriteRepeatWith);
#else
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) {
    signal(number, [](int caught) {
      WriteRepeatWith();
      signal(caught, SIG_DFL);
      raise(caught);
    });
  }
#endif
}

// What the text of a shape must match in at least one of the cases: of all ops, of products, and of
// single ones.
struct Facts {
  std::string_view op;
  std::vector<const char*> patterns;
};
const std::vector<Facts>& AllFacts() {
  static const auto& all = *new std::vector<Facts>{
      {"", {R"(\brows 1\b)", R"(\brows \d*[3579]\b)", R"(\brows 513\b)"}},
      {"rms_norm", {R"(\bheads 1\b)", R"(\bheads [2-9]\b)", "in place"}},
      {"quantize_rows", {R"(\bk 32\b)", R"(\bsplits 1\b)", "uneven"}},
      {"matmul_i16", {"q4_0", "q4_1", "q8_0"}},
      {"matmul_f32", {"q4_0", "q4_1", "q8_0", R"(\bf32)", R"(\bf16)", R"(\bbf16)"}},
      {"matmul_",
       {R"(\bk 32\b)", R"(\bcolumns \d*[13579]\b)", R"(\bsplits 1\b)", R"(\bsplits \d uneven)",
        R"(\bsplits 256\b)", "accumulate$", R"(\d$)"}},
      {"activate",
       {"activation 0", "activation 1", "activation 2", "activation 3", "activation 4", "gated"}},
      {"add", {"one row for all"}},
      {"kv_write", {"fp32", "bf16"}},
      {"paged_attention",
       {"fp32", "bf16", R"(\bcontexts 1 to\b)", R"(\bto (29\d\d|3000)\b)", R"(\bgroup 1\b)",
        R"(\bgroup 16\b)", R"(\bsequences [2-4]\b)", R"(\bdim 32\b)", R"(\bdim 80\b)",
        R"(\bdim 256\b)"}},
      {"top_n", {R"(\bcount 1\b)", R"(\bcount 64\b)"}},
      {"softmax_stats", {R"(\bn \d{1,2}\b)", R"(\bn 3\d\d\d\b)"}},
  };
  return all;
}

void ExpectCovered(std::string_view op, const std::vector<std::string>& shapes) {
  for (const Facts& facts : AllFacts()) {
    if (!op.starts_with(facts.op)) continue;
    for (const char* pattern : facts.patterns) {
      const std::regex regex(pattern);
      EXPECT_TRUE(std::ranges::any_of(
          shapes, [&](const std::string& shape) { return std::regex_search(shape, regex); }))
          << "no shape of " << op << " matches " << pattern;
    }
  }
}

class SimulatedOp : public ::testing::TestWithParam<std::string_view> {};

TEST_P(SimulatedOp, EqualsTheReference) {
  constexpr int kMostFailures = 5;
  TellOnCrash();
  const std::string op(GetParam());
  std::vector<std::string> shapes;
  int failures = 0;
  for (const uint64_t number : Cases()) {
    for (const uint64_t schedule : Schedules()) {
      running = {op.c_str(), number, schedule};
      SimulatedMemory memory(ScheduleSeed(number, schedule));
      const OpResult result =
          RunOpCase(op, number, /*small=*/number < kFirstLarge, SimulatedOps(), memory);
      shapes.push_back(result.shape);
      if (result.passed) continue;
      ADD_FAILURE() << op << ", case " << number << ", schedule " << schedule << " ("
                    << result.shape << "): " << result.difference << "\n"
                    << RepeatWith();
      if (++failures == kMostFailures) return;
    }
  }
  running = {};
  if (Cases().size() >= kCases) ExpectCovered(op, shapes);
}

INSTANTIATE_TEST_SUITE_P(Ops, SimulatedOp, ::testing::ValuesIn(OpNames()),
                         [](const auto& info) { return std::string(info.param); });

TEST(SimulatedOps, ACaseReportsWhatWentWrong) {
  SimulatedMemory memory;
  EXPECT_FALSE(RunOpCase("no_such_op", 0, true, SimulatedOps(), memory).passed);
  auto& stream = *static_cast<simulated::SimulatedStream*>(memory.stream());
  stream.fault = {.kernel = "some_kernel", .block_x = 3, .thread = 17, .what = "it ended"};
  for (const std::string_view op : OpNames()) {
    const OpResult result = RunOpCase(op, 0, true, SimulatedOps(), memory);
    EXPECT_FALSE(result.passed) << op;
    EXPECT_THAT(result.difference,
                ::testing::HasSubstr("some_kernel, block (3, 0), thread 17: it ended"));
  }
}

}  // namespace
}  // namespace flotilla::kernels::cuda
