// A gRPC server whose calls are received on a Poller, and the calls themselves.
//
// Example:
//
//   Server server(poller);
//   if (absl::Status status = server.Listen(options, {&service_}); !status.ok()) return status;
//   server.OnStream(&service_, &Service::RequestAttach, [](auto call) {
//     new MyStream(std::move(call));  // a ServerStream, which owns itself
//   });
//   server.OnCall(&service_, &Service::RequestGet, [](auto* call) {
//     call->response.set_value(1);
//     call->Finish(grpc::Status::OK);
//   });
//   ...
//   server.Stop(absl::ZeroDuration());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "rpc/endpoint.h"
#include "rpc/poller.h"

namespace flotilla::rpc {

// Counts the calls of a server, including those that are prepared but have not come yet.
class CallCount {
 public:
  class Held {
   public:
    explicit Held(CallCount* count) : count_(count) { count_->Add(1); }
    ~Held() { count_->Add(-1); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    CallCount* const count_;
  };
  void WaitForNone() const;

 private:
  void Add(int calls);

  mutable absl::Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

// The part that every call has. `over` reports that the call is over: it was finished, its client
// has cancelled it or is gone, or its deadline has passed. It never reports a call that has not
// begun.
struct ServerCall {
  explicit ServerCall(CallCount* count) : held(count) {}

  struct Forward final : Tag {
    void Over(bool ok) override { to->Over(ok); }
    Tag* to = nullptr;
  };
  const CallCount::Held held;  // first, so that it is destroyed after the rest
  grpc::ServerContext context;
  Forward over;
};

// A call of messages in both directions.
template <class In, class Out>
struct StreamCall final : ServerCall {
  explicit StreamCall(CallCount* count) : ServerCall(count) {
    context.AsyncNotifyWhenDone(ToQueue(&over));
  }
  grpc::ServerAsyncReaderWriter<Out, In> io{&context};
};

// A call that is answered with any number of messages.
template <class Request, class Response>
struct WriterCall final : ServerCall {
  explicit WriterCall(CallCount* count) : ServerCall(count) {
    context.AsyncNotifyWhenDone(ToQueue(&over));
  }
  Request request;
  grpc::ServerAsyncWriter<Response> io{&context};
};

// A call that is answered with one message. Owns itself.
template <class Request, class Response>
class UnaryCall final : public ServerCall, private Tag {
 public:
  using ServerCall::ServerCall;

  // Called once, from any thread. The call deletes itself some time after.
  void Finish(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);  // until gRPC has the answer
    if (status.ok()) {
      io.Finish(response, status, ToQueue(this));
    } else {
      io.FinishWithError(status, ToQueue(this));
    }
  }

  Request request;
  Response response;
  grpc::ServerAsyncResponseWriter<Response> io{&context};

 private:
  void Over(bool) override {
    { absl::MutexLock lock(&mu_); }
    delete this;
  }

  absl::Mutex mu_;
};

class Server {
 public:
  // `poller`: null for one of its own.
  explicit Server(std::shared_ptr<Poller> poller);
  // Stops, unless stopped.
  ~Server() { Stop(absl::ZeroDuration()); }

  // Listens for the fleet; called once. `services` outlive it, and are AsyncService in all their
  // methods. UNAVAILABLE: the address cannot be listened on.
  absl::Status Listen(const ListenOptions& options, const std::vector<grpc::Service*>& services);
  // Listens for others: `configure` sets keep-alives and bounds of the port.
  absl::Status Listen(const std::string& address,
                      std::shared_ptr<grpc::ServerCredentials> credentials,
                      const std::vector<grpc::Service*>& services,
                      absl::FunctionRef<void(grpc::ServerBuilder&)> configure);
  std::uint16_t port() const { return port_; }

  // These three are called after Listen, once for each method. `take` receives the method's calls
  // on the poller's thread. `request` is the method of `service` by which gRPC takes the next call.
  template <class S, class Base, class In, class Out>
  void OnStream(
      S* service,
      void (Base::*request)(grpc::ServerContext*, grpc::ServerAsyncReaderWriter<Out, In>*,
                            grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
      std::type_identity_t<std::function<void(std::unique_ptr<StreamCall<In, Out>>)>> take) {
    Accept<StreamCall<In, Out>>(
        [=, queue = poller_->queue()](StreamCall<In, Out>* call, void* tag) {
          (service->*request)(&call->context, &call->io, queue, queue, tag);
        },
        std::move(take));
  }
  template <class S, class Base, class Request, class Response>
  void OnWriter(
      S* service,
      void (Base::*request)(grpc::ServerContext*, Request*, grpc::ServerAsyncWriter<Response>*,
                            grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
      std::type_identity_t<std::function<void(std::unique_ptr<WriterCall<Request, Response>>)>>
          take) {
    Accept<WriterCall<Request, Response>>(
        [=, queue = poller_->queue()](WriterCall<Request, Response>* call, void* tag) {
          (service->*request)(&call->context, &call->request, &call->io, queue, queue, tag);
        },
        std::move(take));
  }
  template <class S, class Base, class Request, class Response>
  void OnCall(S* service,
              void (Base::*request)(grpc::ServerContext*, Request*,
                                    grpc::ServerAsyncResponseWriter<Response>*,
                                    grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
              std::type_identity_t<std::function<void(UnaryCall<Request, Response>*)>> take) {
    using Call = UnaryCall<Request, Response>;
    Accept<Call>(
        [=, queue = poller_->queue()](Call* call, void* tag) {
          (service->*request)(&call->context, &call->request, &call->io, queue, queue, tag);
        },
        [take = std::move(take)](std::unique_ptr<Call> call) { take(call.release()); });
  }

  // Takes no new calls, waits for running ones for `grace`, cancels the rest and waits until
  // all are gone. Not called on the poller's thread. Idempotent.
  void Stop(absl::Duration grace);

 private:
  // The acceptor of one method. Hands over each call and waits for the next.
  template <class Call>
  class Acceptor final : public Tag {
   public:
    Acceptor(CallCount* count, std::function<void(Call*, void*)> request,
             std::function<void(std::unique_ptr<Call>)> take)
        : count_(count), request_(std::move(request)), take_(std::move(take)) {}

    void Next() {
      call_ = std::make_unique<Call>(count_);
      Call* const call = call_.get();  // read here: request_ hands call_ to another thread
      request_(call, ToQueue(this));
    }
    void Over(bool ok) override {
      std::unique_ptr<Call> call = std::move(call_);
      if (!ok) return;  // the server stops; it and this may be gone with the last call
      Next();
      take_(std::move(call));
    }

   private:
    CallCount* const count_;
    const std::function<void(Call*, void*)> request_;
    const std::function<void(std::unique_ptr<Call>)> take_;
    std::unique_ptr<Call> call_;
  };

  template <class Call>
  void Accept(std::function<void(Call*, void*)> request,
              std::function<void(std::unique_ptr<Call>)> take) {
    auto acceptor = std::make_unique<Acceptor<Call>>(&count_, std::move(request), std::move(take));
    Acceptor<Call>* const raw = acceptor.get();
    acceptors_.push_back(
        {acceptor.release(), [](Tag* tag) { delete static_cast<Acceptor<Call>*>(tag); }});
    raw->Next();
  }

  const std::shared_ptr<Poller> poller_;
  CallCount count_;
  std::vector<std::unique_ptr<Tag, void (*)(Tag*)>> acceptors_;
  std::unique_ptr<grpc::Server> server_;  // null: not yet, or stopped
  std::uint16_t port_ = 0;
};

}  // namespace flotilla::rpc
