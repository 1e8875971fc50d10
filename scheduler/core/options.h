// CoreOptions: the limits by which a scheduler core plans and admits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace flotilla::scheduler {

struct CoreOptions {
  // The most sequences that may hold KV blocks at once. The executor also limits it.
  std::uint32_t max_seqs = 64;
  // The most rows of one plan: decodes first, then prefill chunks with what is left. The
  // executor also limits it. More rows give more throughput and longer steps.
  std::uint32_t max_step_tokens = 256;
  // The most rows of one prompt in one plan.
  std::uint32_t max_chunk_tokens = 256;
  // The most requests that wait in the queue; one more is refused.
  std::uint32_t max_queued_requests = 4096;
  // The most tokens that these requests have to prefill; a request beyond it is refused.
  // 0: MaxQueuedTokens (admission.h).
  std::uint32_t max_queued_tokens = 65536;
  // The free blocks per running sequence that must be left when a request starts, so that
  // the expected output of the running requests does not preempt it at once.
  std::uint32_t watermark_blocks = 1;
  // The expected output ratio, in thousandths of max_tokens. When a request starts, at
  // least the blocks that the sequences are predicted to need at once must be left, too.
  // This is a first estimate: the real output of finished requests replaces it, and each
  // preemption raises it. 0: nothing is predicted.
  std::uint32_t expected_output_permille = 700;
  // A request that was preempted this often is non-preemptible: it starts again only with
  // all the blocks that it can come to need (Protection).
  std::uint32_t max_preemptions = 3;
  // The rows that ran when a worker group died are computed again in steps of one request. A
  // request fails when this many groups died in such steps of the same rows. If another
  // request had such a death meanwhile, twice as many are needed, because then deaths may come
  // from outside. Deaths on earlier replicas (TokenizedRequest::crash_count) count too.
  std::uint32_t max_crashes = 2;
  // While a request waits for memory or sequences, later requests whose prompts have at most
  // this many tokens in total may start before it. 0: none; -1: 32 * max_step_tokens.
  std::int64_t max_overtaken_rows = -1;
  // The target for the time between two tokens: while any sequence decodes, prefill chunks
  // are made smaller so that steps take at most this. 0: itl_permille decides.
  std::int64_t itl_target_ns = 0;
  // Without a target, a step with chunks takes at most this many thousandths of the time that
  // the decodes of all requests that run or wait are predicted to take. 0: no limit.
  std::uint32_t itl_permille = 2500;
  // A request whose predicted wait is longer than this is refused. 0: only the limits of
  // the queue apply.
  std::int64_t max_wait_ns = 0;
  // While tenants have waiting requests, they share the group in proportion to their
  // weights, by the tokens that they are served. A tenant without a weight has 1.
  bool fair_share = false;
  std::vector<std::pair<std::string, std::uint32_t>> tenant_weights;
  // Keep the KV of prompts and answers for requests that begin with the same tokens, while
  // no other request needs the memory. Never changes an answer.
  bool prefix_cache = true;
  // The most tokens that a decode may draft ahead, where the executor can draft. 0: none.
  // The scheduler chooses the depth that pays. Never changes an answer.
  std::uint32_t max_draft_tokens = 8;
  // The most bytes of constraints and of DRY's breakers in one plan, which is a message to the
  // workers: sequences that would make it longer open in later plans. Those of one always fit.
  std::size_t max_constraint_bytes = 4u << 20;
  // The same for the tokens of sequences that open, of which each takes two or three bytes. A
  // message may have 16 MiB.
  std::size_t max_opened_tokens = 2u << 20;
};

}  // namespace flotilla::scheduler
