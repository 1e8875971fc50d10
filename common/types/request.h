// A request as the scheduler sees it: token ids and resolved parameters, no text.
//
// The router's validator makes it; every default is resolved and the seed is
// always set. The types carry what later features need (branches, beams,
// constraints, adapters, replay); an engine refuses by name what it cannot do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/ids.h"

namespace flotilla {

// How a token is drawn from a row of logits. Order: temperature, top-k, top-p.
struct SamplingParams {
  // 0 means greedy: arg-max of the raw logits, ties to the lowest id.
  float temperature = 1.0f;
  // Keep the k best (ties with the k-th stay); 0 keeps all.
  std::int32_t top_k = 0;
  // Keep the smallest set of best tokens whose mass reaches top_p; 1 keeps all.
  float top_p = 1.0f;
  // The noise of a token is a hash of (BranchSeed, output index, token id).
  std::uint64_t seed = 0;

  bool operator==(const SamplingParams&) const = default;
};

// The seed of one branch: the request's own for branch 0, else output number
// `branch` of SplitMix64 (Steele, Lea, Flood 2014) seeded with it. A request with
// one branch and this seed gives the same tokens.
inline std::uint64_t BranchSeed(std::uint64_t seed, BranchIndex branch) {
  if (branch.value() == 0) return seed;
  std::uint64_t x = seed + branch.value() * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// When a branch ends at token level. Decided by worker/core on every rank.
struct StopRule {
  // Ends the branch with FinishReason::kStop; the token itself is emitted as
  // the last token event. Sorted, unique. Already without the model's own end
  // tokens when the client asked to ignore them.
  std::vector<TokenId> stop_tokens;
  // Output tokens allowed, those of an output prefix included. 0: none, only
  // the prompt is computed (log-probabilities of the prompt).
  std::uint32_t max_tokens = 16;

  bool operator==(const StopRule&) const = default;
};

// Which log-probabilities travel back. They are natural logs of the raw logits.
// The chosen token's own is always part of a token event.
struct LogprobSpec {
  static constexpr std::int32_t kOff = -1;
  static constexpr std::int32_t kMaxTop = 20;
  // kOff, or number of best alternatives per output token, 0..kMaxTop.
  std::int32_t output_top = kOff;
  // kOff, or number of best alternatives per prompt token, 0..kMaxTop.
  std::int32_t prompt_top = kOff;

  bool operator==(const LogprobSpec&) const = default;
};

// Exact beam search with the semantics of HF generate. Candidates are ranked by
// the log-probabilities of the raw logits; SamplingParams has no part in it.
struct BeamOptions {
  // Candidates of one step, beams * max(2, 1 + stop tokens), are at most this.
  static constexpr std::uint32_t kMaxCandidates = 64;

  std::uint32_t beams = 1;
  // A sequence's score is sum of log-probabilities / output tokens ^ this.
  float length_penalty = 1.0f;
  // When to end: kTrue, once `beams` sequences are complete; kFalse, when no
  // running one of today's length can beat the worst of them; kNever, when none
  // ever can.
  enum class EarlyStopping : std::uint8_t { kFalse, kTrue, kNever };
  EarlyStopping early_stopping = EarlyStopping::kFalse;

  bool operator==(const BeamOptions&) const = default;
};

// W3C trace context; all zero when the request is not traced.
struct TraceContext {
  std::uint64_t trace_high = 0, trace_low = 0, span = 0;
  bool sampled = false;

  bool operator==(const TraceContext&) const = default;
};

struct TokenizedRequest {
  RequestId id;
  Attempt attempt;
  // At least one token, all inside the vocabulary.
  std::vector<TokenId> prompt;
  // Per branch: tokens already delivered to the client, continued from here
  // (replay). Empty, or one entry per branch.
  std::vector<std::vector<TokenId>> output_prefix;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  // Independent continuations that share the prompt. With `beam`: how many of its
  // sequences are the answer, at most its beams; branch i is the i-th best, and
  // all tokens come at the end.
  std::uint32_t branches = 1;
  std::optional<BeamOptions> beam;
  // Content hash of a compiled grammar; 0: unconstrained.
  std::uint64_t constraint = 0;
  // Time on the engine's clock, in nanoseconds, after which nobody wants the
  // answer.
  std::optional<std::int64_t> deadline_ns;
  // Higher goes first; equal ones in order of arrival.
  std::int32_t priority = 0;
  std::string tenant;
  // Requests with different salts never share cached blocks.
  std::string cache_salt;
  std::string adapter;
  // Deaths of a worker group at which a step of this request was running.
  std::uint32_t suspicion = 0;
  // For logs: the client's own name of the request, and the router's span of its trace.
  std::string label;
  TraceContext trace;

  bool operator==(const TokenizedRequest&) const = default;
};

}  // namespace flotilla
