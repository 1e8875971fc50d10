// Connection: HTTP/1.1 on one socket. A RequestReader (router/http/request_reader.h) reads
// requests within bounds. The connection hands them to a handler one at a time, and writes
// answers with one write in flight.
//
// A body that an HttpUpload takes is passed on in pieces, and not read while the upload is busy.
// Otherwise a read is always pending while fewer than `pipelined_bytes` wait, so that a
// disconnect is seen, and the exchange destroyed, while an answer is generated.
// A peer that has closed its sending side may still read, so it gets its answer. The connection
// also sends it an interim answer of a few bytes; a peer that has gone replies with a reset.
// One deadline timer cuts off a slow peer, which never slows others. If an allocation fails,
// only the connection that it was for ends. Pending operations keep the connection alive; it
// lives on one I/O thread. If the socket has TLS, a handshake comes first, within the time for a
// request's head.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/intrusive/list.hpp>

#include "router/http/exchange.h"
#include "router/http/memory_budget.h"
#include "router/http/peer_socket.h"
#include "router/http/request_reader.h"
#include "router/http/server.h"

namespace flotilla::router {

struct ConnectionLists;

// The state that the connections of one I/O thread share. It outlives them.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual HttpHandler& handler() = 0;
  virtual const HttpLimits& limits() const = 0;
  virtual MemoryBudget& body_memory() = 0;
  virtual ConnectionLists& lists() = 0;
  // Cuts off the slowest body that holds memory of the budget. False: none is slow, or the
  // slowest is that of `asking`.
  virtual bool MakeRoomForBody(const class Connection* asking) = 0;
  // What a read goes into, which is used up before the next one.
  virtual boost::asio::mutable_buffer chunk() = 0;
  // A connection holds so many bytes more that are not sent. May close slow connections.
  virtual void OnUnsent(std::int64_t change) = 0;
  // See HttpServerOptions::tenant_header.
  virtual const std::string& tenant_header() const = 0;
  // True: finish the running request, then close.
  virtual bool stopping() const = 0;
  virtual std::string NewRequestId() = 0;
  // A TLS handshake is over; false: it failed.
  virtual void OnHandshake(bool done) = 0;
  // The connection is closed; called once.
  virtual void OnClosed(Connection* connection) = 0;
};

// When a connection is destroyed, it leaves the list that it is in.
using ConnectionHook =
    boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;

