#include "router/http/connection.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/status.hpp>

#include "absl/time/clock.h"
#include "common/obs/trace.h"
#include "common/types/text.h"
#include "router/errors.h"
#include "router/http/api_error.h"

namespace flotilla::router {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kMaxRequestIdBytes = 128;
// How long a refused peer may go on sending before it is cut off. Closing at
// once would reset the connection and lose the answer on its way.
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);

// An interim answer, which clients skip.
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
// Each probe of a peer waits this many times longer than the one before, because some clients
// accept no more than five interim answers.
constexpr int kProbeBackoff = 10;
// The most input buffer that an idle connection keeps.
constexpr std::size_t kKeptInputBytes = 1024;

// The target without its query.
std::string_view PathOf(boost::beast::string_view target) {
  const std::string_view text(target.data(), target.size());
  return text.substr(0, text.find('?'));
}
std::string_view QueryOf(boost::beast::string_view target) {
  const std::string_view text(target.data(), target.size());
  const std::size_t mark = text.find('?');
  return mark == std::string_view::npos ? std::string_view() : text.substr(mark + 1);
}

// The one value of a header; empty if there is none, or several.
std::string_view OneOf(const http::fields& fields, http::field name) {
  if (fields.count(name) != 1) return {};
  const auto value = fields[name];
  return {value.data(), value.size()};
}

bool UsableRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

Connection::Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<const TlsContext> tls,
                       ConnectionOwner* owner)
    : socket_(std::move(socket), std::move(tls)), owner_(owner), timer_(socket_.get_executor()) {}

void Connection::Start() {
  socket_.Configure(owner_->limits().socket_send_bytes);
  Guarded([&] { socket_.encrypted() ? ShakeHands() : NextRequest(); });
}

void Connection::Reject(int status, std::string body) {
  refused_ = true;
  if (socket_.encrypted()) return Close();
  Guarded([&] {
    Refuse({.status = status, .body = std::move(body), .headers = {{"retry-after", "1"}}});
  });
}

void Connection::Drain() {
  if (state_ == State::kIdle || state_ == State::kHandshaking) return Close();
  keep_alive_ = false;
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  Enter(State::kClosed);
  const auto self = shared_from_this();  // OnClosed may drop the owner's
  timer_.cancel();
  if (probe_timer_.has_value()) probe_timer_->cancel();
  reader_.reset();
  socket_.Close();
  CountOutput();
  // The exchange may be the caller, so it is not destroyed here.
  boost::asio::post(socket_.get_executor(), [self] {
    self->exchange_.reset();
    self->request_.upload.reset();
    self->owner_->OnClosed(self.get());
  });
}

void Connection::Enter(State state) {
  state_ = state;
  unlink();
  ConnectionLists::List* list = nullptr;
  if (state == State::kHandshaking) list = &owner_->lists().handshake;
  if (state == State::kIdle) list = &owner_->lists().idle;
  if (state == State::kReadingHead) list = &owner_->lists().head;
  if (state == State::kReadingBody) list = &owner_->lists().body;
  if (refused_ && state != State::kClosed) list = &owner_->lists().refused;
  if (list == nullptr) return;
  since_ = std::chrono::steady_clock::now();
  list->push_back(*this);
}

// --- TLS ---------------------------------------------------------------------

void Connection::ShakeHands() {
  Enter(State::kHandshaking);
  SetDeadline(owner_->limits().header_timeout);
  socket_.ShakeHands([self = shared_from_this()](PeerSocket::Handshake result) {
    if (self->state_ != State::kClosed) self->Guarded([&] { self->OnHandshake(result); });
  });
}

void Connection::OnHandshake(PeerSocket::Handshake result) {
  owner_->OnHandshake(result == PeerSocket::Handshake::kDone);
  switch (result) {
    case PeerSocket::Handshake::kDone:
      return NextRequest();
    case PeerSocket::Handshake::kPlaintext:
      return Refuse({.status = 400,
                     .body = ErrorJson(absl::InvalidArgumentError(
                         "this port is encrypted: the address begins with https://")),
                     .headers = {}});
    case PeerSocket::Handshake::kFailed:
      return Linger();
    case PeerSocket::Handshake::kGone:
      return Close();
  }
}

// --- Reading -----------------------------------------------------------------

void Connection::Read() {
  if (reading_ || input_ended_ || state_ == State::kClosed) return;
  reading_ = true;
  socket_.Read(owner_->chunk(),
               [self = shared_from_this()](const error_code& error, std::string_view bytes) {
                 self->reading_ = false;
                 if (self->state_ != State::kClosed) {
                   self->Guarded([&] { self->OnRead(error, bytes); });
                 }
               });
}

