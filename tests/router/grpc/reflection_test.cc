// What reflection answers. That a server has it, and where: server_test.cc.
#include "router/grpc/reflection.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "flotilla/v1/scheduler.pb.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/grpcpp.h"

namespace flotilla::router {
namespace {

using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

class ReflectionTest : public ::testing::Test {
 protected:
  // A client makes types of the files in their order: each imports only earlier ones.
  std::set<std::string> Files(const Response& response) {
    std::set<std::string> names;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      for (const std::string& import : file.dependency()) EXPECT_TRUE(names.contains(import));
      EXPECT_TRUE(names.insert(file.name()).second) << file.name() << " comes twice";
    }
    return names;
  }

  const ReflectionService service_{{"flotilla.v1.Inference", "another"}};
  Request request_;
};

TEST_F(ReflectionTest, ListsTheServicesThatItWasGiven) {
  request_.set_host("me");
  request_.set_list_services("");
  const Response response = service_.Answer(request_);
  ASSERT_EQ(response.list_services_response().service_size(), 2);
  EXPECT_EQ(response.list_services_response().service(0).name(), "flotilla.v1.Inference");
  EXPECT_EQ(response.valid_host(), "me");
  EXPECT_EQ(response.original_request().host(), "me");
}

TEST_F(ReflectionTest, SendsAFileWithAllThatItImports) {
  request_.set_file_containing_symbol("flotilla.v1.Inference.Generate");
  EXPECT_EQ(Files(service_.Answer(request_)), std::set<std::string>{"flotilla/v1/inference.proto"});
  const std::string with_imports(v1::EngineCommand::descriptor()->file()->name());
  request_.set_file_containing_symbol("flotilla.v1.EngineCommand");
  const std::set<std::string> by_symbol = Files(service_.Answer(request_));
  EXPECT_TRUE(by_symbol.contains(with_imports));
  EXPECT_GT(by_symbol.size(), 1u);
  request_.set_file_by_filename(with_imports);
  EXPECT_EQ(Files(service_.Answer(request_)), by_symbol);
}

TEST_F(ReflectionTest, KnowsExtensions) {
  request_.set_all_extension_numbers_of_type("flotilla.v1.GenerateRequest");
  const Response response = service_.Answer(request_);
  EXPECT_EQ(response.all_extension_numbers_response().base_type_name(),
            "flotilla.v1.GenerateRequest");
  EXPECT_EQ(response.all_extension_numbers_response().extension_number_size(), 0);
}

TEST_F(ReflectionTest, WhatIsNotKnownIsAnAnswerToo) {
  const auto code = [&] { return service_.Answer(request_).error_response().error_code(); };
  EXPECT_EQ(code(), grpc::StatusCode::INVALID_ARGUMENT);  // nothing was asked
  request_.set_file_containing_symbol("flotilla.v1.Nobody");
  EXPECT_EQ(code(), grpc::StatusCode::NOT_FOUND);
  request_.set_file_by_filename("../../etc/passwd");
  EXPECT_EQ(code(), grpc::StatusCode::NOT_FOUND);
  request_.set_all_extension_numbers_of_type("nobody");
  EXPECT_EQ(code(), grpc::StatusCode::NOT_FOUND);
  request_.mutable_file_containing_extension()->set_containing_type("flotilla.v1.GenerateRequest");
  request_.mutable_file_containing_extension()->set_extension_number(7);
  EXPECT_EQ(code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace flotilla::router
