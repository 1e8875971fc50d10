#include "router/http/peer_socket.h"

#include <sys/socket.h>

#include <cerrno>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

namespace flotilla::router {
namespace {

namespace asio = boost::asio;
using Result = TlsSession::Result;

// The first byte of every TLS connection: the type of a record with a part of a handshake.
constexpr char kHandshakeRecord = 0x16;

}  // namespace

PeerSocket::PeerSocket(Socket socket, std::shared_ptr<const TlsContext> tls)
    : socket_(std::move(socket)) {
  if (tls != nullptr) {
    tls_ = std::make_unique<TlsSession>(std::move(tls), socket_.native_handle());
  }
}

void PeerSocket::Configure(int send_bytes) {
  Error ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(send_bytes), ignored);
}

template <class Work>
void PeerSocket::WaitFor(Result result, Work work) {
  socket_.async_wait(result == Result::kNeedsOutput ? Socket::wait_write : Socket::wait_read,
                     [this, work = std::move(work)](Error error) mutable {
                       // By now the descriptor's number may be that of another connection.
                       if (!socket_.is_open()) error = asio::error::operation_aborted;
                       work(error);
                     });
}

void PeerSocket::ShakeHands(std::function<void(Handshake)> done) {
  WaitFor(Result::kNeedsInput, [this, done = std::move(done)](const Error& error) mutable {
    if (error) return done(Handshake::kGone);
    char first = 0;
    const ssize_t peeked = recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (peeked < 0 && (errno == EAGAIN || errno == EINTR)) return ShakeHands(std::move(done));
    if (peeked <= 0) return done(Handshake::kGone);
    if (first == kHandshakeRecord) return Continue(std::move(done));
    tls_.reset();
    done(Handshake::kPlaintext);
  });
}

void PeerSocket::Continue(std::function<void(Handshake)> done) {
  const Result result = tls_->ShakeHands();
  if (result == Result::kDone) return done(Handshake::kDone);
  if (result == Result::kEnd || result == Result::kFailed) {
    tls_.reset();
    return done(Handshake::kFailed);
  }
  WaitFor(result, [this, done = std::move(done)](const Error& error) mutable {
    if (error) return done(Handshake::kGone);
    Continue(std::move(done));
  });
}

void PeerSocket::Read(asio::mutable_buffer into, OnInput handler) {
  if (tls_ != nullptr && tls_->HasInput()) {
    asio::post(get_executor(), [this, into, handler = std::move(handler)]() mutable {
      if (!socket_.is_open()) return handler(asio::error::operation_aborted, {});
      TryRead(into, std::move(handler));
    });
    return;
  }
  WaitFor(Result::kNeedsInput, [this, into, handler = std::move(handler)](const Error& e) mutable {
    if (e) return handler(e, {});
    TryRead(into, std::move(handler));
  });
}

void PeerSocket::TryRead(asio::mutable_buffer into, OnInput handler) {
  const auto [result, bytes] = Receive(into);
  if (result == Result::kDone) return handler({}, {static_cast<const char*>(into.data()), bytes});
  if (result == Result::kEnd) return handler(asio::error::eof, {});
  if (result == Result::kFailed) return handler(asio::error::connection_reset, {});
  WaitFor(result, [this, into, handler = std::move(handler)](const Error& error) mutable {
    if (error) return handler(error, {});
    TryRead(into, std::move(handler));
  });
}

TlsSession::Transfer PeerSocket::Receive(asio::mutable_buffer into) {
  if (tls_ != nullptr) return tls_->Read(static_cast<char*>(into.data()), into.size());
  const ssize_t bytes = recv(socket_.native_handle(), into.data(), into.size(), MSG_DONTWAIT);
  if (bytes > 0) return {.result = Result::kDone, .bytes = static_cast<std::size_t>(bytes)};
  if (bytes == 0) return {.result = Result::kEnd};
  return {.result = errno == EAGAIN || errno == EINTR ? Result::kNeedsInput : Result::kFailed};
}

void PeerSocket::WriteTls(asio::const_buffer from, OnOutput handler) {
  const auto [result, bytes] = tls_->Write(static_cast<const char*>(from.data()), from.size());
  if (result == Result::kNeedsInput || result == Result::kNeedsOutput) {
    WaitFor(result, [this, from, handler = std::move(handler)](const Error& error) mutable {
      if (error) return handler(error, 0);
      WriteTls(from, std::move(handler));
    });
    return;
  }
  const Error error = result == Result::kDone ? Error() : asio::error::connection_reset;
  asio::post(get_executor(),
             [error, bytes = bytes, handler = std::move(handler)] { handler(error, bytes); });
}

void PeerSocket::EndOutput() {
  if (tls_ != nullptr) tls_->End();
  Error ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void PeerSocket::Close() {
  if (tls_ != nullptr) tls_->End();
  Error ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace flotilla::router
