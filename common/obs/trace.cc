#include "common/obs/trace.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

// The places of the fields in version-trace-span-flags. All fields have a fixed width.
constexpr std::size_t kTraceAt = 3, kSpanAt = 36, kFlagsAt = 53, kEnd = 55;

// Reads `digits` lower-case hexadecimal digits at `at`.
std::optional<std::uint64_t> ReadHex(std::string_view text, std::size_t at, std::size_t digits) {
  std::uint64_t value = 0;
  for (const char c : text.substr(at, digits)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    value = value << 4 | static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

}  // namespace

std::string RequestName(const RequestId& id) {
  return absl::StrCat(absl::Hex(id.incarnation), "-", id.counter);
}

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kEnd) return std::nullopt;
  for (const std::size_t dash : {kTraceAt, kSpanAt, kFlagsAt}) {
    if (text[dash - 1] != '-') return std::nullopt;
  }
  const auto version = ReadHex(text, 0, 2), flags = ReadHex(text, kFlagsAt, 2);
  const auto high = ReadHex(text, kTraceAt, 16), low = ReadHex(text, kTraceAt + 16, 16);
  const auto span = ReadHex(text, kSpanAt, 16);
  if (!version || !flags || !high || !low || !span) return std::nullopt;
  // Later versions may have more fields after another dash. Version 255 is invalid.
  const bool whole = text.size() == kEnd || (*version > 0 && text[kEnd] == '-');
  if (*version == 0xff || !whole) return std::nullopt;
  if ((*high == 0 && *low == 0) || *span == 0) return std::nullopt;
  return TraceContext{
      .trace_high = *high, .trace_low = *low, .span = *span, .sampled = (*flags & 1) != 0};
}

std::string TraceIdText(const TraceContext& trace) {
  return absl::StrCat(absl::Hex(trace.trace_high, absl::kZeroPad16),
                      absl::Hex(trace.trace_low, absl::kZeroPad16));
}

std::string SpanIdText(std::uint64_t span) {
  return absl::StrCat(absl::Hex(span, absl::kZeroPad16));
}

}  // namespace flotilla
