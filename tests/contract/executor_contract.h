// The contract of StepExecutor, as one parametrised test. An implementation
// passes it by adding one file to this folder with
//
//   INSTANTIATE_TEST_SUITE_P(Fake, ExecutorContract, ::testing::Values(FakeCase()),
//                            ExecutorCaseName);
//
// The executor needs at least 8 blocks, 4 sequences, 32 tokens of context, 16
// rows a step, and a vocabulary of at least 16.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "common/types/executor.h"

namespace flotilla::testing {

// An executor and, for ExecutorDeathContract, how to kill its group.
struct ContractExecutor {
  std::unique_ptr<StepExecutor> executor;
  std::function<void(Step)> lose_during;  // kills the group in that step, before its result
  std::function<void(Step)> lose_after;   // kills it after the result; step 0: after Ready
};

struct ExecutorCase {
  std::string name;
  std::function<ContractExecutor()> make;
};

inline std::string ExecutorCaseName(const ::testing::TestParamInfo<ExecutorCase>& info) {
  return info.param.name;
}

class ExecutorContract : public ::testing::TestWithParam<ExecutorCase> {};

// For implementations whose group can die.
class ExecutorDeathContract : public ExecutorContract {};

}  // namespace flotilla::testing
