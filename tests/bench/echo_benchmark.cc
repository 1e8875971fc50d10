// Measures what a message costs in gRPC alone. Two processes have one stream of the fleet's kind
// between them, and each message gets an answer. scripts/bench_fleet compares the roles of a fleet
// with this cost.
//
//   echo_benchmark [bytes there, default 40] [bytes back, default 40] [messages, default 2000]
//                  [microseconds from one to the next, default 3000]
//
// Prints one line of JSON: the microseconds of processor time that a message and its answer take in
// each of the two processes, and the median round trip. Messages have the same distance as steps,
// because a process that sleeps in between pays for being woken.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "rpc/endpoint.h"
#include "rpc/server.h"
#include "rpc/stream.h"

namespace flotilla::rpc {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

constexpr int kWarmUp = 200;  // messages that are not counted

struct Load {
  std::size_t there = 40, back = 40;
  int messages = 2000;
  int gap_us = 3000;
};

double ProcessorUs() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

// Answers each message, and writes the processor time per message to `out` when all have come.
class Answering final : public ServerStream<Request, Response> {
 public:
  Answering(std::unique_ptr<Call> call, const Load& load, int out)
      : ServerStream(std::move(call)), load_(load), out_(out) {
    Begin();
  }

 private:
  bool OnMessage(const Request&) override {
    ++count_;
    if (count_ == kWarmUp) before_ = ProcessorUs();
    if (count_ == kWarmUp + load_.messages) {
      const double each = (ProcessorUs() - before_) / load_.messages;
      if (write(out_, &each, sizeof(each)) != sizeof(each)) std::abort();
    }
    Response response;
    response.set_valid_host(std::string(load_.back, 'x'));
    Send(std::move(response));
    return true;
  }
  void OnGone() override {}

  const Load load_;
  const int out_;
  int count_ = 0;
  double before_ = 0;
};

// Serves until `in` is closed. Writes its port, then what Answering writes, to `out`.
int Serve(const Load& load, int in, int out) {
  ServerReflection::AsyncService service;
  Server server(nullptr);
  if (!server.Listen(ListenOptions{}, {&service}).ok()) return 1;
  server.OnStream(&service, &ServerReflection::AsyncService::RequestServerReflectionInfo,
                  [&](auto call) { new Answering(std::move(call), load, out); });
  const int port = server.port();
  if (write(out, &port, sizeof(port)) != sizeof(port)) return 1;
  char end = 0;
  (void)!read(in, &end, 1);
  server.Stop(absl::ZeroDuration());
  return 0;
}

class Asking final : private ClientStream<Request, Response>::Handler {
 public:
  explicit Asking(int port)
      : stub_(ServerReflection::NewStub(ConnectTo(absl::StrCat("127.0.0.1:", port), nullptr))),
        stream_(nullptr, this) {
    stream_.Begin(stub_->PrepareAsyncServerReflectionInfo(&stream_.context(), stream_.queue()));
  }
  ~Asking() override {
    stream_.Cancel();
    stream_.Wait();
  }

  // Sends a message and waits for its answer.
  void Ask(const Load& load) {
    Request request;
    request.set_host(std::string(load.there, 'x'));
    stream_.Send(std::move(request));
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&answered_));
    answered_ = false;
  }

 private:
  void OnMessage(const Response&) override {
    absl::MutexLock lock(&mu_);
    answered_ = true;
  }

  absl::Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  const std::unique_ptr<ServerReflection::Stub> stub_;
  ClientStream<Request, Response> stream_;
};

int Run(const Load& load, int port, int in) {
  using Clock = std::chrono::steady_clock;
  Asking asking(port);
  std::vector<double> round_trips;
  double before = 0;
  Clock::time_point next = Clock::now();
  for (int i = 0; i < kWarmUp + load.messages; ++i) {
    if (i == kWarmUp) before = ProcessorUs();
    std::this_thread::sleep_until(next += std::chrono::microseconds(load.gap_us));
    const Clock::time_point start = Clock::now();
    asking.Ask(load);
    round_trips.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  const double asks = (ProcessorUs() - before) / load.messages;
  double answers = 0;
  if (read(in, &answers, sizeof(answers)) != sizeof(answers)) return 1;
  std::nth_element(round_trips.begin(), round_trips.begin() + round_trips.size() / 2,
                   round_trips.end());
  std::printf("{\"asks_us\": %.1f, \"answers_us\": %.1f, \"round_trip_us\": %.1f}\n", asks, answers,
              round_trips[round_trips.size() / 2]);
  return 0;
}

int Main(const Load& load) {
  int to_child[2], to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) return 1;
  const pid_t child = fork();  // before anything of gRPC
  if (child == 0) {
    close(to_child[1]);
    _exit(Serve(load, to_child[0], to_parent[1]));
  }
  int port = 0, status = 0;
  const bool up = read(to_parent[0], &port, sizeof(port)) == sizeof(port);
  const int code = up ? Run(load, port, to_parent[0]) : 1;
  close(to_child[1]);
  waitpid(child, &status, 0);
  return code != 0 ? code : WEXITSTATUS(status);
}

}  // namespace
}  // namespace flotilla::rpc

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  return flotilla::rpc::Main({.there = static_cast<std::size_t>(number(1, 40)),
                              .back = static_cast<std::size_t>(number(2, 40)),
                              .messages = std::max(1, number(3, 2000)),
                              .gap_us = std::max(0, number(4, 3000))});
}
