// The events of an engine about a router's requests, in token ids.
//
// Each request gets one Accepted, or one RequestEnd that refuses it. After Accepted come
// the token events of each sequence in position order, one SequenceEnd per sequence and,
// after the last of them, one RequestEnd. Nothing follows a RequestEnd. A CrashCount may
// come anywhere between Accepted and RequestEnd.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/types/ids.h"

namespace flotilla {

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;

  bool operator==(const TopLogprob&) const = default;
};

// A token with its log-probabilities, which are natural logs over the raw logits. It is this one
// struct from the sampler to the frontend, for tokens of the output and of the prompt.
struct SampledToken {
  TokenId token = 0;
  float logprob = 0;
  std::vector<TopLogprob> top;  // best first; as many as asked for

  bool operator==(const SampledToken&) const = default;
};

enum class FinishReason : std::uint8_t {
  kStop,       // a stop token was sampled
  kLength,     // max_tokens reached
  kCancelled,  // Engine::Cancel: disconnect, stop string, abort
  kDeadline,   // the request's deadline passed
  kError,      // RequestEnd::status says why
  kMoved,      // the request was given back unharmed; the router replays it elsewhere
};

// The request passed admission and will not be refused any more.
struct Accepted {
  RequestId request;
  Attempt attempt;
  // The output tokens that its answers are expected to have in all, by which it raises
  // EngineLoad::outstanding_tokens. 0: not known.
  std::uint64_t expected_outputs = 0;

  bool operator==(const Accepted&) const = default;
};

// Log-probabilities of consecutive prompt tokens; the prompt's first token has
// none, so `first` is at least 1.
struct PromptLogprobs {
  RequestId request;
  Attempt attempt;
  std::uint32_t first = 0;           // prompt index of tokens[0]
  std::vector<SampledToken> tokens;  // the prompt's own

  bool operator==(const PromptLogprobs&) const = default;
};

struct TokenEvent {
  RequestId request;
  Attempt attempt;
  SequenceIndex sequence;
  std::uint32_t position = 0;  // index among the sequence's output tokens
  SampledToken sampled;

  bool operator==(const TokenEvent&) const = default;
};

// The worker group died while it computed this request alone, for the `count`th time. A
// router that replays the request elsewhere passes the count on
// (TokenizedRequest::crash_count).
struct CrashCount {
  RequestId request;
  Attempt attempt;
  std::uint32_t count = 0;

  bool operator==(const CrashCount&) const = default;
};

struct SequenceEnd {
  RequestId request;
  Attempt attempt;
  SequenceIndex sequence;
  FinishReason reason = FinishReason::kStop;
  std::uint32_t output_tokens = 0;  // after cancel: those the router keeps
  // The sequence's score in beam search (BeamOptions); otherwise 0.
  float score = 0;

  bool operator==(const SequenceEnd&) const = default;
};

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t output_tokens = 0;  // all sequences
  std::uint32_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  std::uint32_t preemptions = 0;
  std::uint32_t decode_preemptions = 0;  // preemptions while it decoded

  bool operator==(const Usage&) const = default;
};

struct RequestEnd {
  RequestId request;
  Attempt attempt;
  // OK also for cancelled requests. RESOURCE_EXHAUSTED: the request was refused, or workers had no
  // room for its constraint.
  absl::Status status;
  // The time after which to try again, with RESOURCE_EXHAUSTED or UNAVAILABLE.
  std::int64_t retry_after_ms = 0;
  Usage usage;
};

using EngineEvent =
    std::variant<Accepted, PromptLogprobs, TokenEvent, CrashCount, SequenceEnd, RequestEnd>;

// The request and attempt of an event.
inline std::pair<RequestId, Attempt> EventKey(const EngineEvent& event) {
  return std::visit([](const auto& e) { return std::pair(e.request, e.attempt); }, event);
}

}  // namespace flotilla
