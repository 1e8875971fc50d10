// CoreOptions: the bounds under which a scheduler core plans and admits.
#pragma once

#include <cstdint>

namespace flotilla {

struct CoreOptions {
  // Branches that may hold KV blocks at once. Also bounded by the executor.
  std::uint32_t max_seqs = 64;
  // Rows of one plan: decodes first, prefill chunks with what is left. Also
  // bounded by the executor. More rows: more throughput, longer steps.
  std::uint32_t max_step_tokens = 256;
  // Rows of one prompt in one plan.
  std::uint32_t max_chunk_tokens = 256;
  // Requests that wait for their first plan; one more is refused.
  std::uint32_t max_queued_requests = 4096;
  // Sum of their prompt tokens.
  std::uint32_t max_queued_tokens = 65536;
  // Free blocks left per running branch when a prompt is started, so that it
  // is not preempted by the growth of its neighbours at once.
  std::uint32_t watermark_blocks = 1;
  // Keep the KV of prompts and answers while nobody else needs the memory, for
  // requests that begin with the same tokens. Never changes an answer.
  bool prefix_cache = true;
};

}  // namespace flotilla
