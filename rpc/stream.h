// The two ends of one bidirectional gRPC stream, on which messages are sent and received.
//
// One read and one write are in flight at any time; further messages wait in order. Nothing
// here bounds that queue: the protocols on top send only as much as the other end has asked
// for. Send may be called from any thread, also from the handler. The handler is called on
// the poller's thread, for one message at a time, and must not block.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/grpcpp.h"
#include "rpc/poller.h"
#include "rpc/server.h"

namespace flotilla::rpc {

// The metadata by which a server says that it has taken a stream. A call that was refused, or
// that reached no server, does not have it.
inline constexpr char kTakenMetadata[] = "flotilla-stream";

// The client's end. Lives until Wait has returned. Example:
//
//   ClientStream<Command, Event> stream(poller, &handler);
//   stream.Begin(stub->PrepareAsyncAttach(&stream.context(), stream.queue()));
//   stream.Send(command);
//   grpc::Status why = stream.Wait();
template <class Out, class In>
class ClientStream final {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // The server has taken the call. Called before the first message.
    virtual void OnOpen() {}
    virtual void OnMessage(const In& message) = 0;
  };

  // `poller`: null for one of its own. `handler` outlives it.
  ClientStream(std::shared_ptr<Poller> poller, Handler* handler)
      : poller_(SharedOrOwn(std::move(poller))), handler_(handler) {}

  grpc::ClientContext& context() { return context_; }
  grpc::CompletionQueue* queue() { return poller_->queue(); }

  // Called once, with the call made of context() and queue(). Other threads may send from then
  // on.
  void Begin(std::unique_ptr<grpc::ClientAsyncReaderWriter<Out, In>> io) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    io_ = std::move(io);
    io_->StartCall(start_.get());
  }

  // Does nothing once the stream has ended.
  void Send(Out message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    out_.push_back(std::move(message));
    if (open_ && out_.size() == 1) io_->Write(out_.front(), write_.get());
  }

  // Ends the stream from this side.
  void Cancel() { context_.TryCancel(); }

  // Waits until the stream has ended and the handler has received the last message.
  grpc::Status Wait() {
    done_.WaitForNotification();
    return status_;
  }

 private:
  void OnStart(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!ok) return Finish();
    io_->ReadInitialMetadata(metadata_.get());
  }

  void OnMetadata(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto& metadata = context_.GetServerInitialMetadata();
    if (ok && metadata.contains(kTakenMetadata)) {
      handler_->OnOpen();
      Open();
    }
    io_->Read(&in_, read_.get());
  }

  // Writes what was sent before.
  void Open() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    open_ = true;
    if (!out_.empty()) io_->Write(out_.front(), write_.get());
  }

  void OnRead(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    if (ok) {
      handler_->OnMessage(in_);
      io_->Read(&in_, read_.get());
      return;
    }
    absl::MutexLock lock(&mu_);
    Finish();
  }

  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    closed_ = true;
    if (!open_) out_.clear();
    io_->Finish(&status_, finish_.get());
  }

  void OnWrite(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    bool last = false;
    {
      absl::MutexLock lock(&mu_);
      out_.pop_front();
      if (!ok || closed_) out_.clear();
      if (!out_.empty()) io_->Write(out_.front(), write_.get());
      last = over();
    }
    if (last) done_.Notify();
  }

  void OnFinish(bool) ABSL_LOCKS_EXCLUDED(mu_) {
    bool last = false;
    {
      absl::MutexLock lock(&mu_);
      finished_ = true;
      if (!out_.empty()) context_.TryCancel();  // what is being written has nowhere to go
      last = over();
    }
    if (last) done_.Notify();
  }

  // True if nothing more will happen. The callback that sees it first ends Wait.
  bool over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return finished_ && out_.empty(); }

  const std::shared_ptr<Poller> poller_;
  Handler* const handler_;
  MemberTag<ClientStream, &ClientStream::OnStart> start_{this};
  MemberTag<ClientStream, &ClientStream::OnMetadata> metadata_{this};
  MemberTag<ClientStream, &ClientStream::OnRead> read_{this};
  MemberTag<ClientStream, &ClientStream::OnWrite> write_{this};
  MemberTag<ClientStream, &ClientStream::OnFinish> finish_{this};
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<Out, In>> io_;
  In in_;
  grpc::Status status_;
  absl::Notification done_;
  mutable absl::Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;  // the server has taken the call
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // status_ is there
  // Once the stream is open, the first message is being written.
  std::deque<Out> out_ ABSL_GUARDED_BY(mu_);
};

