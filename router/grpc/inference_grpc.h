// InferenceGrpc: the methods of flotilla.v1.Inference.
//
// Each method runs on a thread of gRPC's, never blocks there, and hands what
// takes time to the lane. Errors carry their details (proto/codec/status.h).
#pragma once

#include <memory>
#include <string>

#include "flotilla/v1/inference.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "router/grpc/generate_stream.h"
#include "rpc/server.h"

namespace flotilla {

class InferenceGrpc {
 public:
  // `shared` outlives all calls.
  explicit InferenceGrpc(const GenerateStream::Shared& shared) : shared_(shared) {}

  grpc::Service* service() { return &service_; }
  // Hears the calls of `server`, which listens with service() and stops before this goes.
  void Attach(rpc::Server& server);

 private:
  using TokenizeCall = rpc::UnaryCall<v1::TokenizeRequest, v1::TokenizeResponse>;
  using DetokenizeCall = rpc::UnaryCall<v1::DetokenizeRequest, v1::DetokenizeResponse>;
  using ModelInfoCall = rpc::UnaryCall<v1::GetModelInfoRequest, v1::GetModelInfoResponse>;

  // Each on the poller's thread.
  void Generate(std::unique_ptr<GenerateStream::Call> call);
  void Tokenize(TokenizeCall* call);
  void Detokenize(DetokenizeCall* call);
  void GetModelInfo(ModelInfoCall* call);
  // `name`, or the only model's where the client named none.
  std::string ModelName(const std::string& name) const;

  const GenerateStream::Shared& shared_;
  v1::Inference::AsyncService service_;
};

}  // namespace flotilla
