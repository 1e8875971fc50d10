#include "router/grpc/reflection.h"

#include <memory>
#include <set>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "rpc/stream.h"

namespace flotilla::router {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ErrorResponse;
using grpc::reflection::v1alpha::FileDescriptorResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// Adds a file after those that it imports, each once.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& seen,
             FileDescriptorResponse& response) {
  if (!seen.insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFile(*file.dependency(i), seen, response);
  }
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.add_file_descriptor_proto(proto.SerializeAsString());
}

void Fail(grpc::StatusCode code, const std::string& why, ServerReflectionResponse& response) {
  ErrorResponse& error = *response.mutable_error_response();
  error.set_error_code(code);
  error.set_error_message(why);
}

void DescribeFile(const FileDescriptor* file, const std::string& what,
                  ServerReflectionResponse& response) {
  if (file == nullptr) return Fail(grpc::StatusCode::NOT_FOUND, what + " is not known", response);
  std::set<const FileDescriptor*> seen;
  AddFile(*file, seen, *response.mutable_file_descriptor_response());
}

class Stream final : public rpc::ServerStream<ServerReflectionRequest, ServerReflectionResponse> {
 public:
  Stream(std::unique_ptr<Call> call, const ReflectionService* service)
      : ServerStream(std::move(call)), service_(service) {
    Begin();
  }

 private:
  bool OnMessage(const ServerReflectionRequest& request) override {
    if (waiting() >= ReflectionService::kMaxWaiting) {
      Close({grpc::StatusCode::RESOURCE_EXHAUSTED, "the answers are not read"});
      return false;
    }
    Send(service_->Answer(request));
    return true;
  }
  void OnGone() override {}

  const ReflectionService* const service_;
};

}  // namespace

ServerReflectionResponse ReflectionService::Answer(const ServerReflectionRequest& request) const {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      DescribeFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                   response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      DescribeFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                   request.file_containing_symbol(), response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const Descriptor* type = pool.FindMessageTypeByName(asked.containing_type());
      const FieldDescriptor* field =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
      DescribeFile(field == nullptr ? nullptr : field->file(), asked.containing_type(), response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      if (pool.FindMessageTypeByName(name) == nullptr) {
        Fail(grpc::StatusCode::NOT_FOUND, name + " is not known", response);
        break;
      }
      // All messages are of proto3, which has no extensions.
      response.mutable_all_extension_numbers_response()->set_base_type_name(name);
      break;
    }
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services_) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      Fail(grpc::StatusCode::INVALID_ARGUMENT, "message_request: there is none", response);
      break;
  }
  return response;
}

void ReflectionService::Attach(rpc::Server& server) {
  using Service = grpc::reflection::v1alpha::ServerReflection::AsyncService;
  server.OnStream(&grpc_service_, &Service::RequestServerReflectionInfo,
                  [this](auto call) { new Stream(std::move(call), this); });
}

}  // namespace flotilla::router
