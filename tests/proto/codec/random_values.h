// Random plans, results, requests and events for the codec's tests: every operation, every
// field, edges of their ranges more often than chance would have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/types/plan.h"
#include "proto/codec/engine.h"
#include "proto/codec/group.h"
#include "tests/support/random.h"

namespace flotilla::codec {

class RandomValues {
 public:
  explicit RandomValues(std::uint64_t seed) : random_(seed) {}

  StepPlan Plan();
  StepResult Result();
  GroupCommand Command();
  GroupEvent Event();
  TokenizedRequest Request();
  EngineEvent RouterEvent();
  // In [0, n).
  std::size_t Below(std::size_t n) { return static_cast<std::size_t>(random_.Next() % n); }

 private:
  bool Flip() { return Below(2) == 0; }
  std::uint64_t Word();  // small ones and the largest are frequent
  std::uint32_t Number() { return static_cast<std::uint32_t>(Word()); }
  float Logprob();
  float Real() { return static_cast<float>(static_cast<std::int32_t>(Number())) / 1024; }
  TokenId Token() { return static_cast<TokenId>(Number() >> 1); }
  BlockId Block() { return BlockId(std::max(Number(), 1u)); }
  std::string Name();
  std::string Text();  // not always UTF-8
  std::vector<TokenId> Tokens(std::size_t most);
  std::vector<LogitBias> Biases();
  SamplingParams Sampling();
  std::vector<BlockCopy> Copies();
  std::vector<TopLogprob> Tops();
  std::vector<SampledToken> Sampled(std::size_t most);
  PlanOp Op();
  OpenSequence Open();
  Run RandomRun();
  SequenceResult Sequence();
  ExecutorDescription Description();

  testing::Random random_;
};

}  // namespace flotilla::codec