void Connection::OnRead(const error_code& error, std::string_view bytes) {
  if (error == boost::asio::error::eof) return OnInputEnd();
  if (error) return Close();
  if (state_ == State::kLingering) return Read();
  input_ += bytes;
  if (state_ != State::kServing && state_ != State::kFlushing) return Parse();
  if (input_.size() < owner_->limits().pipelined_bytes) Read();
}

void Connection::Parse() {
  if (state_ == State::kIdle) {
    Enter(State::kReadingHead);
    reader_.emplace(&owner_->limits(), &owner_->body_memory());
    head_only_ = false;
    answer_headers_.clear();
    SetDeadline(owner_->limits().header_timeout);
  }
  while (true) {
    switch (reader_->Read(input_)) {
      case RequestReader::Step::kMore:
        if (input_ended_) return RefusePart();
        return request_.upload == nullptr ? Read() : PassBody();
      case RequestReader::Step::kHead:
        if (!OnHead()) return;
        break;
      case RequestReader::Step::kNoMemory:
        if (owner_->MakeRoomForBody(this)) break;
        return RefuseForMemory();
      case RequestReader::Step::kRequest:
        return OnRequest();
      case RequestReader::Step::kRefused:
        return Refuse(reader_->refusal());
    }
  }
}

bool Connection::OnHead() {
  const RequestReader::Head& head = reader_->head();
  Enter(State::kReadingBody);
  SetDeadline(owner_->limits().body_timeout);
  const auto method = head.method_string(), host = head[http::field::host];
  head_only_ = head.method() == http::verb::head;
  http10_ = head.version() < 11;
  boost::beast::string_view tenant;
  if (!owner_->tenant_header().empty()) tenant = head[owner_->tenant_header()];
  HttpAdmission admission = owner_->handler().Admit(
      {.method = {method.data(), method.size()},
       .path = PathOf(head.target()),
       .host = {host.data(), host.size()},
       .authorization = OneOf(head, http::field::authorization),
       .content_type = OneOf(head, http::field::content_type),
       .tenant = {tenant.data(), tenant.size()},
       .from_page = head.count(http::field::origin) > 0,
       .origin = OneOf(head, http::field::origin),
       .asks_for_page = head.count(http::field::access_control_request_method) > 0,
       .has_body = reader_->has_body()});
  answer_headers_ = std::move(admission.headers);
  if (admission.refusal.has_value()) {
    Refuse(*std::move(admission.refusal));
    return false;
  }
  const std::uint64_t allowed =
      admission.upload == nullptr ? owner_->limits().body_bytes : admission.upload->max_bytes();
  if (!reader_->AllowBody(allowed, admission.upload != nullptr)) {
    Refuse(reader_->refusal());
    return false;
  }
  // This is done now, not when the request is whole, because the parser adds the fields of a
  // trailer to those of the head.
  request_ = HttpRequest();
  request_.method = std::string(method);
  request_.path = std::string(PathOf(head.target()));
  request_.query = std::string(QueryOf(head.target()));
  request_.upload = std::move(admission.upload);
  body_paused_ = false;
  request_.preflight = admission.preflight;
  const auto id = head["X-Request-Id"];
  request_.client_named = UsableRequestId({id.data(), id.size()});
  request_.request_id = request_.client_named ? std::string(id) : owner_->NewRequestId();
  const auto trace = head["traceparent"];
  request_.trace = ParseTraceparent({trace.data(), trace.size()}).value_or(TraceContext());
  if (admission.caller.has_value()) {
    request_.tenant = std::move(admission.caller->name);
    request_.max_priority = admission.caller->max_priority;
  } else {
    request_.tenant.assign(tenant.data(), tenant.size());
  }
  keep_alive_ = keep_alive_ && head.keep_alive();
  if (!http10_ && !reader_->whole() &&
      boost::beast::iequals(head[http::field::expect], "100-continue")) {
    pending_ += kContinue;
    ScheduleFlush();
  }
  return true;
}

void Connection::PassBody() {
  std::string piece = reader_->TakeBody();
  if (piece.empty() || request_.upload->Take(std::move(piece), *this)) return Read();
  body_paused_ = true;
  ClearDeadline();  // the peer does not keep the server waiting
}

