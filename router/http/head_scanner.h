// HeadScanner: finds the end of an HTTP/1 request's head, and refuses what RFC 9112 forbids in
// its lines: folded lines, line ends other than CRLF, blanks around a field's name, control
// characters. It runs before the library's parser, which accepts some of these. A form that one
// reader accepts and another does not can smuggle requests past a proxy.
//
// It sees each byte once as it comes, so it refuses nonsense by its first line. It keeps no
// bytes. A head is parsed, and memory is taken for its fields, only when it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flotilla::router {

class HeadScanner {
 public:
  enum class Result : std::uint8_t {
    kMore,     // no end yet
    kEnd,      // the head is the first size() bytes
    kBad,      // refused: error() says why
    kTooLong,  // more than `max_bytes`
    kTooMany,  // more than `max_fields`
  };

  HeadScanner(std::size_t max_bytes, std::size_t max_fields)
      : max_bytes_(max_bytes), max_fields_(max_fields) {}

  // `input` holds all bytes that have come so far, from the head's first byte on: those of the
  // last call, and more. Not called again after any result but kMore.
  Result Scan(std::string_view input);

  std::size_t size() const { return at_; }
  const char* error() const { return error_; }

 private:
  enum class Place : std::uint8_t { kMethod, kStartLine, kLineStart, kName, kValue };

  // Null, or what is wrong with `c` at this place.
  const char* Judge(char c);
  const char* JudgeInLine(char c);

  const std::size_t max_bytes_, max_fields_;
  std::size_t at_ = 0;  // bytes seen
  std::size_t lines_ = 0;
  Place place_ = Place::kMethod;
  bool after_return_ = false;  // the last byte was CR
  bool ended_ = false;
  const char* error_ = "";
};

}  // namespace flotilla::router
