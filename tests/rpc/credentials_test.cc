// Credentials over real connections: who gets in, who does not, and what changes when
// files do.
#include "rpc/credentials.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/support/log.h"
#include "grpcpp/generic/generic_stub.h"
#include "rpc/call_guard.h"
#include "rpc/endpoint.h"
#include "tests/support/log_lines.h"
#include "tests/support/manual_clock.h"
#include "tests/support/secret_files.h"
#include "tests/support/test_certificates.h"

namespace flotilla::rpc {
namespace {

using ::flotilla::testing::Issue;
using ::flotilla::testing::LogLines;
using ::flotilla::testing::MakeAuthority;
using ::flotilla::testing::PemPair;
using ::flotilla::testing::SecretFiles;
using grpc::StatusCode;
using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

const std::string kSecret(40, 's'), kOther(40, 'o');

// Counts what reaches it.
class Service final : public Health::Service {
 public:
  grpc::Status Check(grpc::ServerContext*, const HealthCheckRequest*,
                     HealthCheckResponse*) override {
    ++calls;
    return grpc::Status::OK;
  }
  std::atomic<int> calls = 0;
};

class CredentialsTest : public ::testing::Test {
 protected:
  // gRPC tells of each handshake that fails, as most here are to.
  static void SetUpTestSuite() {
    gpr_set_log_function([](gpr_log_func_args*) {});
  }

