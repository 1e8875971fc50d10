// InProcessExecutor, on a tiny model, passes the contract.
#include "worker/exec/in_process_executor.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/contract/executor_contract.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

ExecutorCase InProcessCase() {
  return {"InProcessExecutor", [] {
            static const SteadyClock clock;
            static const std::vector<std::byte> bytes = TinyGguf();
            auto file = model::ParseCheckpoint(bytes);
            EXPECT_TRUE(file.ok()) << file.status();
            worker::RankOptions options;
            options.model_id = "tiny";
            options.threads = 2;
            options.kv_blocks = 64;
            options.poison_blocks = true;
            return ContractExecutor{
                std::make_unique<worker::InProcessExecutor>(*std::move(file), options, &clock)};
          }};
}

INSTANTIATE_TEST_SUITE_P(InProcess, ExecutorContract, ::testing::Values(InProcessCase()),
                         ExecutorCaseName);

}  // namespace
}  // namespace flotilla::testing
