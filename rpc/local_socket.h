// The Unix socket that stands beside a loopback port.
//
// What is sent to a loopback port goes through the whole of TCP, down and up again, on the
// sender's time; a Unix socket copies it. So a server of the fleet that listens on a
// loopback address with a port of its own also listens on a socket whose name says both,
// and who dials that address on the same host gets the socket if there is one. Names are
// of Linux's abstract namespace: seen in one network namespace, as the port is, and gone
// with the process. Anybody may take a name, so a socket counts only if the process behind
// it has this one's user. Proofs (rpc/credentials.h) are asked for on both alike.
#pragma once

#include <optional>
#include <string>

namespace flotilla::rpc {

// For gRPC to listen on, beside host:port. None: `host` is no loopback address, `port` is 0,
// or the name is taken.
std::optional<std::string> LocalSocketToListen(const std::string& host, int port);

// For gRPC to dial in place of `address`, host:port. None: no socket there that counts.
std::optional<std::string> LocalSocketToDial(const std::string& address);

}  // namespace flotilla::rpc
