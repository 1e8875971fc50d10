// InferenceGrpc: the methods of flotilla.v1.Inference.
//
// Each method runs on a thread of gRPC's, never blocks there, and hands what
// takes time to the lane. Errors carry their details (proto/codec/status.h).
#pragma once

#include <string>

#include "flotilla/v1/inference.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "router/grpc/generate_stream.h"

namespace flotilla {

class InferenceGrpc final : public v1::Inference::CallbackService {
 public:
  // `shared` outlives all calls.
  explicit InferenceGrpc(const GenerateStream::Shared& shared) : shared_(shared) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  // `name`, or the only model's where the client named none.
  std::string ModelName(const std::string& name) const;

  const GenerateStream::Shared& shared_;
};

}  // namespace flotilla
