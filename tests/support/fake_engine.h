// FakeEngine: an Engine without scheduler or model, for tests of routers.
//
// A test scripts the answer of a request: tokens, a refusal or an error. Without a
// script the tokens of a sequence are FakeToken of its seed (SequenceSeed). All events
// come inside Submit. In manual mode each Step brings one event per sequence, but all
// tokens of a beam search come in one Step. The engine has no clock, so tests handle
// deadlines themselves. Any thread may call anything.
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/types/engine.h"

namespace flotilla::testing {

// The answer of one sequence of a request.
struct FakeSequence {
  std::vector<TokenId> tokens;  // as in FakeAnswer
  float logprob = -0.5f;        // of each of them
  float score = 0;              // of the sequence, with beam search
  // How the sequence ends when the script is over.
  FinishReason reason = FinishReason::kStop;
};

// The answer of one request.
struct FakeAnswer {
  // The output tokens of every sequence. The request's stop rule ends a sequence as usual; if the
  // script ends earlier, the sequence ends with kStop. With an output prefix, as many tokens are
  // skipped. None: the tokens are FakeToken until the stop rule ends the sequence.
  std::optional<std::vector<TokenId>> tokens;
  // If sequences differ, entry i takes the place of `tokens` for sequence i.
  std::vector<FakeSequence> sequences;
  // Not OK: the engine refuses the request with this status.
  absl::Status refusal;
  std::int64_t retry_after_ms = 0;
  // Not OK: sequences end with kError in place of output token `error_at`, and the
  // request ends with this status.
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

  // Sets the answer of the next submitted request that has none yet, in order.
  void Script(FakeAnswer answer);

  // Whether Load says that it is ready; it is at first.
  void SetReady(bool ready);

  // Manual mode: runs one step, which accepts (or refuses) new requests, ends cancelled
  // sequences and gives every other sequence a token. False: no request is left.
  bool Step();
  // Manual mode: calls Step until all requests have ended.
  void StepAll();

  // The calls of Submit and Cancel so far, in order.
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
    std::uint32_t outputs = 0;  // including those of the prefix
    bool ended = false;
    std::optional<std::uint32_t> cancelled_keep;
  };
  struct Running {
    TokenizedRequest request;
    std::shared_ptr<EventSink> sink;
    FakeAnswer answer;
    std::vector<Sequence> sequences;
    bool accepted = false;
    bool failed = false;  // a sequence reached the scripted error
  };

  absl::Status CheckEntry(const TokenizedRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the request's events of one step. True: the request has ended.
  bool StepRequest(Running& running, std::vector<EngineEvent>& events) const;
  // Sends Accepted, and the log-probabilities of the prompt if the request asks for them.
  void Accept(const TokenizedRequest& request, std::vector<EngineEvent>& events) const;
  std::optional<FinishReason> StepSequence(const Running& running, SequenceIndex index,
                                           Sequence& sequence,
                                           std::vector<EngineEvent>& events) const;
  // Calls the callbacks that wait for the last request to end, if none is left.
  std::vector<std::function<void()>> TakeDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FakeEngineOptions options_;
  mutable absl::Mutex mu_;
  std::deque<FakeAnswer> scripts_ ABSL_GUARDED_BY(mu_);
  std::vector<TokenizedRequest> submitted_ ABSL_GUARDED_BY(mu_);
  std::vector<CancelRequest> cancelled_ ABSL_GUARDED_BY(mu_);
  std::list<Running> running_ ABSL_GUARDED_BY(mu_);  // in order of arrival
  bool ready_ ABSL_GUARDED_BY(mu_) = true;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> drained_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
