// Two ends of one bidirectional gRPC stream, as messages that are sent and received.
//
// One read and one write are in flight at any time; what is to be written waits in
// order. Nothing here bounds that queue: the protocols on top bound what they send
// by what the other end has asked for. Send may be called from any thread, also from
// the handler. The handler hears one thing at a time, on gRPC's threads, and must
// not block.
#pragma once

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/grpcpp.h"

namespace flotilla::rpc {

// The client's end. Lives until Wait has returned. Example:
//
//   ClientStream<Command, Event> stream(&handler);
//   stub->async()->Attach(&stream.context(), &stream);
//   stream.Begin();
//   stream.Send(command);
//   grpc::Status why = stream.Wait();
template <class Out, class In>
class ClientStream final : private grpc::ClientBidiReactor<Out, In> {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // The server has taken the call; before the first message.
    virtual void OnOpen() {}
    virtual void OnMessage(const In& message) = 0;
  };

  // `handler` outlives it.
  explicit ClientStream(Handler* handler) : handler_(handler) {}

  grpc::ClientContext& context() { return context_; }
  grpc::ClientBidiReactor<Out, In>* reactor() { return this; }

  // Once, after the call was made with context() and reactor(). Other threads may send
  // from then on.
  void Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    this->AddHold();  // for writes that begin outside of callbacks
    this->StartCall();
  }

  // Nothing happens once the stream has ended.
  void Send(Out message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    out_.push_back(std::move(message));
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }

  // Ends it from this side.
  void Cancel() { context_.TryCancel(); }

  // Until it has ended, and the handler has heard the last message.
  grpc::Status Wait() {
    done_.WaitForNotification();
    return status_;
  }

 private:
  // Reads begin here, so that the handler hears one thing at a time.
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) handler_->OnOpen();
    this->StartRead(&in_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      handler_->OnMessage(in_);
      this->StartRead(&in_);
      return;
    }
    absl::MutexLock lock(&mu_);
    closed_ = true;
    this->RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    out_.pop_front();
    if (ok && !closed_ && !out_.empty()) this->StartWrite(&out_.front());
  }

  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_.Notify();
  }

  Handler* const handler_;
  grpc::ClientContext context_;
  In in_;
  grpc::Status status_;
  absl::Notification done_;
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Out> out_ ABSL_GUARDED_BY(mu_);  // the first is being written
};

// The server's end; a call's reactor. Owns itself, and is gone after OnGone.
template <class In, class Out>
class ServerStream : public grpc::ServerBidiReactor<In, Out> {
 public:
  // Nothing happens once it has ended.
  void Send(Out message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    out_.push_back(std::move(message));
    if (out_.size() == 1) this->StartWrite(&out_.front());
  }

  // Ends it with a status, without what is still to be written. The first one counts.
  void Close(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    this->Finish(status);
  }

 protected:
  // In the constructor of what derives, last.
  void Begin() {
    this->StartSendInitialMetadata();
    this->StartRead(&in_);
  }

  // False: the stream is to end; Close was called.
  virtual bool OnMessage(const In& message) = 0;
  // The client is gone, or Close took effect. The last call, and of any thread: the
  // object is deleted when it returns.
  virtual void OnGone() = 0;

 private:
  void OnReadDone(bool ok) final {
    if (ok && OnMessage(in_)) {
      this->StartRead(&in_);
      return;
    }
    Close(grpc::Status::OK);
  }

  void OnWriteDone(bool ok) final {
    absl::MutexLock lock(&mu_);
    out_.pop_front();
    if (ok && !closed_ && !out_.empty()) this->StartWrite(&out_.front());
  }

  void OnCancel() final { Close(grpc::Status::CANCELLED); }

  void OnDone() final {
    OnGone();
    delete this;
  }

  In in_;
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Out> out_ ABSL_GUARDED_BY(mu_);  // the first is being written
};

}  // namespace flotilla::rpc
