#include "router/http/head_scanner.h"

#include "absl/strings/ascii.h"

namespace flotilla::router {
namespace {

constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";

// Whether methods and field names may have `c` (RFC 9110, 5.6.2).
bool IsTokenChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         kMarks.find(c) != std::string_view::npos;
}

}  // namespace

HeadScanner::Result HeadScanner::Scan(std::string_view input) {
  while (at_ < input.size()) {
    if (at_ == max_bytes_) return Result::kTooLong;
    if (const char* error = Judge(input[at_]); error != nullptr) {
      error_ = error;
      return Result::kBad;
    }
    ++at_;
    if (ended_) return Result::kEnd;
    if (lines_ > max_fields_ + 1) return Result::kTooMany;  // the first is no field
  }
  return Result::kMore;
}

const char* HeadScanner::Judge(char c) {
  if (after_return_) {
    if (c != '\n') return "a carriage return without a line feed";
    after_return_ = false;
    ended_ = place_ == Place::kLineStart;
    place_ = Place::kLineStart;
    ++lines_;
    return nullptr;
  }
  if (c == '\n') return "a line feed without a carriage return";
  if (c == '\r') {
    if (place_ == Place::kMethod) return "no request line";
    if (place_ == Place::kName) return "a header line without a colon";
    after_return_ = true;
    return nullptr;
  }
  if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) {
    return "a control character";
  }
  return JudgeInLine(c);
}

const char* HeadScanner::JudgeInLine(char c) {
  switch (place_) {
    case Place::kMethod:
      if (c == ' ' && at_ > 0) {
        place_ = Place::kStartLine;
      } else if (!IsTokenChar(c)) {
        return "not a method";
      }
      return nullptr;
    case Place::kLineStart:
      if (c == ' ' || c == '\t') return "a folded header line";
      if (!IsTokenChar(c)) return "not the name of a header";
      place_ = Place::kName;
      return nullptr;
    case Place::kName:
      if (c == ':') {
        place_ = Place::kValue;
      } else if (!IsTokenChar(c)) {
        return "not the name of a header";
      }
      return nullptr;
    case Place::kStartLine:
    case Place::kValue:
      return nullptr;
  }
  return nullptr;
}

}  // namespace flotilla::router