class Connection final : public HttpReply,
                         public HttpBodySource,
                         public std::enable_shared_from_this<Connection>,
                         public ConnectionHook {
 public:
  // `tls` null: the connection is not encrypted.
  Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<const TlsContext> tls,
             ConnectionOwner* owner);

  void Start();
  // Answers `status` without reading a request and closes, because there are too many
  // connections. With TLS it only closes.
  void Reject(int status, std::string body);
  // Closes now if no request runs, else after its answer.
  void Drain();
  // Closes now; a running request is cancelled.
  void Close();
  // Answers 408 and closes, because the slow body holds memory that others need.
  void RefuseSlowBody();
  bool holds_body_memory() const { return reader_.has_value() && reader_->charged(); }
  // Bytes that it holds of answers.
  std::size_t unsent_bytes() const { return counted_; }
  // Whether its peer has taken them slowly, as HttpLimits says, and for some time.
  bool TakesSlowly() const;
  // Whether Reject was called.
  bool refused() const { return refused_; }
  // Since when it has been in the list of ConnectionLists that it is in.
  std::chrono::steady_clock::time_point since() const { return since_; }

  // The methods of HttpReply, which the handler calls.
  void Send(int status, std::string_view content_type, std::string body,
            const HttpHeaders& headers) override;
  void Begin(int status, std::string_view content_type, const HttpHeaders& headers) override;
  void Write(std::string_view text) override;
  void End() override;
  void Fail() override;

  // The methods of HttpBodySource, which an upload calls.
  void ResumeBody() override;
  void RefuseBody(HttpRefusal refusal) override;

 private:
  enum class State : std::uint8_t {
    kHandshaking,  // TLS begins
    kIdle,         // between requests
    kReadingHead,  // a part of the head is there
    kReadingBody,
    kServing,    // the handler answers
    kFlushing,   // the answer is complete but not sent
    kLingering,  // refused in mid-request; further input is discarded
    kClosed,
  };

  // Runs a handler; if it cannot get memory, the connection ends.
  template <class Work>
  void Guarded(Work work) {
    try {
      work();
    } catch (const std::bad_alloc&) {
      OnNoMemory();
    }
  }
  void OnNoMemory();
  // Changes the state, and moves the connection to the list of that state.
  void Enter(State state);

  void ShakeHands();
  void OnHandshake(PeerSocket::Handshake result);
  void Read();
  void OnRead(const boost::system::error_code& error, std::string_view bytes);
  void Parse();
  // False: the request was refused, and its body is not read.
  bool OnHead();
  // Passes what has come of the body to the upload.
  void PassBody();
  void OnRequest();
  // Ends reading in mid-request: the refusal is sent, and then the connection is closed.
  void Refuse(HttpRefusal refusal);
  void RefusePart();
  void RefuseForMemory();
  // The peer will send nothing more.
  void OnInputEnd();
  void ProbePeer();

  void AppendHead(int status, std::string_view content_type, const HttpHeaders& headers);
  void ScheduleFlush();
  void Flush();
  void OnWrite(const boost::system::error_code& error, std::size_t bytes);
  void OnAnswered();
  void NextRequest();
  void Linger();

  std::size_t unsent() const { return pending_.size() + body_.size() + writing_.size() - written_; }
  void WatchOutput();
  // Tells the owner what is held of answers.
  void CountOutput();
  void SetDeadline(absl::Duration timeout);
  void ClearDeadline();

  PeerSocket socket_;
  ConnectionOwner* const owner_;
  boost::asio::steady_timer timer_;
  std::optional<boost::asio::steady_timer> probe_timer_;  // once the input has ended
  absl::Duration probe_delay_;                            // until the next probe

  State state_ = State::kIdle;
  std::chrono::steady_clock::time_point since_;
  bool reading_ = false;      // a read is pending
  bool input_ended_ = false;  // the peer has closed its sending side
  std::string input_;         // read and not yet parsed
  std::optional<RequestReader> reader_;
  HttpRequest request_;       // as the head says, until it is whole
  bool body_paused_ = false;  // request_.upload is busy

  std::unique_ptr<HttpExchange> exchange_;
  std::string request_id_;
  HttpHeaders answer_headers_;  // of HttpAdmission
  bool keep_alive_ = true;
  bool http10_ = false;
  bool head_only_ = false;  // the request is a HEAD
  bool begun_ = false;      // the answer's head is on its way
  bool chunked_ = false;    // of the current answer
  bool answered_ = false;   // End or Send was called
  bool linger_ = false;     // the peer may still be sending its request
  bool refused_ = false;    // on arrival

  std::string pending_;      // framed, to be written
  std::string body_;         // streamed text, not yet framed as a chunk
  std::string writing_;      // the write in flight
  std::size_t written_ = 0;  // of writing_
  std::size_t counted_ = 0;  // bytes of all three, as the owner knows them
  std::chrono::steady_clock::time_point unsent_since_;  // when they began to be more than 0
  std::size_t taken_bytes_ = 0;                         // by the peer, since then
  bool flush_scheduled_ = false;
  bool write_watched_ = false;  // the deadline is one for output
};

// The connections that wait for their peers. In each list, the first has waited for longest.
struct ConnectionLists {
  using List = boost::intrusive::list<Connection, boost::intrusive::constant_time_size<false>>;
  List handshake;  // not encrypted yet
  List idle;       // between requests
  List head;       // in mid-request
  List body;
  List refused;  // on arrival, by Reject
};

}  // namespace flotilla::router
