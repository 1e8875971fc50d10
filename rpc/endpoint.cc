#include "rpc/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/guards.h"
#include "rpc/held_messages.h"
#include "rpc/ports.h"

namespace flotilla::rpc {
namespace {

// The most bytes that gRPC reads from a connection at once, before any check. By itself it would
// read up to 4 MiB, as much as an unfinished message announces.
constexpr int kReadBytes = 64 << 10;
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kRetryRefused = absl::Seconds(2);

int Milliseconds(absl::Duration d) { return static_cast<int>(d / absl::Milliseconds(1)); }

}  // namespace

std::string JoinAddress(const std::string& host, int port) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckExposure(const std::string& host, const Credentials& credentials) {
  if (IsLoopback(host) || credentials.protect()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--host ", host,
      " lets other machines in, and nothing says which: give --fleet-secret-file, or --tls-cert, "
      "--tls-key and --tls-ca, or, if the network keeps others out, --insecure-internal"));
}

// Every code from CANCELLED to UNAUTHENTICATED has the same number in absl and gRPC.
absl::Status ToAbslStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Duration RetryDelay(const absl::Status& status, absl::Duration usual) {
  return absl::IsUnauthenticated(status) ? std::max(usual, kRetryRefused) : usual;
}

bool Listening::Stop() {
  if (server == nullptr) return false;
  server->Shutdown(absl::ToChronoTime(absl::Now()));
  server->Wait();
  server.reset();
  return true;
}

void SetQuota(grpc::ServerBuilder& builder) {
  builder.SetResourceQuota(grpc::ResourceQuota("server").Resize(kQuotaBytes));
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadBytes);
}

void ConfigureInternal(grpc::ServerBuilder& builder) {
  SetQuota(builder);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxHeldBytes));
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kPingAfter));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kPingTimeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kPingAfter) / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // any number
  // A client that connects and sends nothing is closed after this, not after gRPC's two minutes.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshake));
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ListenOptions& options) {
  return options.credentials == nullptr ? grpc::InsecureServerCredentials()
                                        : options.credentials->ForServer();
}

absl::StatusOr<Listening> Listen(const ListenOptions& options,
                                 const std::vector<grpc::Service*>& services) {
  if (absl::Status guarded = CheckGuards(); !guarded.ok()) return guarded;
  const std::string address = JoinAddress(options.host, options.port);
  grpc::ServerBuilder builder;
  ConfigureInternal(builder);
  int port = 0;
  builder.AddListeningPort(address, ServerCredentialsOf(options), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  Listening listening{.server = builder.BuildAndStart()};
  if (listening.server == nullptr || port <= 0) {
    return CannotListen(address);
  }
  listening.port = static_cast<std::uint16_t>(port);
  return listening;
}

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, Credentials* credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kPingAfter));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kPingTimeout));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The process-wide pool remembers failures, so the channel has a pool of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (credentials != nullptr) return credentials->ConnectTo(address, arguments);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace flotilla::rpc
