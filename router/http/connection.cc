#include "router/http/connection.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/status.hpp>

#include "absl/time/clock.h"
#include "common/obs/trace.h"
#include "model/text.h"
#include "router/http/api_error.h"
#include "router/http/json_text.h"

namespace flotilla {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kMaxRequestIdBytes = 128;
// How long a refused peer may go on sending before it is cut off. Closing at
// once would reset the connection and lose the answer on its way.
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);

std::string ErrorBody(std::string_view message) {
  std::string body = R"({"error":{"message":)";
  AppendJsonString(message, body);
  body += R"(,"type":"invalid_request_error","param":null,"code":null}})";
  return body;
}

// The target without its query.
std::string_view PathOf(boost::beast::string_view target) {
  const std::string_view text(target.data(), target.size());
  return text.substr(0, text.find('?'));
}

bool UsableRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

Connection::Connection(boost::asio::ip::tcp::socket socket, ConnectionOwner* owner)
    : socket_(std::move(socket)), owner_(owner), timer_(socket_.get_executor()) {}

void Connection::Start() {
  error_code ignored;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(boost::asio::socket_base::send_buffer_size(owner_->limits().socket_send_bytes),
                     ignored);
  SetDeadline(owner_->limits().idle_timeout);
  Read();
}

void Connection::Reject(int status, std::string body) {
  keep_alive_ = false;
  linger_ = true;
  state_ = State::kServing;
  request_id_ = owner_->NewRequestId();
  Send(status, "application/json", std::move(body), {{"retry-after", "1"}});
  Read();
}

void Connection::Drain() {
  if (state_ == State::kIdle) return Close();
  keep_alive_ = false;
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();  // OnClosed may drop the owner's
  timer_.cancel();
  error_code ignored;
  socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  // Not here: the exchange may be the caller.
  boost::asio::post(socket_.get_executor(), [self] {
    self->exchange_.reset();
    self->owner_->OnClosed(self.get());
  });
}

// --- Reading -----------------------------------------------------------------

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  reading_ = true;
  socket_.async_read_some(boost::asio::buffer(chunk_),
                          [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                            self->OnRead(error, bytes);
                          });
}

void Connection::OnRead(const error_code& error, std::size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  // A peer that closed its sending side is gone, too: nobody reads the rest.
  if (error) return Close();
  if (state_ == State::kLingering) return Read();
  input_.append(chunk_.data(), bytes);
  if (state_ == State::kIdle || state_ == State::kReading) return Parse();
  if (input_.size() < owner_->limits().pipelined_bytes) Read();
}

void Connection::Parse() {
  const HttpLimits& limits = owner_->limits();
  if (state_ == State::kIdle) {
    state_ = State::kReading;
    header_seen_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    parser_->body_limit(limits.body_bytes);
    parser_->eager(true);
    SetDeadline(limits.header_timeout);
  }
  while (input_.size() > 0 && !parser_->is_done()) {
    error_code error;
    const std::size_t used = parser_->put(boost::asio::buffer(input_), error);
    input_.erase(0, used);
    if (error == http::error::need_more) break;
    if (error) return RefuseBadRequest(error);
    if (parser_->is_header_done() && !header_seen_ && !OnHeader()) return;
    if (used == 0) break;
  }
  if (!header_seen_ && parser_->is_header_done() && !OnHeader()) return;
  if (parser_->is_done()) return OnRequest();
  if (!header_seen_ && input_.size() > limits.header_bytes) {
    return RefuseBadRequest(http::error::header_limit);
  }
  Read();
}

bool Connection::OnHeader() {
  header_seen_ = true;
  SetDeadline(owner_->limits().body_timeout);
  const auto& header = parser_->get();
  const auto authorization = header[http::field::authorization];
  const bool once = header.count(http::field::authorization) == 1;
  absl::StatusOr<std::optional<std::string>> tenant = owner_->handler().Admit(
      PathOf(header.target()),
      once ? std::string_view(authorization.data(), authorization.size()) : std::string_view());
  if (!tenant.ok()) {
    BeginRefusal();
    SendError(tenant.status(), *this);
    Read();
    return false;
  }
  tenant_ = *std::move(tenant);
  if (header.version() >= 11 && !parser_->is_done() &&
      boost::beast::iequals(header[http::field::expect], "100-continue")) {
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
    ScheduleFlush();
  }
  return true;
}

void Connection::OnRequest() {
  ClearDeadline();
  state_ = State::kServing;
  answered_ = false;
  keep_alive_ = keep_alive_ && parser_->keep_alive() && !owner_->stopping();
  auto message = parser_->release();
  parser_.reset();
  http10_ = message.version() < 11;

  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = std::string(PathOf(message.target()));
  const auto id = message["X-Request-Id"];
  request.client_named = UsableRequestId({id.data(), id.size()});
  request.request_id = request.client_named ? std::string(id) : owner_->NewRequestId();
  const auto trace = message["traceparent"];
  request.trace = ParseTraceparent({trace.data(), trace.size()}).value_or(TraceContext());
  if (tenant_.has_value()) {
    request.tenant = *std::move(tenant_);
  } else if (!owner_->tenant_header().empty()) {
    const auto tenant = message[owner_->tenant_header()];
    request.tenant.assign(tenant.data(), tenant.size());
  }
  request.body = std::move(message.body());
  request_id_ = request.request_id;
  if (input_.size() < owner_->limits().pipelined_bytes) Read();
  exchange_ = owner_->handler().Handle(std::move(request), *this);
}

