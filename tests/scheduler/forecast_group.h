// The machine and the requests of the tests of forecasts.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {

inline ExecutorDescription ForecastGroup(std::uint32_t blocks = 4000,
                                         std::uint32_t context = 16384) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.vocab_size = 1000;
  group.max_context = context;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = blocks;
  group.max_sequences = 512;
  group.max_step_tokens = 8192;
  group.prefill_ns_per_token = 20'000;
  group.decode_ns_per_step = 1'000'000;
  return group;
}

// A prompt that shares no block with those of other ids. Its tokens are below 900.
inline std::vector<TokenId> PromptOf(std::uint64_t id, std::uint32_t tokens) {
  std::vector<TokenId> prompt;
  for (std::uint64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<TokenId>((id * 7919 + i * 31 + id * i) % 900));
  }
  return prompt;
}

inline constexpr TokenId kStop = 999;

inline TokenizedRequest LiveRequest(std::uint64_t id, std::uint32_t prompt,
                                    std::uint32_t max_tokens) {
  TokenizedRequest request = CoreHarness::Request(id, 1, max_tokens);
  request.prompt = PromptOf(id, prompt);
  request.stop.stop_tokens = {kStop};
  return request;
}

}  // namespace flotilla::scheduler
