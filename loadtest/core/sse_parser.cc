#include "loadtest/core/sse_parser.h"

#include "absl/strings/strip.h"

namespace flotilla::loadtest {

bool SseParser::Feed(absl::string_view bytes, absl::FunctionRef<void(absl::string_view)> on_data) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    if (end == absl::string_view::npos) {
      part_.append(bytes.data(), bytes.size());
      return part_.size() <= kMaxLineBytes;
    }
    const absl::string_view piece = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (part_.empty()) {
      if (!TakeLine(piece, on_data)) return false;
      continue;
    }
    part_.append(piece.data(), piece.size());
    if (!TakeLine(part_, on_data)) return false;
    part_.clear();
  }
  return true;
}

bool SseParser::TakeLine(absl::string_view line,
                         absl::FunctionRef<void(absl::string_view)> on_data) {
  if (line.size() > kMaxLineBytes) return false;
  absl::ConsumeSuffix(&line, "\r");
  if (line.empty()) return true;
  if (absl::ConsumePrefix(&line, "data:")) {
    absl::ConsumePrefix(&line, " ");
    on_data(line);
    return true;
  }
  return line.find(':') != absl::string_view::npos;
}

}  // namespace flotilla::loadtest
