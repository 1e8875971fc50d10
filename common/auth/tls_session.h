// TlsContext and TlsSession: the server's side of TLS 1.2 and 1.3 on an accepted connection.
//
// A context has what the connections of a port share: the certificate, its key, and whose
// certificates clients must show. A session is one connection. Its calls do what can be done
// without waiting and say what to wait for, so it needs no thread of its own. Between calls a
// session that waits holds some 20 KiB; the buffers of records are freed.
//
// A context may be used on any thread, a session on one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

struct ssl_st;
struct ssl_ctx_st;

namespace flotilla {

struct TlsContextOptions {
  std::string certificate;  // PEM: the server's own, then those between it and its authority
  std::string key;          // PEM, without a passphrase
  std::string authorities;  // PEM; empty: clients need no certificate
  std::vector<std::string> offers;  // names of protocols (ALPN); empty: whatever a client wants
};

class TlsContext {
 public:
  // INVALID_ARGUMENT: OpenSSL refuses the certificate, the key or an authority, and says why.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Create(const TlsContextOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  TlsContext() = default;

  ssl_ctx_st* context_ = nullptr;
  std::string offers_;  // as ALPN writes them
};

class TlsSession {
 public:
  enum class Result : std::uint8_t {
    kDone,
    kNeedsInput,   // call again when the socket can be read
    kNeedsOutput,  // call again when it can be written
    kEnd,          // the peer has said that it sends nothing more
    kFailed,       // the peer has gone, or has broken the protocol; it was sent an alert
  };
  struct Transfer {
    Result result = Result::kDone;
    std::size_t bytes = 0;  // more than 0 if and only if the result is kDone
  };

  // `socket` is a connected descriptor that outlives the session, which does not close it. Throws
  // std::bad_alloc.
  TlsSession(std::shared_ptr<const TlsContext> context, int socket);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // To be called until it is done, before anything else. An announced message of the peer takes
  // memory at once, up to 128 KiB, which is freed when the handshake is over.
  Result ShakeHands();
  // Reads at most a record, 16 KiB.
  Transfer Read(char* data, std::size_t size);
  // Whether Read has bytes to give without new input.
  bool HasInput() const;
  // Writes what the socket takes. After kNeedsOutput the next call must begin with the same bytes.
  Transfer Write(const char* data, std::size_t size);
  // Tells the peer that nothing more comes, unless the socket is full.
  void End();

 private:
  Result ResultOf(int returned);

  const std::shared_ptr<const TlsContext> context_;
  ssl_st* ssl_ = nullptr;
  bool ended_ = false;  // nothing may be written any more
  bool stuck_ = false;  // a record was written in part
};

}  // namespace flotilla
