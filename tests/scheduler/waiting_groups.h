// The machines and requests of the tests of who waits for whom.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {

inline ExecutorDescription WaitingGroup(std::uint32_t blocks = 4000) {
  ExecutorDescription group;
  group.vocab_size = 1000;
  group.max_context = 16384;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = blocks;
  group.max_sequences = 512;
  group.max_step_tokens = 8192;
  group.prefill_ns_per_token = 20'000;
  group.decode_ns_per_step = 1'000'000;
  return group;
}

// The time of a step on a machine that reads its weights in 1 ms and computes a row in 20 us.
inline std::int64_t WaitingStepNs(std::uint32_t prefill_rows, std::uint32_t decode_rows) {
  return 1'000'000 + 20'000 * std::int64_t{prefill_rows + decode_rows};
}

// A prompt that shares no block with the prompt of another id.
inline TokenizedRequest DistinctRequest(std::uint64_t id, std::uint32_t prompt_tokens,
                                        std::uint32_t max_tokens) {
  TokenizedRequest request = CoreHarness::Request(id, prompt_tokens, max_tokens);
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    request.prompt[i] = static_cast<TokenId>((id * 7919 + i * 31 + id * i) % 1000);
  }
  return request;
}

// The machine of ThisCpuNs.
inline ExecutorDescription ThisCpuGroup(std::uint32_t blocks = 4000) {
  ExecutorDescription group = WaitingGroup(blocks);
  group.prefill_ns_per_token = kThisCpuPrefillNs;
  group.decode_ns_per_step = kThisCpuDecodeNs;
  return group;
}

// Begins requests that decode for long on the machine of ThisCpuNs. Others that have ended by then
// have shown what steps with more and fewer decodes cost.
inline void DecodeBeside(CoreHarness& harness, std::uint32_t decodes) {
  harness.batch_ns = ThisCpuNs;
  const auto submit = [&](std::uint64_t id, std::uint32_t max_tokens) {
    TokenizedRequest request = DistinctRequest(id, 20, max_tokens);
    request.tenant = "beside";
    harness.core.Submit(harness.now_ns, request);
  };
  for (std::uint32_t i = 1; i <= 32; ++i) submit(1'000'500 + i, 4 * i);
  for (std::uint32_t i = 0; i < decodes; ++i) submit(2'000'600 + i, 4000);
  while (harness.core.live_requests() > decodes) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  harness.events.clear();
}

// Plans and answers until the request has a token. Returns the number of plans.
inline int PlansToFirstToken(CoreHarness& harness, std::uint64_t id, int most = 1000) {
  int plans = 0;
  for (; harness.TokensOf(id) == 0 && plans < most; ++plans) {
    EXPECT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  return plans;
}

}  // namespace flotilla::scheduler
