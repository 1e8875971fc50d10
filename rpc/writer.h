// The server's end of a call that is answered with any number of messages. Owns itself,
// and is gone after OnDone.
//
// What it starts may come from any thread, one thing at a time; what is over it receives on
// the poller's thread, where it must not block.
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
  // On the poller's thread, in what Server::OnWriter was told to do.
  explicit ServerWriter(std::unique_ptr<Call> call) : call_(std::move(call)) {
    call_->over.to = &over_;
  }
  virtual ~ServerWriter() = default;

  const Request& request() const { return call_->request; }
  grpc::ServerContext& context() { return call_->context; }

  // One at a time: the next after OnWriteDone.
  void StartWrite(const Response& message) {
    pending_.fetch_add(1, std::memory_order_relaxed);
    call_->io.Write(message, write_.get());
  }
  // The last, one of them and once; also when it was cancelled.
  void StartWriteAndFinish(const Response& message, const grpc::Status& status) {
    call_->io.WriteAndFinish(message, grpc::WriteOptions(), status, finish_.get());
  }
  void Finish(const grpc::Status& status) { call_->io.Finish(status, finish_.get()); }

  virtual void OnWriteDone(bool ok) = 0;
  // The client has cancelled it or is gone, or its deadline has passed.
  virtual void OnCancel() = 0;
  // It has finished, and nothing is under way. The last call: who derives deletes itself.
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