void Connection::ResumeBody() {
  if (state_ != State::kReadingBody || !std::exchange(body_paused_, false)) return;
  Guarded([&] {
    Enter(State::kReadingBody);  // a body that goes on is not slow, however long it takes
    SetDeadline(owner_->limits().body_timeout);
    Read();
  });
}

void Connection::RefuseBody(HttpRefusal refusal) {
  if (state_ != State::kReadingBody) return;
  Guarded([&] { Refuse(std::move(refusal)); });
}

void Connection::OnRequest() {
  ClearDeadline();
  Enter(State::kServing);
  answered_ = begun_ = false;
  keep_alive_ = keep_alive_ && !owner_->stopping() && !(input_ended_ && input_.empty());
  request_.came = std::chrono::steady_clock::now();
  request_.body = reader_->TakeBody();
  request_.charge = reader_->TakeCharge();
  reader_.reset();
  request_id_ = request_.request_id;
  if (input_.size() < owner_->limits().pipelined_bytes) Read();
  try {
    exchange_ = owner_->handler().Handle(std::move(request_), *this);
  } catch (const std::bad_alloc&) {
    Fail();
  }
}

void Connection::Refuse(HttpRefusal refusal) {
  reader_.reset();
  if (request_.upload != nullptr) exchange_ = std::move(request_.upload);  // it may be the caller
  ClearDeadline();
  keep_alive_ = false;  // where the next request would begin is unknown
  linger_ = true;
  Enter(State::kServing);
  answered_ = begun_ = false;
  request_id_ = owner_->NewRequestId();
  Send(refusal.status, "application/json", std::move(refusal.body), refusal.headers);
  Read();
}

void Connection::RefusePart() {
  Refuse({.status = 400,
          .body = ErrorJson(absl::InvalidArgumentError(
              "the request is not whole: its sender has closed the connection in the middle")),
          .headers = {}});
}

void Connection::RefuseForMemory() {
  const absl::Status status = absl::UnavailableError("the server has no memory for this body now");
  Refuse({.status = 503, .body = ErrorJson(status), .headers = {{"retry-after", "1"}}});
}

void Connection::OnNoMemory() {
  if (state_ != State::kReadingHead && state_ != State::kReadingBody) return Close();
  try {
    reader_.reset();  // frees its memory, which may be what is missing
    RefuseForMemory();
  } catch (const std::bad_alloc&) {
    Close();
  }
}

void Connection::RefuseSlowBody() {
  Guarded([&] {
    Refuse({.status = 408,
            .body = ErrorJson(
                absl::InvalidArgumentError("the body came too slowly while memory was short")),
            .headers = {}});
  });
}

// --- A peer that sends no more -------------------------------------------------

void Connection::OnInputEnd() {
  input_ended_ = true;
  if (state_ == State::kReadingHead || state_ == State::kReadingBody) return RefusePart();
  if (state_ != State::kServing && state_ != State::kFlushing) return Close();
  if (input_.empty()) keep_alive_ = false;
  // A peer that still reads looks like one that has gone, until the latter sends a reset.
  socket_.WaitForReset([self = shared_from_this()](const error_code& error) {
    if (!error) self->Close();
  });
  probe_delay_ = owner_->limits().probe_delay;
  probe_timer_.emplace(socket_.get_executor());
  ProbePeer();
}

void Connection::ProbePeer() {
  probe_timer_->expires_after(absl::ToChronoMilliseconds(probe_delay_));
  probe_delay_ *= kProbeBackoff;
  probe_timer_->async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->state_ == State::kClosed) return;
    self->Guarded([&] {
      // An answer that has begun probes the peer by its own bytes. Clients of HTTP/1.0 know no
      // interim answers.
      if (self->state_ == State::kServing && !self->begun_ && !self->http10_) {
        self->pending_ += kContinue;
        self->ScheduleFlush();
      }
      self->ProbePeer();
    });
  });
}

// --- Answering ---------------------------------------------------------------

void Connection::AppendHead(int status, std::string_view content_type, const HttpHeaders& headers) {
  begun_ = true;
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  pending_ += Cat(
      "HTTP/1.1 ", status, " ", std::string_view(reason.data(), reason.size()),
      "\r\ndate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\ncontent-type: ", content_type, "\r\nx-request-id: ", request_id_,
      "\r\nx-content-type-options: nosniff\r\n");
  for (const HttpHeaders* all : {&headers, &std::as_const(answer_headers_)}) {
    for (const auto& [name, value] : *all) pending_ += Cat(name, ": ", value, "\r\n");
  }
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
  Guarded([&] {
    AppendHead(status, content_type, headers);
    pending_ += Cat("content-length: ", body.size(), "\r\n\r\n");
    if (!head_only_) pending_ += body;
    answered_ = true;
    ScheduleFlush();
  });
}

