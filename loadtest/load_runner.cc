#include "loadtest/load_runner.h"

#include <time.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "loadtest/core/prompt_text.h"

namespace flotilla::loadtest {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kMaxAnswerBytes = 1 << 20;

double ProcessorSeconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

class Runner;

// One user, who has one conversation at a time and in it one request at a time.
class User final : public ExchangeListener {
 public:
  User(Runner* runner, asio::io_context& io) : runner_(runner), timer_(io) {}
  ~User() override {
    if (exchange_ != nullptr) exchange_->Cancel();
  }

  // Begins the conversation whose first request is `index`, due at `due_ns`.
  void Begin(std::size_t index, std::int64_t due_ns);
  // The user sends nothing that is not due yet.
  void StopThinking() { timer_.cancel(); }
  // Ends the request under way, if there is one. True: there was.
  bool Cancel();

  void OnText(const std::string& text) override;
  void OnFinished(const RequestUsage& usage) override;
  void OnFailed(const std::string& reason) override;

 private:
  void SendAt(std::int64_t due_ns);
  void Send(std::int64_t due_ns);
  void Release();

  Runner* const runner_;
  asio::steady_timer timer_;  // until the user has thought
  std::shared_ptr<Exchange> exchange_;
  std::size_t index_ = 0;  // of the request in the plan
  RequestMeter meter_;
  std::vector<std::string> said_;
  std::string answer_;
};

class Runner {
 public:
  Runner(const LoadPlan& plan, Transport& transport, const LoadOptions& options, const Clock& clock)
      : plan_(plan),
        transport_(transport),
        options_(options),
        clock_(clock),
        recorder_(options.level),
        arrivals_(io_),
        ticks_(io_),
        signals_(io_, SIGINT, SIGTERM) {}

  absl::StatusOr<LoadResult> Run();

  // The time since the start.
  std::int64_t Now() const { return clock_.NowNs() - start_ns_; }
  LoadRecorder& recorder() { return recorder_; }
  const LoadPlan& plan() const { return plan_; }
  bool stopping() const { return stopping_; }
  std::shared_ptr<Exchange> Start(const std::vector<std::string>& said, std::size_t index,
                                  ExchangeListener* listener) {
    return transport_.Start(io_, said, plan_.requests[index].output_tokens, listener);
  }
  // Runs `work` from a handler of its own.
  template <class Work>
  void Post(Work work) {
    asio::post(io_, std::move(work));
  }
  // The conversation of `user` has ended.
  void OnFree(User* user);

 private:
  // The first request of the next conversation; the end of the plan if there is none.
  std::size_t NextConversation();
  void SendDue();
  void WaitForArrival();
  void WaitForSignal();
  void Tick();
  void Stop();
  void EndIfDone();