  CredentialsOptions Options() {
    return {.look_every = absl::Seconds(1), .clock = &clock_, .log = &log_.logger()};
  }
  std::shared_ptr<Credentials> WithSecret(const std::string& file, const std::string& text) {
    CredentialsOptions options = Options();
    options.secret_file = files_.Write(file, text);
    return Make(options);
  }
  // Files NAME.pem, NAME.key and NAME.ca.
  CredentialsOptions WriteTls(const std::string& name, const PemPair& own,
                              const std::string& authorities) {
    CredentialsOptions options = Options();
    options.tls_cert = files_.Write(name + ".pem", own.certificate);
    options.tls_key = files_.Write(name + ".key", own.key);
    options.tls_ca = files_.Write(name + ".ca", authorities);
    return options;
  }
  std::shared_ptr<Credentials> Make(const CredentialsOptions& options) {
    auto credentials = Credentials::Create(options);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return *credentials;
  }
  void Serve(std::shared_ptr<Credentials> credentials) {
    auto listening = Listen({.credentials = std::move(credentials)}, {&service_});
    ASSERT_TRUE(listening.ok()) << listening.status();
    listening_ = *std::move(listening);
    address_ = absl::StrCat("127.0.0.1:", listening_.port);
  }
  // Of a call on a new connection.
  grpc::Status Call(Credentials* credentials) { return CallOn(ConnectTo(address_, credentials)); }
  static grpc::Status CallOn(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
    HealthCheckResponse response;
    return Health::NewStub(channel)->Check(&context, {}, &response);
  }
  StatusCode CodeOf(const std::shared_ptr<Credentials>& credentials) {
    return Call(credentials.get()).error_code();
  }
  void Later() { clock_.AdvanceNs(1'000'000'000); }

  SecretFiles files_;
  LogLines log_;
  testing::ManualClock clock_;
  Service service_;
  Listening listening_;
  std::string address_;
};

TEST_F(CredentialsTest, OnlyTheSecretGetsIn) {
  Serve(WithSecret("server", kSecret));
  EXPECT_EQ(CodeOf(WithSecret("client", kSecret)), StatusCode::OK);
  EXPECT_EQ(service_.calls, 1);
  const auto wrong = WithSecret("wrong", kOther);
  for (Credentials* one : {wrong.get(), static_cast<Credentials*>(nullptr)}) {
    const grpc::Status status = Call(one);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status.error_message(), "not a member of this fleet");
  }
  EXPECT_EQ(service_.calls, 1);
}

TEST_F(CredentialsTest, MethodsThatDoNotExistAreGuardedToo) {
  Serve(WithSecret("server", kSecret));
  grpc::GenericStub stub(ConnectTo(address_, nullptr));
  for (const char* method : {"/no.Service/Method", "/", "/grpc.health.v1.Health/Watch"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << method;
  }
}

TEST_F(CredentialsTest, TheSecretMustComeOnceAndAsABearer) {
  const PemPair fleet = testing::MakeAuthority("fleet");
  CredentialsOptions both = WriteTls("server", testing::Issue(fleet, "server"), fleet.certificate);
  both.secret_file = files_.Write("secret", kSecret);
  const auto client = Make(WriteTls("client", testing::Issue(fleet, "client"), fleet.certificate));
  for (const bool tls : {false, true}) {
    Serve(tls ? Make(both) : WithSecret("server", kSecret));
    const auto code = [&](std::vector<std::string> values) {
      grpc::ClientContext context;
      for (const std::string& value : values) context.AddMetadata("authorization", value);
      HealthCheckResponse response;
      return Health::NewStub(ConnectTo(address_, tls ? client.get() : nullptr))
          ->Check(&context, {}, &response)
          .error_code();
    };
    EXPECT_EQ(code({"Bearer " + kSecret}), StatusCode::OK);
    EXPECT_EQ(code({"bearer " + kSecret}), StatusCode::OK);
    EXPECT_EQ(code({kSecret}), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code({"Basic " + kSecret}), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code({"Bearer " + kOther, "Bearer " + kSecret}), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code({"Bearer " + kSecret, "Bearer " + kSecret}), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code({"Bearer " + kSecret.substr(1)}), StatusCode::UNAUTHENTICATED);
  }
}

TEST_F(CredentialsTest, ASecretIsReplacedWithoutAPause) {
  const std::string next(40, 'n');
  Serve(WithSecret("server", kSecret));
  const auto client = WithSecret("client", kSecret);
  EXPECT_EQ(CodeOf(client), StatusCode::OK);
  const auto step = [&](const std::string& file, const std::string& text) {
    files_.Write(file, text);
    Later();
    EXPECT_EQ(CodeOf(client), StatusCode::OK);
  };
  step("server", kSecret + "\n" + next);
  step("client", next + "\n" + kSecret);
  step("server", next);
  step("client", next);
  EXPECT_EQ(CodeOf(WithSecret("late", kSecret)), StatusCode::UNAUTHENTICATED);
  // A file that is broken changes nothing.
  files_.Write("server", "short");
  Later();
  EXPECT_EQ(CodeOf(client), StatusCode::OK);
}

TEST_F(CredentialsTest, ARefusalIsLoggedOnceUntilThePeerHasAnswered) {
  Serve(WithSecret("server", kSecret));
  const auto client = WithSecret("client", kOther);
  const std::string line = "the peer refuses this process";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(CodeOf(client), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(log_.Count(line), 1);
  EXPECT_EQ(log_.Count("calls without this fleet's secret were refused"), 1);  // in 10 s
  files_.Write("client", kSecret);
  Later();
  EXPECT_EQ(CodeOf(client), StatusCode::OK);
  files_.Write("client", kOther);
  Later();
  EXPECT_EQ(CodeOf(client), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(log_.Count(line), 2);
  for (const std::string& one : log_.lines()) {
    EXPECT_EQ(one.find(kSecret), std::string::npos);
    EXPECT_EQ(one.find(kOther), std::string::npos);
  }
}

TEST_F(CredentialsTest, WhoIsRefusedComesSlowly) {
  const absl::Duration usual = absl::Milliseconds(200);
  EXPECT_EQ(RetryDelay(absl::UnavailableError(""), usual), usual);
  EXPECT_GE(RetryDelay(absl::UnauthenticatedError(""), usual), absl::Seconds(2));
}

TEST_F(CredentialsTest, OnlyCertificatesOfTheFleetGetIn) {
  const PemPair fleet = testing::MakeAuthority("fleet"), others = testing::MakeAuthority("fleet");
  Serve(Make(WriteTls("server", testing::Issue(fleet, "scheduler"), fleet.certificate)));
  EXPECT_EQ(CodeOf(Make(WriteTls("client", testing::Issue(fleet, "router"), fleet.certificate))),
            StatusCode::OK);
  EXPECT_EQ(service_.calls, 1);
  // Another authority of the same name; its member that knows ours; one with no
  // certificate of ours; plaintext.
  EXPECT_EQ(CodeOf(Make(WriteTls("a", testing::Issue(others, "router"), others.certificate))),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(Make(WriteTls("b", testing::Issue(others, "router"), fleet.certificate))),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(nullptr).error_code(), StatusCode::UNAVAILABLE);
  const auto no_certificate = grpc::SslCredentials({.pem_root_certs = fleet.certificate});
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("scheduler");
  EXPECT_EQ(CallOn(grpc::CreateCustomChannel(address_, no_certificate, arguments)).error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 1);
}

TEST_F(CredentialsTest, AClientTalksToItsOwnFleetOnly) {
  const PemPair fleet = testing::MakeAuthority("fleet"), others = testing::MakeAuthority("others");
  // A server that takes our certificates, and shows one of another authority.
  Serve(Make(WriteTls("server", testing::Issue(others, "scheduler"), fleet.certificate)));
  EXPECT_EQ(CodeOf(Make(WriteTls("client", testing::Issue(fleet, "router"), fleet.certificate))),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);
}

TEST_F(CredentialsTest, BothProofsAreAskedForWhereBothAreGiven) {
  const PemPair fleet = testing::MakeAuthority("fleet");
  const auto both = [&](const std::string& name, const std::string& secret) {
    CredentialsOptions options = WriteTls(name, testing::Issue(fleet, name), fleet.certificate);
    if (!secret.empty()) options.secret_file = files_.Write(name + ".secret", secret);
    return Make(options);
  };
  Serve(both("server", kSecret));
  EXPECT_EQ(CodeOf(both("right", kSecret)), StatusCode::OK);
  EXPECT_EQ(CodeOf(both("wrong", kOther)), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CodeOf(both("none", "")), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(service_.calls, 1);
}

TEST_F(CredentialsTest, CertificatesAreReplacedWhileItRuns) {
  const PemPair old = testing::MakeAuthority("old"), next = testing::MakeAuthority("new");
  Serve(Make(WriteTls("server", testing::Issue(old, "scheduler"), old.certificate)));
  const auto client = Make(WriteTls("client", testing::Issue(old, "router"), old.certificate));
  const auto channel = ConnectTo(address_, client.get());
  EXPECT_EQ(CallOn(channel).error_code(), StatusCode::OK);
  const auto newcomer =
      Make(WriteTls("newcomer", testing::Issue(next, "router"), next.certificate));
  EXPECT_EQ(CodeOf(newcomer), StatusCode::UNAVAILABLE);
  WriteTls("server", testing::Issue(next, "scheduler"), next.certificate);
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (CodeOf(newcomer) != StatusCode::OK) ASSERT_LT(absl::Now(), give_up);
  EXPECT_EQ(CodeOf(client), StatusCode::UNAVAILABLE);
  EXPECT_EQ(CallOn(channel).error_code(), StatusCode::OK);  // a connection that was made before
}

TEST_F(CredentialsTest, WhatABrokenCertificateDoesIsMendedByAGoodOne) {
  const PemPair fleet = testing::MakeAuthority("fleet");
  Serve(Make(WriteTls("server", testing::Issue(fleet, "scheduler"), fleet.certificate)));
  const auto client = Make(WriteTls("client", testing::Issue(fleet, "router"), fleet.certificate));
  const auto channel = ConnectTo(address_, client.get());
  const auto wait_for = [&](StatusCode code) {
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (CodeOf(client) != code && absl::Now() < give_up) {
    }
    EXPECT_EQ(CodeOf(client), code);
    EXPECT_EQ(CallOn(channel).error_code(), StatusCode::OK);  // made before
  };
  wait_for(StatusCode::OK);
  // The key of another: new connections fail.
  files_.Write("server.key", testing::Issue(fleet, "other").key);
  wait_for(StatusCode::UNAVAILABLE);
  WriteTls("server", testing::Issue(fleet, "scheduler"), fleet.certificate);
  wait_for(StatusCode::OK);
}

TEST_F(CredentialsTest, FilesAreJudgedAtTheStart) {
  const PemPair fleet = testing::MakeAuthority("fleet"), member = testing::Issue(fleet, "a");
  const auto refusal = [](const CredentialsOptions& options) {
    const auto made = Credentials::Create(options);
    return made.ok() ? std::string() : std::string(made.status().message());
  };
  CredentialsOptions options = WriteTls("x", member, fleet.certificate);
  EXPECT_EQ(refusal(options), "");
  options.tls_ca.clear();
  EXPECT_EQ(refusal(options), "--tls-cert, --tls-key and --tls-ca go together");
  options = WriteTls("x", {member.certificate, testing::Issue(fleet, "b").key}, fleet.certificate);
  EXPECT_NE(refusal(options).find("key: it is of another certificate"), std::string::npos);
  options = WriteTls("x", testing::Issue(fleet, "c", -7200, -3600), fleet.certificate);
  EXPECT_NE(refusal(options).find("certificate: it has expired"), std::string::npos);
  options = WriteTls("x", member, "nothing");
  EXPECT_NE(refusal(options).find("--tls-ca"), std::string::npos);
  options = Options();
  options.secret_file = files_.Path("none");
  EXPECT_NE(refusal(options).find("cannot open"), std::string::npos);
}

TEST_F(CredentialsTest, AnOpenPortIsForThisMachineOnly) {
  const auto open = Make(Options());
  EXPECT_FALSE(open->protect());
  EXPECT_TRUE(CheckExposure("127.0.0.1", *open).ok());
  const absl::Status refused = CheckExposure("0.0.0.0", *open);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("--insecure-internal"), absl::string_view::npos);
  EXPECT_TRUE(CheckExposure("0.0.0.0", *WithSecret("s", kSecret)).ok());
}

// What a guard is told, on both kinds of ports.
class PathGuard final : public CallGuard {
 public:
  grpc::Status Check(std::string_view path, std::string_view) override {
    return path == "/grpc.health.v1.Health/Check"
               ? grpc::Status::OK
               : grpc::Status(StatusCode::UNAUTHENTICATED, std::string(path));
  }
};

TEST_F(CredentialsTest, AGuardKnowsTheMethod) {
  const PemPair authority = testing::MakeAuthority("a"), own = testing::Issue(authority, "here");
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({own.key, own.certificate});
  const auto files = TlsFiles::Open({.certificate = files_.Write("x.pem", own.certificate),
                                     .key = files_.Write("x.key", own.key),
                                     .clock = &clock_,
                                     .log = &log_.logger()});
  ASSERT_TRUE(files.ok()) << files.status();
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("here");
  const auto guard = std::make_shared<PathGuard>();
  const auto clear = grpc::InsecureChannelCredentials();
  const auto tls = grpc::SslCredentials({.pem_root_certs = authority.certificate});
  for (const auto& [server_side, client_side] :
       {std::pair(Guarded(nullptr, guard), clear),
        std::pair(Guarded(grpc::SslServerCredentials(ssl), guard), tls),
        std::pair(GuardedPort(nullptr, guard), clear),
        std::pair(GuardedPort(files->get(), guard), tls)}) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", server_side, &port);
    builder.RegisterService(&service_);
    const auto server = builder.BuildAndStart();
    const auto channel =
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), client_side, arguments);
    EXPECT_EQ(CallOn(channel).error_code(), StatusCode::OK);
    grpc::ClientContext context;
    HealthCheckResponse response;
    const auto reader = Health::NewStub(channel)->Watch(&context, {});
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_message(), "/grpc.health.v1.Health/Watch");
  }
}

}  // namespace
}  // namespace flotilla::rpc
