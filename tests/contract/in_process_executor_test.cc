// InProcessExecutor, on a tiny model, passes the contract: on CPUs, and on simulated GPUs.
#include "worker/exec/in_process_executor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/contract/executor_contract.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

// `make_backend`, which may be null: CPUs.
ExecutorCase InProcessCase(std::string name, worker::BackendMaker make_backend) {
  return {std::move(name), [make_backend = std::move(make_backend)] {
            static const SteadyClock clock;
            static const std::vector<std::byte> bytes = TinyGguf();
            auto file = model::ParseCheckpoint(bytes);
            EXPECT_TRUE(file.ok()) << file.status();
            worker::RankOptions options;
            options.model_id = "tiny";
            options.threads = 2;
            options.kv_blocks = 64;
            options.poison_blocks = true;
            options.make_backend = make_backend;
            return ContractExecutor{
                std::make_unique<worker::InProcessExecutor>(*std::move(file), options, &clock)};
          }};
}

std::vector<ExecutorCase> Cases() {
  std::vector<ExecutorCase> cases = {InProcessCase("InProcessExecutor", nullptr)};
  for (const SimulatedGpus& gpus : AllSimulatedGpus()) {
    cases.push_back(InProcessCase("InProcessExecutorOn" + gpus.name, MakeSimulatedGpus(gpus)));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(InProcess, ExecutorContract, ::testing::ValuesIn(Cases()),
                         ExecutorCaseName);

}  // namespace
}  // namespace flotilla::testing
