// How the fleet's processes listen and connect: addresses, keep-alives, credentials and
// message sizes, in one place for all internal services.
//
// Internal streams are long-lived and quiet at times, so both ends ping. Each end notices
// within 2 s that its peer is stopped or unreachable. The caller is the slower end: gRPC sends
// a caller's pings at least a second apart, whatever kPingAfter says, so the caller notices
// kPingTimeout after that second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "rpc/credentials.h"
#include "rpc/poller.h"

namespace flotilla::rpc {

inline constexpr absl::Duration kPingAfter = absl::Milliseconds(400);
inline constexpr absl::Duration kPingTimeout = absl::Milliseconds(800);
// The largest messages are plans of a whole prompt, results with many log-probabilities, and
// a tokenizer. A message to a server may have a quarter of this, which is the most that a
// server holds of unfinished messages (rpc/held_messages.h).
inline constexpr int kMaxMessageBytes = 64 << 20;
// The memory of a server's calls and of the bytes read for them. It is the second bound: a peer
// that holds unfinished messages is cut off far below it. Beyond it, gRPC cancels calls of any
// peer.
inline constexpr std::size_t kQuotaBytes = 128 << 20;

// "host:port", with brackets around an IPv6 address.
std::string JoinAddress(const std::string& host, int port);
// Whether only this machine can reach `host`.
bool IsLoopback(const std::string& host);

// FAILED_PRECONDITION: internal ports on `host` would admit anybody who reaches them.
absl::Status CheckExposure(const std::string& host, const Credentials& credentials);

// The same code and message. Details are dropped; DetailsOf (proto/codec/status.h) reads them.
absl::Status ToAbslStatus(const grpc::Status& status);

// How long to wait before the next connection to a peer, after a call that ended with `status`.
// After a refusal the delay is long, because only an operator can change that.
absl::Duration RetryDelay(const absl::Status& status, absl::Duration usual);

struct ListenOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;                    // 0: any free one
  std::shared_ptr<Credentials> credentials;  // null: admits anybody
  // Receives the calls of a Server (rpc/server.h); null: the server has a poller of its own.
  std::shared_ptr<Poller> poller;
};

// Bounds the resources that gRPC uses for a server's connections and calls, public or internal.
void SetQuota(grpc::ServerBuilder& builder);
// The settings that every server of the fleet is built with: keep-alives and bounds.
void ConfigureInternal(grpc::ServerBuilder& builder);
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ListenOptions& options);

// A server of `services`, and the port that it listens on. The services outlive the server;
// they run on gRPC's threads and may block them. UNAVAILABLE: the address cannot be listened on.
struct Listening {
  std::unique_ptr<grpc::Server> server;  // null: it was stopped, or never listened
  std::uint16_t port = 0;

  // Ends all calls and waits for their handlers; false: there is no server any more.
  bool Stop();
};
absl::StatusOr<Listening> Listen(const ListenOptions& options,
                                 const std::vector<grpc::Service*>& services);

// A channel with a connection of its own, which is made at the first call. After a connection
// has failed, gRPC does not try it again for a while, so a caller that retries makes a new
// channel. `credentials` null: no proofs are sent.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, Credentials* credentials);

}  // namespace flotilla::rpc
