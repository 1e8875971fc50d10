// SimClient: checks, event by event, that one request gets the right answer.
//
// The model is a pure function of (request, tokens so far), so every token has
// one right value, whatever the scheduler, preemptions and lost groups do.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types/event.h"
#include "common/types/request.h"

namespace flotilla::testing {

inline constexpr std::uint32_t kSimVocab = 40;

// The model: output token `index` of a sequence, by its seed; the log-probability
// of prompt token `index`; and what may follow `tokens` in beam search.
TokenId SimToken(std::uint64_t seed, std::uint32_t index);
float SimPromptLogprob(std::uint64_t seed, std::uint32_t index, TokenId token);
std::vector<TopLogprob> SimCandidates(absl::Span<const TokenId> tokens, std::uint32_t count,
                                      bool constrained);

// A sequence of a beam search.
struct SimBeam {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // by token
  float sum = 0, score = 0;
  bool stopped = false;  // by a stop token
};

class SimClient {
 public:
  explicit SimClient(TokenizedRequest request);

  const TokenizedRequest& request() const { return request_; }
  bool accepted() const { return accepted_; }
  bool ended() const { return ended_; }
  // The token at a position of the prompt and output together; not for beams.
  TokenId TokenAt(SequenceIndex sequence, std::uint32_t position) const;

  // The client asks to cancel all sequences or one. It keeps the tokens that it has so far
  // except the last `dropped`. Returns how many it keeps; for all sequences, how many it
  // keeps of the sequence that has the most.
  std::uint32_t Cancel(std::optional<SequenceIndex> sequence, std::uint32_t dropped);

  // The output tokens that the client has of a sequence.
  std::uint32_t delivered(SequenceIndex sequence) const {
    return sequences_[sequence.value()].delivered;
  }

  // A group that computes this position dies.
  void KillAt(std::uint32_t position) { kills_at_ = position; }
  std::optional<std::uint32_t> kills_at() const { return kills_at_; }
  // Every plan that opens a sequence of this request is refused.
  void Refuse() { refused_ = true; }
  bool refused() const { return refused_; }
  void OnRefused() { ++refusals_; }
  // The group died while it computed this request and, if `alone`, no other request.
  void OnGroupDied(bool alone) {
    ++deaths_;
    crashes_ += alone;
  }

  // The deaths of groups that computed this request.
  std::uint32_t deaths() const { return deaths_; }

  // Takes the next event of this request. INTERNAL: the event must not come now.
  absl::Status Take(const EngineEvent& event, std::int64_t now_ns);
  const absl::Status& status() const { return status_; }

 private:
  struct Sequence {
    std::uint64_t seed = 0;
    std::uint32_t delivered = 0;  // output tokens, including those of the prefix
    bool prefixed = false;
    std::optional<std::uint32_t> cancelled_keep;
    std::optional<FinishReason> reason;
    std::uint32_t kept = 0;
  };

  absl::Status On(const Accepted& event);
  absl::Status On(const PromptLogprobs& event);
  absl::Status On(const TokenEvent& event);
  absl::Status On(const CrashCount& event);
  absl::Status On(const SequenceEnd& event);
  absl::Status On(const RequestEnd& event);
  absl::Status CheckReason(const Sequence& sequence, FinishReason reason) const;
  absl::Status CheckBeamEnd(const SequenceEnd& event) const;
  // Whether the prompt's log-probabilities are complete, or need not be complete. They need not if
  // the client cancelled a sequence, because this may be the one that computes the prompt.
  bool PromptComplete() const;
  bool AllEnded() const;
  absl::Status Wrong(const char* what) const;

  std::uint32_t Crashes() const { return request_.crash_count + crashes_; }
  // Checks a request that failed because it kills groups, or because plans with it are refused.
  // It ran alone at two deaths, and with others at an earlier death, here or on another replica; or
  // two plans that opened it were refused.
  bool MayBeFailed() const {
    if (refusals_ >= 2) return true;
    return Crashes() >= 2 && deaths_ >= (request_.crash_count > 0 ? 1u : 3u);
  }

  const TokenizedRequest request_;
  std::vector<Sequence> sequences_;
  std::vector<SimBeam> beams_;  // the answer of a beam search
  bool no_answer_ = false;      // all beams of the search come to a dead end
  std::int64_t now_ns_ = 0;
  bool accepted_ = false;
  std::uint32_t prompt_next_ = 1;
  bool first_token_ = false;  // a token was delivered
  bool ended_ = false;
  std::optional<std::uint32_t> kills_at_;
  bool refused_ = false;
  std::uint32_t refusals_ = 0;
  std::uint32_t deaths_ = 0, crashes_ = 0;  // here
  std::uint32_t reported_crashes_;          // by the core
  absl::Status status_;
};

}  // namespace flotilla::testing
