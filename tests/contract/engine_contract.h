// The contract of Engine, as one parametrised test. An implementation passes it
// by adding one file to this folder with
//
//   INSTANTIATE_TEST_SUITE_P(Fake, EngineContract, ::testing::Values(FakeCase()),
//                            EngineCaseName);
//
// The engine needs a context of at least 64 tokens, a vocabulary of at least 16,
// and tokens that depend on the seed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "common/types/engine.h"

namespace flotilla::testing {

// An engine that is ready, and all that it needs.
class EngineUnderTest {
 public:
  virtual ~EngineUnderTest() = default;
  virtual Engine& engine() = 0;
  // Runs one step if there is one to do. The engine computes nothing outside this call, so
  // that tests can act between two tokens. False: there is nothing to do now.
  virtual bool Pump() = 0;
  // Returns when the engine has received all calls so far, if that takes time.
  virtual void Settle() {}
};

struct EngineCase {
  std::string name;
  std::function<std::unique_ptr<EngineUnderTest>()> make;
};

inline std::string EngineCaseName(const ::testing::TestParamInfo<EngineCase>& info) {
  return info.param.name;
}

class EngineContract : public ::testing::TestWithParam<EngineCase> {};

}  // namespace flotilla::testing