void Connection::RefuseBadRequest(const error_code& error) {
  int status = 400;
  std::string message = "malformed HTTP request: " + error.message();
  if (error == http::error::header_limit) {
    status = 431;
    message = Cat("request headers are longer than ", owner_->limits().header_bytes, " bytes");
  } else if (error == http::error::body_limit) {
    status = 413;
    message = Cat("the request body is longer than ", owner_->limits().body_bytes, " bytes");
  }
  BeginRefusal();
  Send(status, "application/json", ErrorBody(message), {});
  Read();
}

void Connection::BeginRefusal() {
  parser_.reset();
  ClearDeadline();
  keep_alive_ = false;  // where the next request would begin is unknown
  linger_ = true;
  state_ = State::kServing;
  answered_ = false;
  request_id_ = owner_->NewRequestId();
}

// --- Answering ---------------------------------------------------------------

void Connection::AppendHead(int status, std::string_view content_type, const HttpHeaders& headers) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  pending_ += Cat(
      "HTTP/1.1 ", status, " ", std::string_view(reason.data(), reason.size()),
      "\r\ndate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\ncontent-type: ", content_type, "\r\nx-request-id: ", request_id_,
      "\r\nx-content-type-options: nosniff\r\n");
  for (const auto& [name, value] : headers) pending_ += Cat(name, ": ", value, "\r\n");
  if (!keep_alive_) {
    pending_ += "connection: close\r\n";
  } else if (http10_) {
    pending_ += "connection: keep-alive\r\n";
  }
}

void Connection::Send(int status, std::string_view content_type, std::string body,
                      const HttpHeaders& headers) {
  if (state_ != State::kServing || answered_) return;
  chunked_ = false;
  AppendHead(status, content_type, headers);
  pending_ += Cat("content-length: ", body.size(), "\r\n\r\n");
  pending_ += body;
  answered_ = true;
  ScheduleFlush();
}

void Connection::Begin(int status, std::string_view content_type, const HttpHeaders& headers) {
  if (state_ != State::kServing || answered_) return;
  chunked_ = !http10_;
  if (http10_) keep_alive_ = false;  // the end of the body is the end of the connection
  AppendHead(status, content_type, headers);
  if (chunked_) pending_ += "transfer-encoding: chunked\r\n";
  pending_ += "\r\n";
  ScheduleFlush();
}

void Connection::Write(std::string_view text) {
  if (state_ != State::kServing || answered_) return;
  body_ += text;
  ScheduleFlush();
}

void Connection::End() {
  if (state_ != State::kServing || answered_) return;
  answered_ = true;
  ScheduleFlush();
}

void Connection::ScheduleFlush() {
  WatchOutput();
  if (std::exchange(flush_scheduled_, true)) return;
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_scheduled_ = false;
    self->Flush();
  });
}

void Connection::Flush() {
  if (state_ == State::kClosed) return;
  if (!body_.empty()) {
    if (chunked_) {
      std::array<char, 16> size;
      const auto end = std::to_chars(size.data(), size.data() + size.size(), body_.size(), 16).ptr;
      pending_.append(size.data(), end);
      pending_ += "\r\n";
      pending_ += body_;
      pending_ += "\r\n";
    } else {
      pending_ += body_;
    }
    body_.clear();
  }
  if (answered_ && state_ == State::kServing) {
    if (std::exchange(chunked_, false)) pending_ += "0\r\n\r\n";
    state_ = State::kFlushing;
  }
  if (written_ < writing_.size()) return;  // a write is in flight
  if (pending_.empty()) {
    if (state_ == State::kFlushing) OnAnswered();
    return;
  }
  writing_.swap(pending_);
  pending_.clear();
  written_ = 0;
  WatchOutput();
  OnWrite({}, 0);
}

void Connection::OnWrite(const error_code& error, std::size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) return Close();
  written_ += bytes;
  if (written_ < writing_.size()) {
    if (bytes > 0) WatchOutput();
    socket_.async_write_some(
        boost::asio::buffer(writing_.data() + written_, writing_.size() - written_),
        [self = shared_from_this()](const error_code& e, std::size_t n) { self->OnWrite(e, n); });
    return;
  }
  writing_.clear();
  written_ = 0;
  WatchOutput();
  Flush();
}

void Connection::OnAnswered() {
  exchange_.reset();
  if (keep_alive_) return NextRequest();
  if (linger_) return Linger();
  Close();
}

void Connection::Linger() {
  state_ = State::kLingering;
  SetDeadline(kLingerTimeout);
  error_code ignored;
  socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  Read();
}

void Connection::NextRequest() {
  if (owner_->stopping()) return Close();
  state_ = State::kIdle;
  write_watched_ = false;
  SetDeadline(owner_->limits().idle_timeout);
  if (input_.empty()) return Read();
  Parse();
}

// --- Deadlines ---------------------------------------------------------------

// Output is watched while too much of it waits, and, once the answer is
// complete, until the last byte is gone. Progress re-arms only the latter.
void Connection::WatchOutput() {
  if (state_ != State::kServing && state_ != State::kFlushing) return;
  const bool complete = state_ == State::kFlushing;
  const bool over = unsent() > owner_->limits().unsent_bytes;
  if (!complete && !over) {
    if (std::exchange(write_watched_, false)) ClearDeadline();
    return;
  }
  if (write_watched_ && !(complete && !over)) return;
  write_watched_ = true;
  SetDeadline(owner_->limits().write_timeout);
}

void Connection::SetDeadline(absl::Duration timeout) {
  timer_.expires_after(absl::ToChronoMilliseconds(timeout));
  timer_.async_wait([self = weak_from_this()](const error_code& error) {
    const auto connection = self.lock();
    if (error || connection == nullptr) return;
    // The wait may have ended just before the deadline was moved.
    if (connection->timer_.expiry() <= std::chrono::steady_clock::now()) connection->Close();
  });
}

void Connection::ClearDeadline() {
  timer_.expires_at(std::chrono::steady_clock::time_point::max());
}

}  // namespace flotilla
