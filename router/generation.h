// GenerationImpl: one request between the Engine seam and a frontend's listener.
// It turns token events into text: exactly once (RequestTracker), whole
// characters (IncrementalDetokenizer), cut at stop strings (StopMatcher). Where
// only the best of its sequences are the answer, all is held back until the last
// of them has ended: at most max_tokens per sequence. Lives on its I/O loop's thread.
// Internal to the router.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/detokenizer.h"
#include "router/core/best_of.h"
#include "router/core/request_tracker.h"
#include "router/core/stop_matcher.h"
#include "router/io_loop_state.h"
#include "router/probe.h"
#include "router/service.h"

namespace flotilla {

// Where generations are found by public id, for Abort. Implemented by the
// service; called on I/O loop threads.
class GenerationRegistry {
 public:
  virtual ~GenerationRegistry() = default;
  virtual void Forget(const std::string& public_id) = 0;
};

class GenerationImpl final : public Generation {
 public:
  struct Environment {
    Engine* engine = nullptr;
    const Tokenizer* tokenizer = nullptr;
    const Clock* clock = nullptr;
    RouterProbe* probe = nullptr;  // never null
    GenerationRegistry* registry = nullptr;
    std::uint32_t max_attempts = 1;
    std::function<void(const RequestRecord&)> on_over;  // may be empty
  };
  struct Identity {
    RequestId id;
    std::string public_id;
  };
  // `request` has everything but the prompt, and max_tokens as far as it is
  // known. `limits` are the model's.
  GenerationImpl(const Environment& environment, Identity identity, const ApiRequest& api,
                 TokenizedRequest request, const ModelLimits& limits,
                 std::shared_ptr<IoLoopState> io_loop, GenerationListener* listener);
  ~GenerationImpl() override;

  void Cancel() override;
  void Expire() override;
  const std::string& id() const override { return identity_.public_id; }

  // The prompt is encoded: submits it, or ends the request.
  void OnEncoded(absl::StatusOr<std::vector<TokenId>> prompt);
  void OnEvent(EngineEvent event);
  // Ends it without a word to engine or listener: nothing reaches it any more.
  void Detach();
  // The step's events are all in: hands out what they brought.
  void Flush();

  // Set when nobody wants the prompt any more, so that the pool can skip it.
  const std::shared_ptr<std::atomic<bool>>& abandoned() const { return abandoned_; }

 private:
  // One sequence: a choice of the answer, or where fewer than all come back a
  // candidate for one.
  struct Choice {
    Choice(const Tokenizer* tokenizer, const std::vector<std::string>& stop_strings)
        : detokenizer(tokenizer), stops(stop_strings) {}
    IncrementalDetokenizer detokenizer;
    StopMatcher stops;
    Delta delta;  // not yet handed out
    MeanLogprob score;
    std::int64_t last_token_ns = 0;
    std::optional<ChoiceEnd> end;  // sent, unless it is held back
  };

  absl::Status ResolveLength(std::size_t prompt_tokens);
  void Submit();
  void Handle(const Accepted& event);
  void Handle(PromptLogprobs event);
  void Handle(TokenEvent event);
  void Handle(const CrashCount&) {}  // of an engine in this process: there is no other
  void Handle(const SequenceEnd& event);
  void Handle(const RequestEnd& event);

  void FlushChoice(Choice& choice);
  // Appends text to a sequence's delta; ends the sequence when a stop matches.
  bool AddText(SequenceIndex sequence, std::string_view text);
  void EndChoice(SequenceIndex sequence, ChoiceEnd end);
  // True where the answer is fewer choices than there are sequences.
  bool HoldsBack() const { return wanted_ < choices_.size(); }
  // Hands out the best of what was held back.
  void HandOutBest();
  void Finish(absl::Status status, const Usage& usage);
  // Nobody wants the answer any more: cancels at the engine. `late`: because its time was over.
  void CancelWork(bool late);
  bool TimeIsUp() const;
  // The request ends by its deadline, which counts once, however many sequences it ends: as
  // a refusal until it was accepted.
  void CountDeadline();
  // Counts the end with `status` where that is a refusal or the deadline.
  void CountRefusal(const absl::Status& status);
  // Each has ended as the client wished.
  bool AllChoicesAreWhole() const;
  void CountFirstToken();
  // Notifies on_over.
  void NotifyEnd(const absl::Status& status, const Usage& usage) const;
  bool IsStopToken(TokenId token) const;

  const Environment environment_;
  const Identity identity_;
  const ModelLimits limits_;
  const std::shared_ptr<IoLoopState> io_loop_;
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  const std::int64_t start_ns_;
  const std::optional<std::int64_t> max_tokens_;
  const std::optional<std::uint32_t> default_max_tokens_;
  const std::vector<std::string> stop_strings_;
  const std::size_t wanted_;  // choices of the answer
  const bool scored_;         // choices end with their mean log-probability
  const std::uint64_t parent_span_;
  GenerationListener* const listener_;

  TokenizedRequest request_;                    // until it is submitted
  std::optional<RequestTracker> tracker_;       // from then on
  std::vector<Choice> choices_;                 // [sequences]
  std::optional<std::int64_t> first_token_ns_;  // since the start
  bool accepted_ = false;
  bool missed_deadline_ = false;
  bool cancelled_ = false;
  bool done_ = false;
};

}  // namespace flotilla