// The server's end. Owns itself, and is deleted after OnGone.
template <class In, class Out>
class ServerStream {
 public:
  using Call = StreamCall<In, Out>;

  // Does nothing once the stream has ended.
  void Send(Out message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_ || last_) return;
    out_.push_back(std::move(message));
    if (begun_ && out_.size() == 1) Write();
  }

  // Ends the stream with OK once all messages that were sent are written. Nothing is sent from now
  // on.
  void CloseWhenWritten() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      last_ = true;
      if (!out_.empty()) return;
    }
    Close(grpc::Status::OK);
  }

  // Ends the stream with a status; messages that still wait are not written. The first call
  // counts.
  void Close(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    ++pending_;
    call_->io.Finish(status, end_.get());
  }

 protected:
  // Called on the poller's thread, in the function that was given to Server::OnStream.
  explicit ServerStream(std::unique_ptr<Call> call) : call_(std::move(call)) {
    call_->over.to = &over_;
  }
  virtual ~ServerStream() = default;

  // The constructor of the derived class calls this last. Messages sent before wait for it.
  void Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    begun_ = true;
    pending_ += 2;
    call_->context.AddInitialMetadata(kTakenMetadata, "1");
    call_->io.SendInitialMetadata(end_.get());
    call_->io.Read(&in_, read_.get());
    if (!out_.empty()) Write();
  }

  // The number of messages that were sent and not yet taken by the transport.
  std::size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return out_.size();
  }

  // False: the stream ends, because the handler called Close.
  virtual bool OnMessage(const In& message) = 0;
  // The client is gone, or Close took effect. This is the last call, on the poller's thread; the
  // object is deleted when it returns.
  virtual void OnGone() = 0;

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++pending_;
    call_->io.Write(out_.front(), write_.get());
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

  void OnRead(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    if (ok && !closed() && OnMessage(in_)) {
      absl::MutexLock lock(&mu_);
      if (!closed_) {
        call_->io.Read(&in_, read_.get());
        return;
      }
    }
    Close(grpc::Status::OK);
    OnEnd(ok);
  }

  void OnWrite(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    bool written = false;
    {
      absl::MutexLock lock(&mu_);
      out_.pop_front();
      if (ok && !closed_ && !out_.empty()) Write();
      written = last_ && out_.empty();
    }
    if (written) Close(grpc::Status::OK);
    OnEnd(ok);
  }

  // The call is finished or the client is gone, so gRPC has nobody to write to.
  void OnOver(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      closed_ = true;
    }
    OnEnd(ok);
  }

  // One of the operations is over.
  void OnEnd(bool) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (--pending_ > 0) return;
    }
    OnGone();
    delete this;
  }

  const std::unique_ptr<Call> call_;
  MemberTag<ServerStream, &ServerStream::OnRead> read_{this};
  MemberTag<ServerStream, &ServerStream::OnWrite> write_{this};
  MemberTag<ServerStream, &ServerStream::OnOver> over_{this};
  MemberTag<ServerStream, &ServerStream::OnEnd> end_{this};
  In in_;
  mutable absl::Mutex mu_;
  int pending_ ABSL_GUARDED_BY(mu_) = 1;  // operations, one of them the call
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool last_ ABSL_GUARDED_BY(mu_) = false;    // no message follows those of out_
  std::deque<Out> out_ ABSL_GUARDED_BY(mu_);  // once it has begun, the first is being written
};

}  // namespace flotilla::rpc
