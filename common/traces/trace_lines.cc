#include "common/traces/trace_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/traces/delimited_text.h"

namespace flotilla {

absl::Status ForEachTraceLine(
    absl::string_view text, std::size_t max_bytes, const RequestTrace& trace,
    absl::FunctionRef<absl::Status(const nlohmann::json& object, std::uint64_t line)> read) {
  std::uint64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (trace.requests.size() == kMaxTraceRequests) {
      return LineError(number,
                       absl::StrCat("the trace has more than ", kMaxTraceRequests, " requests"));
    }
    if (line.size() > max_bytes) {
      return LineError(number, absl::StrCat("the line is longer than ", max_bytes, " bytes"));
    }
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) return LineError(number, "the line is not JSON");
    if (absl::Status s = read(object, number); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SortByArrival(RequestTrace& trace) {
  if (trace.requests.empty()) return absl::InvalidArgumentError("the trace has no requests");
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TracedRequest& a, const TracedRequest& b) { return a.arrival_ns < b.arrival_ns; });
  return absl::OkStatus();
}

}  // namespace flotilla
