#include "router/core/request_tracker.h"

#include <algorithm>
#include <utility>

namespace flotilla::router {

RequestTracker::RequestTracker(TokenizedRequest request, std::uint32_t max_attempts)
    : request_(std::move(request)),
      max_attempts_(std::max(max_attempts, 1u)),
      sequences_(request_.sequences) {}

TokenizedRequest RequestTracker::Submission() const {
  TokenizedRequest submission = request_;
  if (request_.attempt.value() > 0 && !request_.beam) {
    for (const Sequence& sequence : sequences_) submission.output_prefix.push_back(sequence.tokens);
  }
  return submission;
}

std::vector<CancelRequest> RequestTracker::CancelsOfEnded() const {
  std::vector<CancelRequest> cancels;
  if (request_.beam) return cancels;
  for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].ended) cancels.push_back({request_.id, SequenceIndex(i), sequences_[i].keep});
  }
  return cancels;
}

bool RequestTracker::Apply(const Accepted& event) {
  if (!Current(event.attempt)) return false;
  return !std::exchange(accepted_, true);
}

RequestTracker::TokenVerdict RequestTracker::Apply(const TokenEvent& event) {
  if (!Current(event.attempt)) return TokenVerdict::kDrop;
  if (!Valid(event.sequence)) return TokenVerdict::kGap;
  Sequence& sequence = sequences_[event.sequence.value()];
  if (sequence.ended || event.position < sequence.tokens.size()) return TokenVerdict::kDrop;
  if (sequence.moved || event.position > sequence.tokens.size()) return TokenVerdict::kGap;
  sequence.tokens.push_back(event.sampled.token);
  return TokenVerdict::kNew;
}

bool RequestTracker::Apply(PromptLogprobs& event) {
  if (!Current(event.attempt)) return false;
  // Engines send log-probabilities in order. An event that begins after a gap is of no use.
  if (event.first > next_prompt_logprob_) return false;
  const std::uint32_t had = next_prompt_logprob_ - event.first;
  if (had >= event.tokens.size()) return false;
  event.tokens.erase(event.tokens.begin(), event.tokens.begin() + had);
  event.first = next_prompt_logprob_;
  const std::uint32_t wanted = static_cast<std::uint32_t>(request_.prompt.size()) - event.first;
  if (event.tokens.size() > wanted) event.tokens.resize(wanted);
  for (std::size_t i = 0; i < event.tokens.size(); ++i) {
    event.tokens[i].token = request_.prompt[event.first + i];
  }
  next_prompt_logprob_ += static_cast<std::uint32_t>(event.tokens.size());
  return !event.tokens.empty();
}

bool RequestTracker::Apply(const SequenceEnd& event) {
  if (!Current(event.attempt) || !Valid(event.sequence)) return false;
  Sequence& sequence = sequences_[event.sequence.value()];
  if (sequence.ended) return false;
  if (event.reason == FinishReason::kMoved) {
    sequence.moved = true;
    return false;
  }
  sequence.ended = true;
  sequence.keep = static_cast<std::uint32_t>(sequence.tokens.size());
  return true;
}

RequestTracker::EndVerdict RequestTracker::Apply(const RequestEnd& event) {
  if (!Current(event.attempt)) return EndVerdict::kDrop;
  const bool replay = std::any_of(sequences_.begin(), sequences_.end(),
                                  [](const Sequence& b) { return b.moved && !b.ended; });
  exhausted_ = replay && attempts() >= max_attempts_;
  if (!replay || exhausted_) {
    over_ = true;
    return EndVerdict::kFinal;
  }
  for (Sequence& sequence : sequences_) sequence.moved = false;
  request_.attempt = Attempt(request_.attempt.value() + 1);
  return EndVerdict::kReplay;
}

std::optional<CancelRequest> RequestTracker::EndSequence(SequenceIndex index,
                                                         std::uint32_t keep_tokens) {
  if (over_ || !Valid(index)) return std::nullopt;
  Sequence& sequence = sequences_[index.value()];
  if (sequence.ended) return std::nullopt;
  sequence.ended = true;
  sequence.keep = std::min(keep_tokens, static_cast<std::uint32_t>(sequence.tokens.size()));
  return CancelRequest{request_.id, index, sequence.keep};
}

std::vector<CancelRequest> RequestTracker::EndAll() {
  std::vector<CancelRequest> cancels;
  for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
    const auto have = static_cast<std::uint32_t>(sequences_[i].tokens.size());
    if (auto cancel = EndSequence(SequenceIndex(i), have)) cancels.push_back(*cancel);
  }
  if (request_.beam && !cancels.empty()) return {CancelRequest{.request = request_.id}};
  return cancels;
}

Usage RequestTracker::CountedUsage(const Usage& reported) const {
  Usage usage = reported;
  usage.prompt_tokens = static_cast<std::uint32_t>(request_.prompt.size());
  if (request_.beam) return usage;
  usage.output_tokens = 0;
  for (const Sequence& sequence : sequences_) {
    usage.output_tokens +=
        sequence.ended ? sequence.keep : static_cast<std::uint32_t>(sequence.tokens.size());
  }
  return usage;
}

}  // namespace flotilla::router
