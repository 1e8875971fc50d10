// FakeEngine: an Engine without scheduler or model, for tests of routers.
//
// What a request answers is scripted: tokens, a refusal or an error. Without a
// script the tokens of a sequence are FakeToken of its seed (SequenceSeed). All events
// come inside Submit, or in manual mode one per sequence with each Step, except that
// a beam search says all of its tokens in one. It has no clock: deadlines are
// the test's affair. Any thread may call anything.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/types/engine.h"

namespace flotilla {

// What one sequence of a request says.
struct FakeSequence {
  std::vector<TokenId> tokens;  // as in FakeAnswer
  float logprob = -0.5f;        // of each of them
  float score = 0;              // with beam search: of the sequence
  // How the sequence ends when the script is over.
  FinishReason reason = FinishReason::kStop;
};

// How one request is answered.
struct FakeAnswer {
  // Output tokens of every sequence. The request's stop rule ends them as usual; a
  // script that is over before that ends its sequence with kStop. An output prefix
  // skips as many. None: FakeToken, until the stop rule ends it.
  std::optional<std::vector<TokenId>> tokens;
  // Where sequences differ: entry i in place of `tokens` for sequence i.
  std::vector<FakeSequence> sequences;
  // Not OK: refused at the door.
  absl::Status refusal;
  std::int64_t retry_after_ms = 0;
  // Not OK: sequences end with kError in place of output token `error_at`, and the
  // request with this status.
  absl::Status error;
  std::uint32_t error_at = 0;
};

struct FakeEngineOptions {
  EngineDescription description = DefaultDescription();
  bool manual = false;
  std::string tokenizer_bytes;

  // Model "fake", vocabulary 1000, context 8192, 8 sequences, 65536 queue tokens.
  static EngineDescription DefaultDescription();
};

class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine() override;

  // The answer of the next request to be submitted without one; in order.
  void Script(FakeAnswer answer);

  // Manual: one step, which accepts (or refuses) what is new, ends what was
  // cancelled and gives every other sequence a token. False when no request is left.
  bool Step();
  // Manual: Step until all requests have ended.
  void StepAll();

  // What was submitted and cancelled so far, in order.
  std::vector<TokenizedRequest> submitted() const;
  std::vector<CancelRequest> cancelled() const;

  absl::StatusOr<EngineDescription> Describe() const override;
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override;
  void Cancel(const CancelRequest& cancel) override;
  EngineLoad Load() const override;
  absl::StatusOr<std::string> TokenizerBytes() const override;
  void Drain(std::function<void()> done) override;

 private:
  struct Sequence {
    std::uint32_t outputs = 0;  // those of the prefix included
    bool ended = false;
    std::optional<std::uint32_t> cancelled_keep;
  };
  struct Running {
    TokenizedRequest request;
    std::shared_ptr<EventSink> sink;
    FakeAnswer answer;
    std::vector<Sequence> sequences;
    bool accepted = false;
    bool failed = false;  // a sequence met the scripted error
  };

  absl::Status CheckEntry(const TokenizedRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The request's events of one step; true when it has ended.
  bool StepRequest(Running& running, std::vector<EngineEvent>& events) const;
  // Its Accepted, and the log-probabilities of its prompt if asked for.
  void Accept(const TokenizedRequest& request, std::vector<EngineEvent>& events) const;
  std::optional<FinishReason> StepSequence(const Running& running, SequenceIndex index,
                                           Sequence& sequence,
                                           std::vector<EngineEvent>& events) const;
  // Those that wait for the last request, once there is none.
  std::vector<std::function<void()>> TakeDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FakeEngineOptions options_;
  mutable absl::Mutex mu_;
  std::deque<FakeAnswer> scripts_ ABSL_GUARDED_BY(mu_);
  std::vector<TokenizedRequest> submitted_ ABSL_GUARDED_BY(mu_);
  std::vector<CancelRequest> cancelled_ ABSL_GUARDED_BY(mu_);
  std::list<Running> running_ ABSL_GUARDED_BY(mu_);  // in order of arrival
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> drained_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla
