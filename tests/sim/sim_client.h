// SimClient: what one request must see, checked event by event.
//
// The model is a pure function of (request, output index), so every token has
// one right value, whatever the scheduler, preemptions and lost groups do.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/types/event.h"
#include "common/types/request.h"

namespace flotilla {

inline constexpr std::uint32_t kSimVocab = 40;

// The model: output token `index` of a request, and the log-probability of
// prompt token `index`.
TokenId SimToken(std::uint64_t seed, std::uint32_t index);
float SimPromptLogprob(std::uint64_t seed, std::uint32_t index, TokenId token);

class SimClient {
 public:
  explicit SimClient(TokenizedRequest request);

  const TokenizedRequest& request() const { return request_; }
  bool accepted() const { return accepted_; }
  bool ended() const { return ended_; }
  // The token at a position of prompt and output.
  TokenId TokenAt(std::uint32_t position) const;

  // The client asked to cancel. It keeps what it has so far but `dropped`.
  std::uint32_t Cancel(std::uint32_t dropped);

  // Takes the next event of this request. INTERNAL: it must not come now.
  absl::Status Take(const EngineEvent& event, std::int64_t now_ns);
  std::optional<FinishReason> reason() const { return reason_; }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status On(const Accepted& event);
  absl::Status On(const PromptLogprobs& event);
  absl::Status On(const TokenEvent& event);
  absl::Status On(const BranchEnd& event);
  absl::Status On(const RequestEnd& event);
  absl::Status CheckReason(FinishReason reason) const;
  absl::Status Wrong(const char* what) const;

  const TokenizedRequest request_;
  std::int64_t now_ns_ = 0;
  bool accepted_ = false;
  bool cancelled_ = false;
  std::uint32_t keep_ = 0;
  std::uint32_t delivered_ = 0;  // output tokens, those of the prefix included
  std::uint32_t prompt_next_ = 1;
  std::uint32_t kept_ = 0;
  std::optional<FinishReason> reason_;
  bool ended_ = false;
  absl::Status status_;
};

}  // namespace flotilla
