// PeerSocket: the socket of an HTTP connection, with or without TLS. Reads and writes look the same
// on both. Owned by its connection and used on the connection's I/O thread; handlers keep the
// connection alive, and are never called from within the call that they were given to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "common/auth/tls_session.h"

namespace flotilla::router {

class PeerSocket {
 public:
  using Error = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;
  // Error and what was read. EOF: the peer sends nothing more, but may still read.
  using OnInput = std::function<void(const Error&, std::string_view)>;
  // Error and the number of bytes that were written.
  using OnOutput = std::function<void(const Error&, std::size_t)>;
  enum class Handshake : std::uint8_t {
    kDone,
    kPlaintext,  // the peer does not speak TLS: its bytes are still to be read, without TLS
    kFailed,     // what follows is without TLS; the peer knows why
    kGone,
  };

  // `tls` null: the connection is not encrypted. Throws std::bad_alloc.
  PeerSocket(Socket socket, std::shared_ptr<const TlsContext> tls);

  // Whether ShakeHands must come first.
  bool encrypted() const { return tls_ != nullptr; }
  auto get_executor() { return socket_.get_executor(); }
  // Sets the options of a socket that sends small pieces at once.
  void Configure(int send_bytes);

  void ShakeHands(std::function<void(Handshake)> done);

  // `into` is written to right before the handler is called, so many sockets may share it.
  void Read(boost::asio::mutable_buffer into, OnInput handler);
  template <class Handler>  // as OnOutput
  void Write(boost::asio::const_buffer from, Handler handler) {
    if (tls_ != nullptr) return WriteTls(from, std::move(handler));
    socket_.async_write_some(from, std::move(handler));
  }
  // The handler gets an error, but none when the peer has reset the connection.
  template <class Handler>
  void WaitForReset(Handler handler) {
    socket_.async_wait(Socket::wait_error, std::move(handler));
  }

  // Tells the peer that nothing more comes.
  void EndOutput();
  // Ends both directions; handlers that wait get an error.
  void Close();

 private:
  // Calls `work` when the socket can be read or written, as `result` says.
  template <class Work>
  void WaitFor(TlsSession::Result result, Work work);
  void Continue(std::function<void(Handshake)> done);
  void TryRead(boost::asio::mutable_buffer into, OnInput handler);
  TlsSession::Transfer Receive(boost::asio::mutable_buffer into);
  void WriteTls(boost::asio::const_buffer from, OnOutput handler);

  Socket socket_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace flotilla::router
