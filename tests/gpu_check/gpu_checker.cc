// gpu_checker: compares GPU number 0, or the simulation of one, with the CPU; over NCCL, all GPUs.
// scripts/gpu_check runs it and writes the report. It needs nothing but libc, and a driver where it
// uses a GPU.
//
// A command prints one JSON object to stdout, and a line to stderr for each item that is done. The
// exit status is 0 if all is equal, 1 after a difference or an error, 2 if the command line is
// wrong and 3 if no GPU can be used, or not what the command needs besides.
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/models.h"
#include "tests/gpu_check/op_times.h"
#include "tests/gpu_check/target.h"
#include "tests/gpu_check/twin_checks.h"

namespace flotilla::kernels::cuda {
namespace {

constexpr int kDifference = 1, kUsage = 2, kNoGpu = 3;

constexpr std::string_view kHelp =
    "gpu_checker compares a GPU with the CPU, bit by bit. scripts/gpu_check runs it.\n"
    "\n"
    "  gpu_checker environment        describes the GPU\n"
    "  gpu_checker twins              compares instructions and formulas\n"
    "  gpu_checker ops                compares the ops\n"
    "  gpu_checker models             compares whole models, with weights that a seed makes\n"
    "  gpu_checker nccl               compares ranks that have a GPU each, and exchange over NCCL\n"
    "  gpu_checker times              measures ops and steps, for information\n"
    "\n"
    "  --simulate    runs the kernels on the CPU, in place of a GPU\n"
    "  --seed N      chooses the cases (1 by default)\n"
    "  --few         runs a few small cases, for sanitizers\n"
    "  --only NAME   runs this twin, op or model only\n"
    "\n"
    "Examples: gpu_checker twins --simulate\n"
    "          gpu_checker ops --only rms_norm --seed 7\n";

struct Flags {
  std::string_view command;
  bool simulate = false;
  bool queues = false;  // loops in place of kernels, for models
  bool few = false;
  uint64_t seed = 1;
  std::string_view only;
};

// An error in one line; empty if there is none.
std::string Parse(int argc, char** argv, Flags& flags) {
  if (argc < 2) return "gpu_checker needs a command, as in: gpu_checker twins --simulate";
  flags.command = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--simulate") {
      flags.simulate = true;
    } else if (flag == "--simulate=queues") {
      flags.simulate = flags.queues = true;
    } else if (flag == "--few") {
      flags.few = true;
    } else if (flag == "--only" && i + 1 < argc) {
      flags.only = argv[++i];
    } else if (flag == "--seed" && i + 1 < argc) {
      const std::string value = argv[++i];
      const auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), flags.seed);
      if (error != std::errc() || end != value.data() + value.size()) {
        return absl::StrCat("--seed is ", value, ", but it must be a number.");
      }
    } else {
      return absl::StrCat(flag, " is no flag of gpu_checker, or lacks its value.");
    }
  }
  return "";
}

// Runs one check after the other. Returns {"items", "passed"}.
class Checks {
 public:
  explicit Checks(const Flags& flags) : flags_(flags) {}

  void Run(std::string_view name, const std::function<CheckResult()>& check) {
    if (!flags_.only.empty() && name != flags_.only) return;
    const auto begin = std::chrono::steady_clock::now();
    const CheckResult result = check();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    passed_ &= result.passed;
    std::fprintf(stderr, "%s: %s\n", result.name.c_str(),
                 result.passed ? "equal" : result.difference.c_str());
    nlohmann::json item = {{"name", result.name},
                           {"cases", result.cases},
                           {"passed", result.passed},
                           {"seconds", std::round(100 * took.count()) / 100}};
    if (!result.passed) item["difference"] = result.difference;
    items_.push_back(std::move(item));
  }

  nlohmann::json Results() const {
    return {{"items", items_}, {"passed", passed_ && !items_.empty()}};
  }

 private:
  const Flags& flags_;
  bool passed_ = true;
  nlohmann::json items_ = nlohmann::json::array();
};

nlohmann::json CheckTwins(const Flags& flags, const Target& target) {
  Checks checks(flags);
  for (int i = 0; i < kTwins; ++i) {
    const auto twin = static_cast<Twin>(i);
    // All 65,536 halves are among the operands of formulas.
    const int64_t results = flags.few                      ? 4096
                            : target.simulation != nullptr ? 1 << 17
                            : IsWord(twin)                 ? 1 << 20
                                                           : 1 << 22;
    checks.Run(NameOf(twin), [&] { return CheckTwin(twin, flags.seed, results, target); });
  }
  return checks.Results();
}

CheckResult CheckOp(std::string_view op, const Flags& flags, const Target& target) {
  const int cases = flags.few ? 3 : target.simulation != nullptr ? 40 : 120;
  CheckResult result{.name = std::string(op)};
  for (int i = 0; i < cases; ++i) {
    const uint64_t seed = flags.seed + static_cast<uint64_t>(i);
    if (target.simulation != nullptr) target.simulation->set_seed(static_cast<uint64_t>(i));
    const bool small = flags.few || target.simulation != nullptr;
    const OpResult found = RunOpCase(op, seed, small, *target.ops, *target.memory);
    ++result.cases;
    result.passed = found.passed;
    if (!found.passed) {
      result.difference = absl::StrCat("seed ", seed, ", ", found.shape, ": ", found.difference);
      break;
    }
  }
  return result;
}