void Connection::Begin(int status, std::string_view content_type, const HttpHeaders& headers) {
  if (state_ != State::kServing || answered_) return;
  chunked_ = !http10_ && !head_only_;
  // The end of the body is the end of the connection.
  if (http10_ && !head_only_) keep_alive_ = false;
  Guarded([&] {
    AppendHead(status, content_type, headers);
    if (chunked_) pending_ += "transfer-encoding: chunked\r\n";
    pending_ += "\r\n";
    ScheduleFlush();
  });
}

void Connection::Write(std::string_view text) {
  if (state_ != State::kServing || answered_ || head_only_) return;
  Guarded([&] {
    body_ += text;
    ScheduleFlush();
  });
}

void Connection::End() {
  if (state_ != State::kServing || answered_) return;
  answered_ = true;
  Guarded([&] { ScheduleFlush(); });
}

void Connection::Fail() {
  if (state_ != State::kServing || answered_) return;
  if (begun_) return Close();
  Guarded([&] { SendError(NoMemory(), *this); });
}

void Connection::ScheduleFlush() {
  CountOutput();
  WatchOutput();
  if (std::exchange(flush_scheduled_, true)) return;
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->flush_scheduled_ = false;
    self->Guarded([&] { self->Flush(); });
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
    Enter(State::kFlushing);
  }
  if (written_ < writing_.size()) return;  // a write is in flight
  if (pending_.empty()) {
    if (state_ == State::kFlushing) return OnAnswered();
    if (state_ == State::kServing && begun_ && exchange_ != nullptr) exchange_->OnSent();
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
  taken_bytes_ += bytes;
  if (written_ < writing_.size()) {
    if (bytes > 0) WatchOutput();
    socket_.Write(boost::asio::buffer(writing_.data() + written_, writing_.size() - written_),
                  [self = shared_from_this()](const error_code& e, std::size_t n) {
                    self->Guarded([&] { self->OnWrite(e, n); });
                  });
    return;
  }
  writing_.clear();
  written_ = 0;
  CountOutput();
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
  if (input_ended_) return Close();
  Enter(State::kLingering);
  SetDeadline(kLingerTimeout);
  socket_.EndOutput();
  Read();
}

void Connection::NextRequest() {
  if (owner_->stopping()) return Close();
  Enter(State::kIdle);
  write_watched_ = false;
  SetDeadline(owner_->limits().idle_timeout);
  if (!input_.empty()) return Parse();
  if (input_ended_) return Close();
  if (input_.capacity() > kKeptInputBytes) std::string().swap(input_);
  Read();
}

// --- Deadlines ---------------------------------------------------------------

// Sets the deadline for output while too much of it waits and, once the answer is complete,
// until the last byte is gone. Progress extends only the latter.
void Connection::WatchOutput() {
  if (state_ != State::kServing && state_ != State::kFlushing) return;
  // No further output comes that the peer would not wait for.
  const bool complete =
      state_ == State::kFlushing || (exchange_ != nullptr && exchange_->paced() && unsent() > 0);
  const bool over = unsent() > owner_->limits().unsent_bytes;
  if (!complete && !over) {
    if (std::exchange(write_watched_, false)) ClearDeadline();
    return;
  }
  if (write_watched_ && !(complete && !over)) return;
  write_watched_ = true;
  SetDeadline(owner_->limits().write_timeout);
}

void Connection::CountOutput() {
  const std::size_t before = counted_;
  counted_ = state_ == State::kClosed ? 0 : pending_.size() + body_.size() + writing_.size();
  if (before == 0 && counted_ > 0) {
    unsent_since_ = std::chrono::steady_clock::now();
    taken_bytes_ = 0;
  }
  if (counted_ == before) return;
  owner_->OnUnsent(static_cast<std::int64_t>(counted_) - static_cast<std::int64_t>(before));
}

bool Connection::TakesSlowly() const {
  const HttpLimits& limits = owner_->limits();
  const absl::Duration elapsed = absl::FromChrono(std::chrono::steady_clock::now() - unsent_since_);
  return counted_ > 0 && elapsed >= limits.slow_output &&
         static_cast<double>(taken_bytes_) <
             absl::ToDoubleSeconds(elapsed) * limits.slow_output_bytes_per_second;
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

}  // namespace flotilla::router
