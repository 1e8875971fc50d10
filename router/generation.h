// GenerationImpl: one request between the Engine seam and a frontend's listener.
//
// It turns token events into text: each token exactly once (RequestTracker), in whole
// characters (IncrementalDetokenizer), cut at stop strings (StopMatcher), and of a chat taken apart
// into content, thoughts and calls of tools (OutputParser). If the answer
// is only the best of its sequences, it holds back all of them until the last has ended:
// at most max_tokens per sequence. It lives on its I/O loop's thread and is internal to
// the router.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/text/detokenizer.h"
#include "router/core/best_of.h"
#include "router/core/request_tracker.h"
#include "router/core/stop_matcher.h"
#include "router/core/tools/output_parser.h"
#include "router/io_loop_state.h"
#include "router/metrics.h"
#include "router/service.h"

namespace flotilla::router {

// The index of generations by public id, for Abort. The service implements it; generations
// call it on I/O loop threads.
class GenerationRegistry {
 public:
  virtual ~GenerationRegistry() = default;
  virtual void Forget(const std::string& public_id) = 0;
};

class ChatPrompt;

class GenerationImpl final : public Generation {
 public:
  struct Environment {
    Engine* engine = nullptr;
    const model::Tokenizer* tokenizer = nullptr;
    const Clock* clock = nullptr;
    RouterMetrics* metrics = nullptr;  // never null
    GenerationRegistry* registry = nullptr;
    std::uint32_t max_attempts = 1;
    std::function<void(const RequestRecord&)> on_over;  // may be empty
    const ChatPrompt* chat_prompt = nullptr;
    std::shared_ptr<void> permit;  // kept as long as the generation; may be null
  };
  struct Identity {
    RequestId id;
    std::string public_id;
  };
  // `request` has everything but the prompt; its max_tokens is set as far as it is known.
  // `limits` are the model's.
  GenerationImpl(const Environment& environment, Identity identity, const ApiRequest& api,
                 TokenizedRequest request, const ModelLimits& limits,
                 std::shared_ptr<IoLoopState> io_loop, GenerationListener* listener);
  ~GenerationImpl() override;

  void Cancel() override;
  void Expire() override;
  const std::string& id() const override { return identity_.public_id; }

  // What of a request has to be encoded.
  struct Encoded {
    std::vector<TokenId> prompt;
    std::vector<std::vector<TokenId>> bad_words;
    DryBreakers dry_breakers = {};
    bool in_reasoning = false;   // the prompt ends with the begin of thoughts
    Constraint constraint = {};  // none: that of the request
    ThinkingLimit thinking = {};
    std::shared_ptr<const ArgumentTypes> argument_types = nullptr;  // of the tools
  };
  // Called when the prompt is encoded. Submits it, or ends the request on an error.
  void OnEncoded(absl::StatusOr<Encoded> encoded);
  void OnEvent(EngineEvent event);
  // Ends the generation without a call to engine or listener. No event reaches it afterwards.
  void Detach();
  // Called when all events of a step have been handled. Hands out what they brought.
  void Flush();

  // Set when nobody wants the encoded prompt any more, so that the pool can skip the job.
  const std::shared_ptr<std::atomic<bool>>& abandoned() const { return abandoned_; }

 private:
  // One sequence: a choice of the answer, or a candidate for one if fewer choices than
  // sequences come back.
  struct Choice {
    Choice(const model::Tokenizer* tokenizer, bool skip_special, bool begins_text,
           std::shared_ptr<const StopStrings> stop_strings)
        : detokenizer(tokenizer, skip_special, begins_text), stops(std::move(stop_strings)) {}
    model::IncrementalDetokenizer detokenizer;
    StopMatcher stops;
    std::unique_ptr<OutputParser> parser;  // null: all text is content
    Delta delta;                           // not yet handed out
    bool has_tool_calls = false;
    MeanLogprob score;
    std::int64_t last_token_ns = 0;
    std::optional<ChoiceEnd> end;  // sent, unless it is held back
  };

  absl::Status ResolveLength(std::size_t prompt_tokens);
  void Submit();
  void Handle(const Accepted& event);
  void Handle(PromptLogprobs event);
  void Handle(TokenEvent event);
  void Handle(const CrashCount&) {}  // a generation has one engine, so it ignores this
  void Handle(const SequenceEnd& event);
  void Handle(const RequestEnd& event);

  // Prepares for an answer to a conversation, whose prompt may end with the begin of thoughts.
  // Takes the argument types.
  void MakeParsers(Encoded& encoded);
  // The text of a token. Markers that a parser needs are text, even if control tokens are none.
  std::string TextOf(Choice& choice, TokenId token);
  // Appends text that no stop string can be part of any more to the delta.
  void Deliver(SequenceIndex sequence, std::string_view text);
  void DeliverEvents(SequenceIndex sequence, std::vector<OutputEvent> events);
  void FlushChoice(Choice& choice);
  // Appends text to a sequence's delta; ends the sequence when a stop matches, or when its first
  // call of a tool is complete and it may have no other.
  bool AddText(SequenceIndex sequence, std::string_view text);
  void EndChoice(SequenceIndex sequence, ChoiceEnd end);
  // True if the answer has fewer choices than there are sequences.
  bool HoldsBack() const { return wanted_ < choices_.size(); }
  // Hands out the best of what was held back.
  void HandOutBest();
  void Finish(absl::Status status, const Usage& usage);
  // Cancels at the engine because nobody wants the answer any more. `late`: its time is over.
  void CancelWork(bool late);
  bool TimeIsUp() const;
  // Counts that the request ends by its deadline. It counts once, however many sequences it
  // ends, and as a refusal if the request was not accepted yet.
  void CountDeadline();
  // Counts the end with `status` if that is a refusal or the deadline.
  void CountRefusal(const absl::Status& status);
  // True if each choice has ended as the client wished.
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
  const std::optional<std::int64_t> truncate_prompt_;
  const std::vector<std::string> stop_strings_;
  const std::vector<TokenId> named_stops_;  // the client's stop tokens
  const bool text_has_stop_;
  const OutputOptions output_;
  const bool includes_reasoning_;
  const std::size_t wanted_;  // choices of the answer
  const bool scored_;         // choices end with their mean log-probability
  const bool background_;
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

}  // namespace flotilla::router
