// CoreOptions: the bounds under which a scheduler core plans and admits.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace flotilla {

struct CoreOptions {
  // Sequences that may hold KV blocks at once. Also bounded by the executor.
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
  // Room that is left when a request starts, so that the expected output of those that run
  // does not preempt it at once: at least so many free blocks per running sequence,
  std::uint32_t watermark_blocks = 1;
  // and what they are predicted to need at once, if each makes so many thousandths
  // of the output that it may. A first estimate: what finished requests really made
  // replaces it, and each preemption raises it. 0: none.
  std::uint32_t expected_output_permille = 700;
  // A request that was preempted this often is started again only with all the
  // blocks that it can come to need, and then is non-preemptible.
  std::uint32_t max_preemptions = 3;
  // A request that was under way when its worker group died is quarantined: it is
  // computed alone until it is past that point. One that was alone at so many deaths,
  // and quarantined before each, is failed; deaths of other groups that it comes from
  // (TokenizedRequest::crash_count) count. (Two: what kills a process from outside may
  // strike anybody once.)
  std::uint32_t max_crashes = 2;
  // Requests that may pass an earlier one which waits for memory or for another's
  // prefix, in all.
  std::uint32_t max_bypass = 16;
  // Aim at steps of at most this while anybody decodes, by smaller prefill chunks:
  // the time between two tokens. 0: no aim.
  std::int64_t itl_target_ns = 0;
  // A request whose wait is predicted to be longer is refused. 0: no bound but the
  // queue's.
  std::int64_t max_wait_ns = 0;
  // Tenants share the group by the tokens they are served, as their weights say (1
  // where none is given), while they have requests waiting.
  bool fair_share = false;
  std::vector<std::pair<std::string, std::uint32_t>> tenant_weights;
  // Keep the KV of prompts and answers while nobody else needs the memory, for
  // requests that begin with the same tokens. Never changes an answer.
  bool prefix_cache = true;
  // Tokens that a decode may draft ahead at most, where the executor can draft; 0:
  // none. How many it does follows from what pays. Never changes an answer.
  std::uint32_t max_draft_tokens = 8;
};

}  // namespace flotilla
