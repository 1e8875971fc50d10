// The server's end of a call that is answered with any number of messages. Owns itself,
// and is gone after OnDone.
//
// Operations may be started from any thread, one at a time. Their ends are reported on the
// poller's thread, where the handlers must not block.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "rpc/poller.h"
#include "rpc/server.h"

namespace flotilla::rpc {

template <class Request, class Response>
class ServerWriter {
 public:
  using Call = WriterCall<Request, Response>;

 protected:
  // Called on the poller's thread, in the function that was given to Server::OnWriter.
  explicit ServerWriter(std::unique_ptr<Call> call) : call_(std::move(call)) {
    call_->over.to = &over_;
  }
  virtual ~ServerWriter() = default;

  const Request& request() const { return call_->request; }
  grpc::ServerContext& context() { return call_->context; }

  // One write at a time: the next one starts after OnWriteDone.
  void StartWrite(const Response& message) {
    pending_.fetch_add(1, std::memory_order_relaxed);
    call_->io.Write(message, write_.get());
  }
  // One of these two is called last, and once, also if the call was cancelled.
  void StartWriteAndFinish(const Response& message, const grpc::Status& status) {
    call_->io.WriteAndFinish(message, grpc::WriteOptions(), status, finish_.get());
  }
  void Finish(const grpc::Status& status) { call_->io.Finish(status, finish_.get()); }

  virtual void OnWriteDone(bool ok) = 0;
  // The client has cancelled the call or is gone, or the deadline has passed.
  virtual void OnCancel() = 0;
  // The call has finished, and no operation is under way. This is the last callback; the derived
  // class deletes itself in it.
  virtual void OnDone() = 0;

 private:
  void OnWrite(bool ok) {
    OnWriteDone(ok);
    OnEnd(ok);
  }
  void OnOver(bool ok) {
    if (call_->context.IsCancelled()) OnCancel();
    OnEnd(ok);
  }
  void OnEnd(bool) {
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) OnDone();
  }

  const std::unique_ptr<Call> call_;
  MemberTag<ServerWriter, &ServerWriter::OnWrite> write_{this};
  MemberTag<ServerWriter, &ServerWriter::OnEnd> finish_{this};
  MemberTag<ServerWriter, &ServerWriter::OnOver> over_{this};
  std::atomic<int> pending_{2};  // the call, its finish, and writes
};

}  // namespace flotilla::rpc
