// How the fleet's processes listen and connect: addresses, keep-alives, credentials and
// message sizes, in one place for all internal services.
//
// Internal streams are long-lived and quiet at times, so both ends ping: a peer that is
// stopped or unreachable is noticed within 2 s. The caller is the slower end: gRPC sends its
// pings a second apart at least, whatever kPingAfter says, so kPingTimeout after the second.
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
// Plans of a whole prompt, results with many log-probabilities, a tokenizer.
// To a server a quarter of it, which is what it holds of unfinished ones (rpc/held_messages.h).
inline constexpr int kMaxMessageBytes = 64 << 20;
// Of a server's calls and of what was read for them. It is the second bound: who holds
// unfinished messages is cut off far below it, while gRPC beyond it cancels anybody's calls.
inline constexpr std::size_t kQuotaBytes = 128 << 20;

// "host:port", brackets around an IPv6 address.
std::string JoinAddress(const std::string& host, int port);
// Whether only this machine reaches it.
bool IsLoopback(const std::string& host);

// FAILED_PRECONDITION: internal ports on `host` would take anybody who reaches them.
absl::Status CheckExposure(const std::string& host, const Credentials& credentials);

// When to connect to a peer again after a call that ended so: who was refused comes slowly, for
// only an operator can change that.
absl::Duration RetryDelay(const absl::Status& status, absl::Duration usual);

struct ListenOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;                    // 0: any free one
  std::shared_ptr<Credentials> credentials;  // null: takes anybody
  // Where the calls of a Server (rpc/server.h) are received; null: on a poller of its own.
  std::shared_ptr<Poller> poller;
};

// Bounds what gRPC has for the server's connections and calls, public or internal.
void SetQuota(grpc::ServerBuilder& builder);
// The settings that every server of the fleet is built with: keep-alives and bounds.
void ConfigureInternal(grpc::ServerBuilder& builder);
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const ListenOptions& options);

// A server of `services`, which outlive it and have threads of gRPC's to block, and the
// port it listens on. UNAVAILABLE: the address cannot be listened on.
struct Listening {
  std::unique_ptr<grpc::Server> server;  // null: it was stopped, or never listened
  std::uint16_t port = 0;

  // Ends all calls and waits for their handlers; false: there is no server any more.
  bool Stop();
};
absl::StatusOr<Listening> Listen(const ListenOptions& options,
                                 const std::vector<grpc::Service*>& services);

// A connection of its own, made when a call is. One that could not be made is not tried
// again for a while, so who tries again connects again. `credentials`: null, no proofs.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, Credentials* credentials);

}  // namespace flotilla::rpc