  const LoadPlan& plan_;
  Transport& transport_;
  const LoadOptions& options_;
  const Clock& clock_;
  LoadRecorder recorder_;
  asio::io_context io_{1};
  asio::steady_timer arrivals_, ticks_;
  asio::signal_set signals_;
  std::vector<std::unique_ptr<User>> users_;
  std::vector<User*> free_;
  std::deque<std::size_t> waiting_;  // conversations that are due, but for which no user is free
  std::size_t next_ = 0;             // the next conversation of the plan
  std::int64_t start_ns_ = 0;
  bool stopping_ = false;
  bool interrupted_ = false;  // by a signal
};

void User::Begin(std::size_t index, std::int64_t due_ns) {
  index_ = index;
  said_.clear();
  SendAt(due_ns);
}

void User::SendAt(std::int64_t due_ns) {
  const std::int64_t wait = due_ns - runner_->Now();
  if (wait <= 0) return Send(due_ns);
  timer_.expires_after(std::chrono::nanoseconds(wait));
  timer_.async_wait([this, due_ns](error_code error) {
    if (error || runner_->stopping()) return Release();
    Send(due_ns);
  });
}

void User::Send(std::int64_t due_ns) {
  said_.push_back(PromptText(runner_->plan(), index_));
  answer_.clear();
  meter_ = runner_->recorder().OnSent(due_ns, runner_->Now());
  exchange_ = runner_->Start(said_, index_, this);
}

bool User::Cancel() {
  if (exchange_ == nullptr) return false;
  exchange_->Cancel();
  exchange_ = nullptr;
  return true;
}

void User::OnText(const std::string& text) {
  runner_->recorder().OnToken(meter_, runner_->Now());
  // Only a next turn repeats the answer. One without an end does not fill the memory.
  if (answer_.size() < kMaxAnswerBytes) answer_ += text;
}

void User::OnFinished(const RequestUsage& usage) {
  const std::int64_t now = runner_->Now();
  runner_->recorder().OnFinished(meter_, usage, now);
  exchange_ = nullptr;
  const std::vector<PlannedRequest>& requests = runner_->plan().requests;
  if (runner_->stopping() || index_ + 1 == requests.size() || requests[index_ + 1].turn == 0) {
    return Release();
  }
  ++index_;
  said_.push_back(std::move(answer_));
  SendAt(now + requests[index_].think_ns);
}

void User::OnFailed(const std::string& reason) {
  runner_->recorder().OnFailed(reason, runner_->Now());
  exchange_ = nullptr;
  Release();
}

void User::Release() {
  runner_->Post([this] { runner_->OnFree(this); });
}

std::size_t Runner::NextConversation() {
  const std::size_t first = next_;
  if (next_ < plan_.requests.size()) ++next_;
  while (next_ < plan_.requests.size() && plan_.requests[next_].turn > 0) ++next_;
  return first;
}

void Runner::OnFree(User* user) {
  const std::int64_t now = Now();
  if (!waiting_.empty() && !stopping_) {
    const std::size_t index = waiting_.front();
    waiting_.pop_front();
    return user->Begin(index, plan_.requests[index].arrival_ns);
  }
  if (options_.duration_ns > 0 && now >= options_.duration_ns && plan_.concurrency > 0) Stop();
  if (plan_.concurrency > 0 && !stopping_ && next_ < plan_.requests.size()) {
    const std::size_t index = NextConversation();
    return user->Begin(index, now + plan_.requests[index].think_ns);
  }
  free_.push_back(user);
  EndIfDone();
}

void Runner::SendDue() {
  while (next_ < plan_.requests.size() && plan_.requests[next_].arrival_ns <= Now()) {
    const std::size_t index = NextConversation();
    if (free_.empty() && users_.size() < options_.max_in_flight) {
      free_.push_back(users_.emplace_back(std::make_unique<User>(this, io_)).get());
    }
    if (free_.empty()) {
      waiting_.push_back(index);
      continue;
    }
    User* const user = free_.back();
    free_.pop_back();
    user->Begin(index, plan_.requests[index].arrival_ns);
  }
  WaitForArrival();
}

void Runner::WaitForArrival() {
  if (next_ == plan_.requests.size()) return EndIfDone();
  arrivals_.expires_after(std::chrono::nanoseconds(plan_.requests[next_].arrival_ns - Now()));
  arrivals_.async_wait([this](error_code error) {
    if (error || stopping_) return EndIfDone();
    SendDue();
  });
}

void Runner::WaitForSignal() {
  signals_.async_wait([this](error_code error, int) {
    if (error) return;
    if (!interrupted_) {
      interrupted_ = true;
      Stop();
    } else {
      for (const std::unique_ptr<User>& user : users_) {
        if (user->Cancel()) recorder_.OnFailed("cancelled", Now());
      }
      return io_.stop();
    }
    WaitForSignal();
  });
}

void Runner::Stop() {
  stopping_ = true;
  next_ = plan_.requests.size();
  waiting_.clear();
  arrivals_.cancel();
  for (const std::unique_ptr<User>& user : users_) user->StopThinking();
  EndIfDone();
}

void Runner::EndIfDone() {
  if (free_.size() < users_.size() || !waiting_.empty() ||
      (next_ < plan_.requests.size() && !stopping_)) {
    return;
  }
  io_.stop();
}

void Runner::Tick() {
  if (options_.progress == nullptr) return;
  ticks_.expires_after(std::chrono::nanoseconds(options_.progress_every_ns));
  ticks_.async_wait([this](error_code error) {
    if (error) return;
    options_.progress({.elapsed_s = 1e-9 * static_cast<double>(Now()),
                       .planned = plan_.requests.size(),
                       .sent = recorder_.sent(),
                       .ended = recorder_.ended(),
                       .failed = recorder_.failed(),
                       .in_flight = recorder_.in_flight(),
                       .events = recorder_.events()});
    Tick();
  });
}

absl::StatusOr<LoadResult> Runner::Run() {
  if (plan_.requests.empty()) return absl::InvalidArgumentError("the plan has no requests");
  if (absl::Status s = transport_.Prepare(io_); !s.ok()) return s;
  WaitForSignal();
  const double spent = ProcessorSeconds();
  start_ns_ = clock_.NowNs();
  Tick();
  if (plan_.concurrency > 0) {
    for (std::uint32_t i = 0; i < plan_.concurrency && next_ < plan_.requests.size(); ++i) {
      User& user = *users_.emplace_back(std::make_unique<User>(this, io_));
      const std::size_t index = NextConversation();
      user.Begin(index, Now() + plan_.requests[index].think_ns);
    }
  } else {
    SendDue();
  }
  io_.run();
  users_.clear();
  transport_.Drain();
  LoadResult result = recorder_.Result();
  result.cpu_seconds = ProcessorSeconds() - spent;
  if (result.seconds > 0) result.cpu_share = result.cpu_seconds / result.seconds;
  result.offered_per_s = OfferedRate(plan_);
  result.interrupted = interrupted_;
  return result;
}

}  // namespace

absl::StatusOr<LoadResult> RunLoad(const LoadPlan& plan, Transport& transport,
                                   const LoadOptions& options, const Clock& clock) {
  return Runner(plan, transport, options, clock).Run();
}

}  // namespace flotilla::loadtest
