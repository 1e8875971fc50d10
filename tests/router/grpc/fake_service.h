// FakeService: an InferenceService whose generations say exactly what a test
// makes them say. Validation is the real Validator's. A test drives a generation
// from its own thread; what it says runs on the I/O loop, as the contract asks.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "router/service.h"

namespace flotilla::router {

class FakeService final : public InferenceService {
 public:
  static constexpr char kModel[] = "fake";

  // What the frontend holds. `Running` stays for the test after it is gone.
  struct Running {
    ApiRequest api;
    std::string id;
    Dispatcher* dispatcher = nullptr;
    GenerationListener* listener = nullptr;  // I/O loop's thread; null once ended
    std::atomic<bool> destroyed = false;

    // Runs `say` on the I/O loop, unless the generation has ended.
    static void Say(std::shared_ptr<Running> self, std::function<void(GenerationListener&)> say) {
      auto* dispatcher = self->dispatcher;
      dispatcher->Post([self = std::move(self), say = std::move(say)] {
        if (self->listener != nullptr) say(*self->listener);
      });
    }
    static void End(std::shared_ptr<Running> self, GenerationEnd end) {
      auto* dispatcher = self->dispatcher;
      dispatcher->Post([self = std::move(self), end = std::move(end)] {
        if (auto* listener = std::exchange(self->listener, nullptr)) listener->OnDone(end);
      });
    }
  };

  // Waits for the next Start that a test has not taken yet.
  std::shared_ptr<Running> NextStarted() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &FakeService::HasStarted));
    auto running = started_.front();
    started_.pop_front();
    return running;
  }
  // Waits until `count` generations have been destroyed before their end.
  void AwaitAbandoned(int count) {
    absl::MutexLock lock(&mu_);
    const std::pair<FakeService*, int> arg(this, count);
    mu_.Await(absl::Condition(
        +[](const std::pair<FakeService*, int>* a) { return a->first->abandoned_ >= a->second; },
        &arg));
  }

  // What Start answers, instead of starting.
  void RefuseStart(absl::Status status) {
    absl::MutexLock lock(&mu_);
    refusal_ = std::move(status);
  }
  std::atomic<bool> ready = true;

  std::unique_ptr<IoLoop> OpenIoLoop(Dispatcher* dispatcher) override {
    return std::make_unique<FakeIoLoop>(dispatcher);
  }
  absl::StatusOr<GenerateRequest> Validate(ApiRequest api) const override {
    return Validator(RequestLimits()).Validate(std::move(api), Limits());
  }
  absl::StatusOr<std::unique_ptr<Generation>> Start(GenerateRequest request, IoLoop& io_loop,
                                                    GenerationListener* listener) override {
    absl::MutexLock lock(&mu_);
    if (!refusal_.ok()) return refusal_;
    auto running = std::make_shared<Running>();
    running->api = request.api();
    running->id = absl::StrCat("gen-", ++last_id_);
    running->dispatcher = static_cast<FakeIoLoop&>(io_loop).dispatcher;
    running->listener = listener;
    by_id_[running->id] = running;
    started_.push_back(running);
    return std::make_unique<FakeGeneration>(this, running);
  }
  bool Abort(std::string_view id) override {
    std::shared_ptr<Running> running;
    {
      absl::MutexLock lock(&mu_);
      const auto found = by_id_.find(std::string(id));
      if (found == by_id_.end()) return false;
      running = found->second;
      by_id_.erase(found);
    }
    Running::Say(running, [](GenerationListener& listener) {
      listener.OnChoiceEnd({.reason = FinishReason::kCancelled});
    });
    Running::End(running, {});
    return true;
  }
  // One token per byte; `parse_special` shows as a token 256 in front.
  void Tokenize(TokenizeRequest request, IoLoop& io_loop,
                std::function<void(absl::StatusOr<std::vector<TokenId>>)> done) override {
    absl::StatusOr<std::vector<TokenId>> result = std::vector<TokenId>();
    if (auto status = CheckModel(request.model, Limits()); !status.ok()) result = status;
    if (result.ok()) {
      if (request.add_special_tokens) result->push_back(257);
      if (request.parse_special) result->push_back(256);
      for (unsigned char byte : std::get<std::string>(request.input)) result->push_back(byte);
    }
    static_cast<FakeIoLoop&>(io_loop).dispatcher->Post([result, done] { done(result); });
  }
  void Detokenize(DetokenizeRequest request, IoLoop& io_loop,
                  std::function<void(absl::StatusOr<std::string>)> done) override {
    absl::StatusOr<std::string> result = std::string();
    if (auto status = CheckModel(request.model, Limits()); !status.ok()) result = status;
    if (result.ok()) {
      if (auto status = CheckTokenIds("tokens", request.tokens, Limits()); !status.ok()) {
        result = status;
      } else {
        for (auto token : request.tokens) result->push_back(static_cast<char>(token));
      }
    }
    static_cast<FakeIoLoop&>(io_loop).dispatcher->Post([result, done] { done(result); });
  }
  absl::Status RunOnPool(std::string_view, std::size_t, IoLoop& io_loop,
                         std::function<std::function<void()>()> work,
                         std::shared_ptr<const std::atomic<bool>>) override {
    static_cast<FakeIoLoop&>(io_loop).dispatcher->Post(work());
    return absl::OkStatus();
  }
  void AddModel(ServedModel) override {}
  std::string_view TokenBytes(std::string_view, TokenId token) const override {
    return token >= 0 && token < 256 ? std::string_view(&bytes_[token], 1) : std::string_view();
  }
  std::vector<ModelInfo> Models() const override {
    ModelInfo info{.limits = Limits(), .numerics_id = 0xF00D, .created_s = 1234};
    info.sampling = info.limits.sampling = {{"temperature", 0.5}, {"top_k", 20}};
    return {info};
  }
  bool Ready() const override { return ready; }

  static ModelLimits Limits() {
    return {.id = kModel,
            .vocab_size = 1000,
            .max_context = 4096,
            .max_sequences = 8,
            .end_tokens = {2}};
  }

 private:
  struct FakeIoLoop final : IoLoop {
    explicit FakeIoLoop(Dispatcher* d) : dispatcher(d) {}
    Dispatcher* const dispatcher;
  };
  struct FakeGeneration final : Generation {
    FakeGeneration(FakeService* s, std::shared_ptr<Running> r)
        : service(s), running(std::move(r)) {}
    ~FakeGeneration() override { service->OnDestroyed(*running); }
    void Cancel() override {}
    void Expire() override {}
    const std::string& id() const override { return running->id; }
    FakeService* const service;
    const std::shared_ptr<Running> running;
  };

  void OnDestroyed(Running& running) {
    absl::MutexLock lock(&mu_);
    by_id_.erase(running.id);
    if (std::exchange(running.listener, nullptr) != nullptr) ++abandoned_;
    running.destroyed = true;
  }
  bool HasStarted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !started_.empty(); }

  const std::string bytes_ = [] {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
    return all;
  }();
  absl::Mutex mu_;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Running>> started_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<Running>> by_id_ ABSL_GUARDED_BY(mu_);
  int last_id_ ABSL_GUARDED_BY(mu_) = 0;
  int abandoned_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace flotilla::router
