// A request as the scheduler sees it: token ids and resolved parameters, no text.
//
// The router's validator makes it; every default is resolved and the seed is
// always set. The types carry what later features need (sequences, beams,
// constraints, adapters, replay); an engine refuses by name what it cannot do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/ids.h"
#include "common/types/sampling.h"

namespace flotilla {

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
  // Per sequence: tokens already delivered to the client, continued from here
  // (replay). Empty, or one entry per sequence.
  std::vector<std::vector<TokenId>> output_prefix;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  // Independent continuations that share the prompt. With `beam`: how many of its
  // sequences are the answer, at most its beams; sequence i is the i-th best, and
  // all tokens come at the end.
  std::uint32_t sequences = 1;
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
  // Deaths of worker groups that computed this request alone, in earlier attempts. With
  // any it is computed alone first, until it is past what it had got to.
  std::uint32_t crash_count = 0;
  // Only logs use these: the client's own name of the request, and the router's span of its trace.
  std::string label;
  TraceContext trace;

  bool operator==(const TokenizedRequest&) const = default;
};

}  // namespace flotilla