nlohmann::json CheckOps(const Flags& flags, const Target& target) {
  Checks checks(flags);
  for (const std::string_view op : OpNames()) {
    checks.Run(op, [&] { return CheckOp(op, flags, target); });
  }
  return checks.Results();
}

ModelTarget TargetOf(const Flags& flags) {
  return !flags.simulate ? ModelTarget::kGpu
         : flags.queues  ? ModelTarget::kQueues
                         : ModelTarget::kFibers;
}

nlohmann::json CheckModels(const Flags& flags) {
  Checks checks(flags);
  for (const ModelCheck& check : ModelChecks(TargetOf(flags), flags.seed, flags.few, flags.only)) {
    checks.Run(check.name, check.run);
  }
  return checks.Results();
}

// With "not run", which says why, where there are no two GPUs or no NCCL.
nlohmann::json CheckNccl(const Flags& flags) {
  const auto found = MakeNcclChecks(TargetOf(flags), flags.seed, flags.only);
  if (!found.ok()) {
    return {{"passed", false}, {"not run", std::string(found.status().message())}};
  }
  Checks checks(flags);
  for (const ModelCheck& check : found->checks) checks.Run(check.name, check.run);
  nlohmann::json result = checks.Results();
  result["gpus"] = found->gpus;
  result["nccl"] = flags.simulate ? "a fake NCCL" : absl::StrCat("NCCL ", found->version);
  return result;
}

// Of a simulation only steps, for tests of the checker.
nlohmann::json MeasureTimes(const Flags& flags, Gpu* gpu) {
  nlohmann::json found = {{"times", nlohmann::json::array()}};
  if (gpu != nullptr) found = MeasureOps(*gpu);
  const auto steps = MeasureSteps(TargetOf(flags), flags.seed);
  if (!steps.ok()) found["error"] = steps.status().ToString();
  for (size_t i = 0; steps.ok() && i < steps->size(); ++i) {
    const StepTime& step = (*steps)[i];
    nlohmann::json row = {{"op", absl::StrCat("step, ", step.model)},
                          {"shape", step.shape},
                          {"microseconds", std::round(step.microseconds * 10) / 10}};
    if (gpu != nullptr && step.bytes > 0) {
      const double rate = static_cast<double>(step.bytes) / step.microseconds * 1e-3;  // GB/s
      row["GB/s"] = std::round(rate * 10) / 10;
      row["of copy"] = std::round(rate / found.value("copy, GB/s", 1.0) * 1000) / 1000;
    }
    found["times"].push_back(std::move(row));
  }
  found["passed"] = !found.contains("error");
  return found;
}

// What the command finds, with "passed".
nlohmann::json RunCommand(const Flags& flags, const Target& target, Gpu* gpu) {
  if (flags.command == "twins") return CheckTwins(flags, target);
  if (flags.command == "ops") return CheckOps(flags, target);
  if (flags.command == "models") return CheckModels(flags);
  if (flags.command == "nccl") return CheckNccl(flags);
  if (flags.command == "environment") {
    if (gpu == nullptr) return {{"passed", true}};
    return {{"passed", true}, {"gpu", gpu->Describe()}};
  }
  return MeasureTimes(flags, gpu);
}

int Main(int argc, char** argv) {
  Flags flags;
  const std::string error = Parse(argc, argv, flags);
  if (flags.command == "--help" || flags.command == "-h") {
    std::fputs(kHelp.data(), stdout);
    return 0;
  }
  const bool known = flags.command == "environment" || flags.command == "twins" ||
                     flags.command == "ops" || flags.command == "models" ||
                     flags.command == "nccl" || flags.command == "times";
  if (!error.empty() || !known) {
    std::fprintf(stderr, "error: %s\n%s", error.empty() ? "The command is unknown." : error.c_str(),
                 kHelp.data());
    return kUsage;
  }

  SimulatedMemory memory(flags.seed);
  Target target{.ops = &SimulatedOps(),
                .run_twin = &simulated::RunTwin,
                .memory = &memory,
                .simulation = &memory};
  std::unique_ptr<Gpu> gpu;
  if (!flags.simulate) {
    // CUDA would load a kernel when it is first launched, and wait for the GPU then, with a lock of
    // the process. The GPU may wait for that of another rank, whose thread needs the lock.
    if (flags.command == "nccl") setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
    std::string why;
    gpu = OpenGpu(why);
    if (gpu == nullptr) {
      std::fprintf(stderr, "error: %s\n", why.c_str());
      return kNoGpu;
    }
    target = gpu->target();
  }
  nlohmann::json result = RunCommand(flags, target, gpu.get());
  result["command"] = flags.command;
  result["simulated"] = flags.simulate;
  result["seed"] = flags.seed;
  std::puts(result.dump().c_str());
  if (result.contains("not run")) return kNoGpu;
  return result["passed"] ? 0 : kDifference;
}

}  // namespace
}  // namespace flotilla::kernels::cuda

int main(int argc, char** argv) { return flotilla::kernels::cuda::Main(argc, argv); }
