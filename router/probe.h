// RouterProbe: what an InferenceService reports to metrics, as events, so that its
// code never sees a registry. Owned by main; called on I/O loop threads, several at
// once; must not block.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/types/event.h"

namespace flotilla {

class RouterProbe {
 public:
  virtual ~RouterProbe() = default;
  // A valid request begins, and is over. Each request makes one call of each.
  virtual void OnStarted() {}
  virtual void OnEnded() {}
  // A request was refused, by the validator, a queue or the engine.
  virtual void OnRefused(const absl::Status& /*status*/) {}
  // The time from Start to the first token of any choice.
  virtual void OnFirstToken(std::int64_t /*elapsed_ns*/) {}
  // The time between two deltas of one choice, divided by the tokens of the later one.
  virtual void OnInterToken(std::int64_t /*elapsed_ns*/) {}
  // A request ends early: kCancelled by its client, or kDeadline after it was accepted.
  virtual void OnCancelled(FinishReason /*why*/) {}
  // A request ended: how long it took, and what it used.
  virtual void OnFinished(std::int64_t /*elapsed_ns*/, std::uint32_t /*prompt_tokens*/,
                          std::uint32_t /*output_tokens*/) {}
  // An engine gave a request back and it is submitted again.
  virtual void OnReplayed() {}
};

}  // namespace flotilla
