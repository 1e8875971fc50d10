#include "proto/codec/status.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "rpc/endpoint.h"

namespace flotilla::router {
namespace {

TEST(StatusCodec, EveryCodeSurvivesBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(rpc::ToAbslStatus(codec::ToGrpcStatus(status, {})), status);
  }
  EXPECT_TRUE(codec::ToGrpcStatus(absl::OkStatus(), {.reason = "ignored"}).ok());
  EXPECT_TRUE(rpc::ToAbslStatus(grpc::Status::OK).ok());
}

TEST(StatusCodec, DetailsSurviveBothWays) {
  const codec::ErrorDetails details{
      .reason = "model_not_found", .field = "model", .retry_after_ms = 1'234'567};
  const grpc::Status status = codec::ToGrpcStatus(absl::NotFoundError("no such model"), details);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(codec::DetailsOf(status), details);
}

TEST(StatusCodec, NoDetailsMeansNoTrailer) {
  EXPECT_EQ(codec::ToGrpcStatus(absl::InternalError("x"), {}).error_details(), "");
  EXPECT_EQ(codec::DetailsOf(grpc::Status(grpc::StatusCode::INTERNAL, "x")), codec::ErrorDetails());
}

// What other languages' helpers expect to find.
TEST(StatusCodec, IsAGoogleRpcStatus) {
  const grpc::Status status =
      codec::ToGrpcStatus(absl::ResourceExhaustedError("full"), {.retry_after_ms = 2500});
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(status.error_details()));
  EXPECT_EQ(rich.code(), 8);
  EXPECT_EQ(rich.message(), "full");
  ASSERT_EQ(rich.details_size(), 1);
  EXPECT_EQ(rich.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(rich.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
}

TEST(StatusCodec, HostileDetailsAreIgnored) {
  EXPECT_EQ(
      codec::DetailsOf(grpc::Status(grpc::StatusCode::INTERNAL, "x", "\xff\xff not a message")),
      codec::ErrorDetails());
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(INT64_MAX);
  google::rpc::Status rich;
  rich.add_details()->PackFrom(retry);
  EXPECT_EQ(
      codec::DetailsOf(grpc::Status(grpc::StatusCode::INTERNAL, "x", rich.SerializeAsString())),
      codec::ErrorDetails());
}

}  // namespace
}  // namespace flotilla::router
