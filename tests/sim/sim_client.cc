#include "tests/sim/sim_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_random.h"

namespace flotilla {

TokenId SimToken(std::uint64_t seed, std::uint32_t index) {
  return static_cast<TokenId>(SimMix(seed ^ (std::uint64_t{index} << 32)) % kSimVocab);
}

float SimPromptLogprob(std::uint64_t seed, std::uint32_t index, TokenId token) {
  const std::uint64_t h = SimMix(seed + index * 77u + static_cast<std::uint64_t>(token));
  return -static_cast<float>(h % 4096) / 256;
}

SimClient::SimClient(TokenizedRequest request) : request_(std::move(request)) {
  if (!request_.output_prefix.empty()) {
    delivered_ = static_cast<std::uint32_t>(request_.output_prefix[0].size());
  }
}

TokenId SimClient::TokenAt(std::uint32_t position) const {
  const auto prompt = static_cast<std::uint32_t>(request_.prompt.size());
  if (position < prompt) return request_.prompt[position];
  return SimToken(request_.sampling.seed, position - prompt);
}

std::uint32_t SimClient::Cancel(std::uint32_t dropped) {
  cancelled_ = true;
  keep_ = delivered_ - std::min(dropped, delivered_);
  return keep_;
}

absl::Status SimClient::Wrong(const char* what) const {
  return absl::InternalError(absl::StrCat("request ", request_.id.counter, ": ", what, "; ",
                                          delivered_, " tokens delivered"));
}

absl::Status SimClient::Take(const EngineEvent& event, std::int64_t now_ns) {
  now_ns_ = now_ns;
  if (ended_) return Wrong("an event after the end");
  if (EventKey(event).second != request_.attempt) return Wrong("another attempt");
  return std::visit([this](const auto& e) { return On(e); }, event);
}

absl::Status SimClient::On(const Accepted&) {
  if (accepted_) return Wrong("accepted twice");
  accepted_ = true;
  return absl::OkStatus();
}

absl::Status SimClient::On(const PromptLogprobs& event) {
  if (!accepted_ || reason_) return Wrong("prompt log-probabilities out of order");
  if (request_.logprobs.prompt_top == LogprobSpec::kOff) return Wrong("unwanted log-probabilities");
  if (event.first != prompt_next_) return Wrong("prompt log-probabilities not contiguous");
  for (const float logprob : event.chosen) {
    if (prompt_next_ >= request_.prompt.size()) return Wrong("too many log-probabilities");
    const TokenId token = request_.prompt[prompt_next_];
    if (logprob != SimPromptLogprob(request_.sampling.seed, prompt_next_, token)) {
      return Wrong("a wrong log-probability");
    }
    ++prompt_next_;
  }
  return absl::OkStatus();
}

absl::Status SimClient::On(const TokenEvent& event) {
  if (!accepted_ || reason_) return Wrong("a token out of order");
  if (event.position != delivered_) return Wrong("a token's position");
  if (event.token != SimToken(request_.sampling.seed, event.position))
    return Wrong("a wrong token");
  if (request_.logprobs.prompt_top != LogprobSpec::kOff && prompt_next_ < request_.prompt.size()) {
    return Wrong("a token before the prompt's log-probabilities");
  }
  ++delivered_;
  return absl::OkStatus();
}

absl::Status SimClient::CheckReason(FinishReason reason) const {
  const auto& stops = request_.stop.stop_tokens;
  const auto stops_at = [&](std::uint32_t index) {
    return std::binary_search(stops.begin(), stops.end(), SimToken(request_.sampling.seed, index));
  };
  for (std::uint32_t i = 0; i + 1 < delivered_; ++i) {
    if (stops_at(i)) return Wrong("went on after a stop token");
  }
  const bool complete = request_.logprobs.prompt_top == LogprobSpec::kOff ||
                        !request_.output_prefix.empty() || prompt_next_ == request_.prompt.size();
  switch (reason) {
    case FinishReason::kStop:
      if (delivered_ == 0 || !stops_at(delivered_ - 1)) return Wrong("no stop token");
      return complete ? absl::OkStatus() : Wrong("prompt log-probabilities are missing");
    case FinishReason::kLength:
      if (delivered_ != request_.stop.max_tokens) return Wrong("not at its length");
      if (delivered_ > 0 && stops_at(delivered_ - 1)) return Wrong("a stop token ended by length");
      return complete ? absl::OkStatus() : Wrong("prompt log-probabilities are missing");
    case FinishReason::kCancelled:
      return cancelled_ ? absl::OkStatus() : Wrong("cancelled by nobody");
    case FinishReason::kDeadline:
      if (!request_.deadline_ns || *request_.deadline_ns > now_ns_)
        return Wrong("before its deadline");
      return absl::OkStatus();
    case FinishReason::kError:  // a new group is too small for it
      return absl::OkStatus();
    case FinishReason::kMoved:
      break;
  }
  return Wrong("an ending that cannot be");
}

absl::Status SimClient::On(const BranchEnd& event) {
  if (!accepted_ || reason_) return Wrong("a branch end out of order");
  if (absl::Status s = CheckReason(event.reason); !s.ok()) return s;
  kept_ = event.output_tokens;
  if (kept_ != (event.reason == FinishReason::kCancelled ? keep_ : delivered_)) {
    return Wrong("the number of tokens kept");
  }
  reason_ = event.reason;
  return absl::OkStatus();
}

absl::Status SimClient::On(const RequestEnd& event) {
  ended_ = true;
  status_ = event.status;
  if (!accepted_) return event.status.ok() ? Wrong("refused without a reason") : absl::OkStatus();
  if (!reason_) return Wrong("ended before its branch");
  const bool prompt_rows = request_.logprobs.prompt_top != LogprobSpec::kOff;
  if (event.usage.cached_tokens >= request_.prompt.size() + request_.stop.max_tokens ||
      (prompt_rows && event.usage.cached_tokens > 0 && request_.prompt.size() > 1)) {
    return Wrong("cached tokens");
  }
  if (event.usage.output_tokens != kept_ || event.usage.prompt_tokens != request_.prompt.size()) {
    return Wrong("usage");
  }
  const absl::StatusCode wanted =
      *reason_ == FinishReason::kDeadline ? absl::StatusCode::kDeadlineExceeded
      : *reason_ == FinishReason::kError  ? absl::StatusCode::kResourceExhausted
                                          : absl::StatusCode::kOk;
  return event.status.code() == wanted ? absl::OkStatus() : Wrong("the status of the end");
}

}  // namespace flotilla
