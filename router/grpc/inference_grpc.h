// InferenceGrpc: the methods of flotilla.v1.Inference.
//
// Each method runs on the poller's thread, never blocks there, and hands work that takes
// time to the I/O loop. Errors carry their details (proto/codec/status.h).
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "router/grpc/codec.h"
#include "router/grpc/generate_stream.h"
#include "router/grpc/readable.h"
#include "rpc/server.h"

namespace flotilla::router {

// The generated service, with methods that take the next call whether or not its request can
// be read. A method is identified by its index in inference.proto.
class InferenceMethods final : public v1::Inference::AsyncService {
 public:
  enum Method { kGenerate, kTokenize, kDetokenize, kGetModelInfo, kListModels, kAbort };

  template <Method kMethod, class Request, class Response>
  void RequestWriter(grpc::ServerContext* context, Readable<Request>* request,
                     grpc::ServerAsyncWriter<Response>* io, grpc::CompletionQueue* queue,
                     grpc::ServerCompletionQueue* notify_on, void* tag) {
    RequestAsyncServerStreaming(kMethod, context, request, io, queue, notify_on, tag);
  }
  template <Method kMethod, class Request, class Response>
  void RequestCall(grpc::ServerContext* context, Readable<Request>* request,
                   grpc::ServerAsyncResponseWriter<Response>* io, grpc::CompletionQueue* queue,
                   grpc::ServerCompletionQueue* notify_on, void* tag) {
    RequestAsyncUnary(kMethod, context, request, io, queue, notify_on, tag);
  }
};

class InferenceGrpc {
 public:
  // `shared` outlives all calls.
  explicit InferenceGrpc(const GenerateStream::Shared& shared) : shared_(shared) {}

  grpc::Service* service() { return &service_; }
  // Receives the calls of `server`, which listens with service() and stops before this goes.
  void Attach(rpc::Server& server);

 private:
  using TokenizeCall = rpc::UnaryCall<Readable<v1::TokenizeRequest>, v1::TokenizeResponse>;
  using DetokenizeCall = rpc::UnaryCall<Readable<v1::DetokenizeRequest>, v1::DetokenizeResponse>;
  using ModelInfoCall = rpc::UnaryCall<Readable<v1::GetModelInfoRequest>, v1::GetModelInfoResponse>;

  // Passes the calls of a unary method to `handle`, except those whose request is unreadable.
  template <InferenceMethods::Method kMethod, class Request, class Response, class Handle>
  void OnReadable(rpc::Server& server, Handle handle) {
    server.OnCall(&service_, &InferenceMethods::RequestCall<kMethod, Request, Response>,
                  [handle](rpc::UnaryCall<Readable<Request>, Response>* call) {
                    if (absl::Status status = call->request.status(); !status.ok()) {
                      return call->Finish(ToGrpcStatus(status));
                    }
                    handle(call);
                  });
  }

  // Each of these is called on the poller's thread.
  void Generate(std::unique_ptr<GenerateStream::Call> call);
  void Tokenize(TokenizeCall* call);
  void Detokenize(DetokenizeCall* call);
  void GetModelInfo(ModelInfoCall* call);
  const GenerateStream::Shared& shared_;
  InferenceMethods service_;
};

}  // namespace flotilla::router
