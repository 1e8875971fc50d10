// A request as the scheduler sees it: token ids and resolved parameters, no text.
//
// The router's validator makes it. Every default is resolved and the seed is always set.
// The types also have fields that an engine may not support (adapters); an engine refuses such a
// request and names what it cannot do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/ids.h"
#include "common/types/sampling.h"

namespace flotilla {

// Exact beam search with the semantics of HF generate. Candidates are ranked by the
// log-probabilities of the raw logits; SamplingParams does not affect it.
struct BeamOptions {
  // Candidates of one step, beams * max(2, 1 + stop tokens), are at most this.
  static constexpr std::uint32_t kMaxCandidates = 64;

  std::uint32_t beams = 1;
  // A sequence's score is: sum of log-probabilities / output tokens ^ length_penalty.
  float length_penalty = 1.0f;
  // When the search ends. kTrue: as soon as `beams` sequences are complete. kFalse: when no
  // running beam at its present length can beat the worst of them. kNever: when no running
  // beam can ever beat it.
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
  // For a replay: the tokens of each sequence that the client already has; the sequence
  // continues after them. Empty, or one entry per sequence.
  std::vector<std::vector<TokenId>> output_prefix;
  SamplingParams sampling;
  StopRule stop;
  // The client left max_tokens out, so stop.max_tokens is a bound, and says nothing of the answer.
  // Only forecasts of its length use this.
  bool max_tokens_absent = false;
  LogprobSpec logprobs;
  // The number of independent continuations that share the prompt. With `beam`: how many of
  // the found sequences are the answer, at most `beams`. Sequence i is then the i-th best,
  // and all tokens come at the end.
  std::uint32_t sequences = 1;
  std::optional<BeamOptions> beam;
  // The time on the engine's clock, in nanoseconds, after which the answer is not wanted.
  std::optional<std::int64_t> deadline_ns;
  // The client asked for no deadline, so deadline_ns is the server's own limit. The request ends
  // then, and nothing is planned for it.
  bool deadline_absent = false;
  bool has_own_deadline() const { return deadline_ns.has_value() && !deadline_absent; }
  // A higher priority goes first; equal ones go in the order of arrival.
  std::int32_t priority = 0;
  std::string tenant;
  // Requests with different salts never share cached blocks.
  std::string cache_salt;
  std::string adapter;
  // How often a worker group died in earlier attempts while it computed this request alone.
  // If above 0, the request is first computed alone, until it is past the tokens that it
  // already has.
  std::uint32_t crash_count = 0;
  // Only logs use these: the client's own name for the request, and the router's span in
  // its trace.
  std::string label;
  TraceContext trace;

  bool operator==(const TokenizedRequest&) const = default;
};

}  // namespace flotilla
