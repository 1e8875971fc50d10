// RequestTracker: what the router knows of one request at the Engine seam. It makes sure
// that a client gets every token exactly once, whatever happens below.
//
// It keeps the rendered prompt, the resolved parameters and, per sequence, the
// tokens received. When an engine gives the request back (FinishReason::kMoved)
// the tracker makes the submission that continues from those tokens. Events are
// keyed (attempt, sequence, position): events of older attempts, or at positions that were
// received before, are dropped. Pure: no clock, thread or text; one owner.
//
// A beam search has nothing to continue from, because its tokens come at the end, all at
// once. It is replayed from the start and cancelled as a whole, and only the engine knows
// its usage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/engine.h"
#include "common/types/event.h"
#include "common/types/request.h"

namespace flotilla::router {

class RequestTracker {
 public:
  // `request` is attempt 0 without output prefix. At most `max_attempts`
  // submissions (at least 1) are made in all.
  RequestTracker(TokenizedRequest request, std::uint32_t max_attempts);

  // The request to submit now. A replay also contains the sequences that have already ended,
  // because sequences are known by their index. The caller then sends CancelsOfEnded(). A beam
  // search is submitted without prefixes.
  TokenizedRequest Submission() const;
  std::vector<CancelRequest> CancelsOfEnded() const;

  // True for the first acceptance of all attempts.
  bool Apply(const Accepted& event);

  enum class TokenVerdict : std::uint8_t {
    kNew,   // deliver it
    kDrop,  // it was received before, or nobody wants it any more
    kGap,   // positions are missing: the engine is broken
  };
  TokenVerdict Apply(const TokenEvent& event);

  // Cuts off the positions that were received before. False: nothing is left.
  bool Apply(PromptLogprobs& event);

  // True when the sequence has now ended, so that the client must be informed. A moved
  // sequence has not ended.
  bool Apply(const SequenceEnd& event);

  enum class EndVerdict : std::uint8_t {
    kDrop,    // of an older attempt
    kFinal,   // the request is over
    kReplay,  // submit Submission() again
  };
  EndVerdict Apply(const RequestEnd& event);

  // The router ends a sequence itself (stop string, cancel); only its first `keep_tokens`
  // tokens count. Returns the cancel to send to the engine; none if the sequence was over
  // before.
  std::optional<CancelRequest> EndSequence(SequenceIndex sequence, std::uint32_t keep_tokens);

  // Ends all running sequences, each with the tokens that it has. A beam search ends with
  // one cancel that names no sequence and keeps nothing.
  std::vector<CancelRequest> EndAll();

  const RequestId& id() const { return request_.id; }
  const TokenizedRequest& request() const { return request_; }
  std::uint32_t attempts() const { return request_.attempt.value() + 1; }
  // Tokens received of a sequence.
  const std::vector<TokenId>& tokens(SequenceIndex sequence) const {
    return sequences_[sequence.value()].tokens;
  }
  // The usage that is charged: the prompt once, and the tokens that count. All other figures
  // are those that the engine reported for the attempt that ended; for a beam search, so is
  // the number of tokens.
  Usage CountedUsage(const Usage& reported) const;
  // True when an engine gave the request back and no attempt was left.
  bool exhausted() const { return exhausted_; }

 private:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::uint32_t keep = 0;  // once ended: tokens that count
    bool ended = false;
    bool moved = false;  // in the current attempt
  };

  bool Current(Attempt attempt) const { return !over_ && attempt == request_.attempt; }
  bool Valid(SequenceIndex sequence) const { return sequence.value() < sequences_.size(); }

  TokenizedRequest request_;
  const std::uint32_t max_attempts_;
  std::vector<Sequence> sequences_;
  std::uint32_t next_prompt_logprob_ = 1;
  bool accepted_ = false;
  bool over_ = false;
  bool exhausted_ = false;
};

}  // namespace flotilla::router
