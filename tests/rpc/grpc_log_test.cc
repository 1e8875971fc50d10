#include "rpc/grpc_log.h"

#include "grpc/support/log.h"
#include "gtest/gtest.h"

namespace flotilla::rpc {
namespace {

// Standard error gets only the failed assertion of all that gRPC logs.
TEST(GrpcLogTest, AnAssertionIsWrittenBeforeTheProcessIsAborted) {
  const GrpcLog log(nullptr);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_INFO);
  ::testing::internal::CaptureStderr();
  gpr_log("a/b.cc", 7, GPR_LOG_SEVERITY_ERROR, "%s", "no port");
  gpr_log("a/b.cc", 7, GPR_LOG_SEVERITY_INFO, "%s", "assertion failed: in passing");
  gpr_log("a/b.cc", 7, GPR_LOG_SEVERITY_ERROR, "assertion failed: %s", "x == y");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "grpc: assertion failed: x == y at b.cc:7\n");
}

}  // namespace
}  // namespace flotilla::rpc
