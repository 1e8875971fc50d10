// ReconnectingClient: the client of one service of a peer, with one stream to it, which is
// connected again whenever it ends.
//
// A thread of its own connects, waits for the end of the stream, and waits between attempts. A
// peer that is silent ends the stream, because connections ping (rpc/endpoint.h). Send and Call
// may be called from any thread, Send also from a handler. One handler runs at a time, without a
// lock held: for messages on the poller's thread, and for the end of a stream, after its last
// message, on the thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "rpc/credentials.h"
#include "rpc/endpoint.h"
#include "rpc/poller.h"
#include "rpc/stream.h"

namespace flotilla::rpc {

struct PeerOptions {
  std::string address;  // host:port
  // The time between two attempts to connect.
  absl::Duration retry = absl::Milliseconds(200);
  std::shared_ptr<Credentials> credentials;  // null: none are shown
  std::shared_ptr<Poller> poller;            // receives the answers; null: one for each stream
};

template <class Service, class Out, class In>
class ReconnectingClient final : private ClientStream<Out, In>::Handler {
 public:
  using Stub = typename Service::Stub;
  // The method of the stub that makes the stream.
  using Method = std::unique_ptr<grpc::ClientAsyncReaderWriter<Out, In>> (Stub::*)(
      grpc::ClientContext*, grpc::CompletionQueue*);

  // What the owner does about a stream.
  struct Handlers {
    // The peer has taken the stream. Called before its first message; may be null.
    std::function<void()> on_open = nullptr;
    // Not OK: the message is refused. The stream ends with this status, and its further messages
    // are dropped.
    std::function<absl::Status(const In&)> on_message;
    // A stream has ended, or could not be made. Not called for the stream that Stop ends.
    std::function<void(const absl::Status& why)> on_broken;
  };

  // `peer` names the other end in errors.
  ReconnectingClient(PeerOptions options, Method method, const char* peer, Handlers handlers)
      : options_(std::move(options)),
        method_(method),
        peer_(peer),
        handlers_(std::move(handlers)) {}
  ~ReconnectingClient() override { Stop(); }

  // Called once at most, and before Stop. It is no failure if nobody answers yet.
  void Start() {
    thread_ = std::thread([this] { Loop(); });
  }
  // Ends the stream. No handler runs after it returns. Not called from a handler.
  // Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      stopped_ = true;
      if (stream_ != nullptr) stream_->Cancel();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Does nothing while there is no stream.
  void Send(Out message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stream_ != nullptr) stream_->Send(std::move(message));
  }

  // Calls a method that is answered with one message, on a connection of its own, and waits for
  // the answer. UNAVAILABLE: the peer does not answer. DEADLINE_EXCEEDED: not within 10 seconds.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request = {}) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
    Response response;
    const grpc::Status status = (Connect().get()->*method)(&context, request, &response);
    if (!status.ok()) return ToAbslStatus(status);
    return response;
  }

 private:
  std::unique_ptr<Stub> Connect() const {
    return Service::NewStub(ConnectTo(options_.address, options_.credentials.get()));
  }

  void Loop() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      refused_ = absl::OkStatus();
      const std::unique_ptr<Stub> stub = Connect();
      ClientStream<Out, In> stream(options_.poller, this);
      {
        absl::MutexLock lock(&mu_);
        if (stopped_) return;
        stream_ = &stream;
      }
      stream.Begin((stub.get()->*method_)(&stream.context(), stream.queue()));
      absl::Status why = ToAbslStatus(stream.Wait());
      {
        absl::MutexLock lock(&mu_);
        stream_ = nullptr;
        if (stopped_) return;
      }
      if (why.ok()) why = absl::UnavailableError(absl::StrCat(peer_, " ended the stream"));
      if (!refused_.ok()) why = refused_;
      handlers_.on_broken(why);
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopped_), RetryDelay(why, options_.retry))) return;
    }
  }

  void OnOpen() override {
    if (handlers_.on_open) handlers_.on_open();
  }
  void OnMessage(const In& message) override {
    if (!refused_.ok()) return;
    refused_ = handlers_.on_message(message);
    if (refused_.ok()) return;
    absl::MutexLock lock(&mu_);
    stream_->Cancel();  // not null: Wait returns after the last message
  }

  const PeerOptions options_;
  const Method method_;
  const char* const peer_;
  const Handlers handlers_;
  std::thread thread_;
  // Used by the stream's callbacks, and by the thread before and after them.
  absl::Status refused_;
  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  ClientStream<Out, In>* stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // the one that runs
};

}  // namespace flotilla::rpc
