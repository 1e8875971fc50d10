#include "router/http/request_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>

#include "common/types/text.h"
#include "router/http/api_error.h"
#include "router/http/framing.h"

namespace flotilla::router {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// The most bytes on the wire per byte of a body: the smallest chunk, of one byte, is sent as 6.
// More is traffic without content, of which the time limit alone would allow gigabytes.
constexpr std::uint64_t kWireBytesPerByte = 8;
constexpr std::uint64_t kFreeWireBytes = 64 << 10;
// The bytes of each body that the budget does not count, so that small requests get through
// whatever large ones do. With 1,024 connections they are 8 MiB.
constexpr std::size_t kFreeBodyBytes = 8 << 10;
constexpr std::size_t kFirstBodyBytes = 1 << 10;

}  // namespace

RequestReader::RequestReader(const HttpLimits* limits, MemoryBudget* budget)
    : limits_(*limits), scanner_(limits->header_bytes, limits->header_fields), charge_(budget) {
  // The scanner has checked the limit before; the parser counts the line ends a second time.
  parser_.header_limit(static_cast<std::uint32_t>(limits->header_bytes + 4));
  // AllowBody sets it. (Boost 1.74 takes none for 0.)
  parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
}

RequestReader::Step RequestReader::Read(std::string& input) {
  if (!head_read_) return ReadHead(input);
  return parser_.is_done() ? Step::kRequest : ReadBody(input);
}

RequestReader::Step RequestReader::ReadHead(std::string& input) {
  switch (scanner_.Scan(input)) {
    case HeadScanner::Result::kMore:
      return Step::kMore;
    case HeadScanner::Result::kBad:
      return Refuse(400, Cat("malformed HTTP request: ", scanner_.error()));
    case HeadScanner::Result::kTooLong:
      return Refuse(431, Cat("request headers are longer than ", limits_.header_bytes, " bytes"));
    case HeadScanner::Result::kTooMany:
      return Refuse(431, Cat("more than ", limits_.header_fields, " request headers"));
    case HeadScanner::Result::kEnd:
      break;
  }
  error_code error;
  const std::size_t used = parser_.put(boost::asio::buffer(input.data(), scanner_.size()), error);
  if (error) return RefuseError(error);
  if (used != scanner_.size() || !parser_.is_header_done()) {
    return RefuseError(http::error::bad_field);
  }
  input.erase(0, used);
  const Head& head = parser_.get();
  if (const char* wrong = FramingError(head, head.version()); wrong != nullptr) {
    return Refuse(400, Cat("malformed HTTP request: ", wrong));
  }
  head_read_ = true;
  has_body_ = !parser_.is_done();
  parser_.eager(true);
  return Step::kHead;
}

bool RequestReader::AllowBody(std::uint64_t bytes, bool in_pieces) {
  in_pieces_ = in_pieces;
  max_bytes_ = bytes;
  parser_.body_limit(bytes);
  body_end_ = parser_.content_length().value_or(bytes);
  if (body_end_ <= bytes) return true;
  RefuseLength();
  return false;
}

RequestReader::Step RequestReader::ReadBody(std::string& input) {
  if (input.empty()) return Step::kMore;
  if (!Reserve(input.size())) return Step::kNoMemory;
  error_code error;
  const std::size_t before = parser_.get().body().size();
  const std::size_t used = parser_.put(boost::asio::buffer(input), error);
  input.erase(0, used);
  body_bytes_ += parser_.get().body().size() - before;
  if (error && error != http::error::need_more) return RefuseError(error);
  if (parser_.is_done()) return Step::kRequest;
  if (input.size() > limits_.framing_bytes) {
    return Refuse(400, Cat("a line of a chunk's size, or a trailer, is longer than ",
                           limits_.framing_bytes, " bytes"));
  }
  wire_bytes_ += used;
  if (wire_bytes_ > kFreeWireBytes + kWireBytesPerByte * body_bytes_) {
    return Refuse(400, "the body's chunks are mostly framing");
  }
  return Step::kMore;
}

bool RequestReader::Reserve(std::size_t bytes) {
  if (in_pieces_) return true;
  std::string& body = parser_.get().body();
  const std::size_t end = static_cast<std::size_t>(body_end_);
  const std::size_t needed = std::min(body.size() + bytes, end);
  if (needed <= body.capacity()) return true;
  const std::size_t doubled = std::max(2 * body.capacity(), kFirstBodyBytes);
  const std::size_t capacity = std::max(needed, std::min(doubled, end));
  if (!charge_.Grow(capacity - std::min(capacity, kFreeBodyBytes))) return false;
  // std::string::reserve takes at least twice the old capacity, so a new string is used.
  std::string grown;
  grown.reserve(capacity);
  grown += body;
  body.swap(grown);
  return true;
}

RequestReader::Step RequestReader::Refuse(int status, std::string_view message) {
  refusal_ = {.status = status, .body = ErrorJson(InvalidArgument(message)), .headers = {}};
  return Step::kRefused;
}

RequestReader::Step RequestReader::RefuseLength() {
  return Refuse(413, Cat("the request body is longer than ", max_bytes_, " bytes"));
}

RequestReader::Step RequestReader::RefuseError(const error_code& error) {
  if (error == http::error::body_limit) return RefuseLength();
  if (error == http::error::header_limit) {
    return Refuse(431, Cat("request headers are longer than ", limits_.header_bytes, " bytes"));
  }
  return Refuse(400, "malformed HTTP request: " + error.message());
}

}  // namespace flotilla::router
