#include "common/traces/trace_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/traces/delimited_text.h"
#include "common/traces/trace_lines.h"

namespace flotilla {
namespace {

using Json = nlohmann::json;

// A line of Mooncake's trace has 7 bytes for each block. So many bytes are a million tokens.
constexpr std::size_t kMaxMooncakeLineBytes = 16 << 10;

struct FormatName {
  absl::string_view name;
  TraceFormat format;
};
constexpr auto kFormats = std::to_array<FormatName>({{"flotilla", TraceFormat::kFlotilla},
                                                     {"mooncake", TraceFormat::kMooncake},
                                                     {"burstgpt", TraceFormat::kBurstGpt},
                                                     {"azure", TraceFormat::kAzure}});

// Sorts the requests, which have no tenants, and counts their arrivals from the first one.
absl::Status Finish(RequestTrace& trace) {
  if (absl::Status s = SortByArrival(trace); !s.ok()) return s;
  trace.tenants = {""};
  const std::int64_t first = trace.requests.front().arrival_ns;
  for (TracedRequest& request : trace.requests) request.arrival_ns -= first;
  return absl::OkStatus();
}

// The number `key` of a line, in [min, max]. None: there is no such number.
std::optional<double> NumberOf(const Json& object, const char* key, double min, double max) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return std::nullopt;
  const double value = it->get<double>();
  if (!(value >= min) || !(value <= max)) return std::nullopt;
  return value;
}

absl::Status ParseMooncakeLine(const Json& object, std::uint64_t line, TracedRequest& request) {
  if (!object.is_object()) return LineError(line, "the line is not a JSON object");
  const auto missing = [&](absl::string_view key, double min, double max) {
    return LineError(line, absl::StrCat(key, " is not a number in ", min, "..", max));
  };
  const auto at = NumberOf(object, "timestamp", 0, kMaxTraceSeconds * 1e3);
  if (!at.has_value()) return missing("timestamp", 0, kMaxTraceSeconds * 1e3);
  const auto in = NumberOf(object, "input_length", 1, kMaxTraceTokens);
  if (!in.has_value()) return missing("input_length", 1, kMaxTraceTokens);
  const auto out = NumberOf(object, "output_length", 1, kMaxTraceTokens);
  if (!out.has_value()) return missing("output_length", 1, kMaxTraceTokens);
  request.arrival_ns = std::llround(*at * 1e6);
  request.prompt_tokens = static_cast<std::uint32_t>(*in);
  request.output_tokens = static_cast<std::uint32_t>(*out);
  const auto blocks = object.find("hash_ids");
  if (blocks == object.end()) return absl::OkStatus();
  if (!blocks->is_array()) return LineError(line, "hash_ids is not an array");
  for (const Json& block : *blocks) {
    if (!block.is_number_unsigned()) return LineError(line, "hash_ids has an entry that is no id");
    request.blocks.push_back(block.get<std::uint64_t>());
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestTrace> ParseMooncake(absl::string_view text) {
  RequestTrace trace;
  absl::Status s = ForEachTraceLine(
      text, kMaxMooncakeLineBytes, trace, [&](const Json& object, std::uint64_t line) {
        return ParseMooncakeLine(object, line, trace.requests.emplace_back());
      });
  if (s.ok()) s = Finish(trace);
  if (!s.ok()) return s;
  return trace;
}

// Days from 1970-01-01 to a date of the Gregorian calendar (Hinnant 2013, days_from_civil).
std::int64_t DaysOf(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = year / 400, of_era = year - era * 400;
  const std::int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// A date and time such as "2023-11-16 18:15:46.6805900", with a zone of +00:00 or none.
absl::StatusOr<std::int64_t> TimeOf(const TextCell& cell) {
  const absl::Status bad = CellError(cell, "the value is not a date and time");
  absl::string_view text = cell.text;
  if (absl::EndsWith(text, "+00:00")) text.remove_suffix(6);
  if (text.size() < 19 || text.size() > 32 || text[4] != '-' || text[7] != '-' ||
      (text[10] != ' ' && text[10] != 'T') || text[13] != ':' || text[16] != ':') {
    return bad;
  }
  struct Field {
    std::size_t at, size;
    std::int64_t min, max, value;
  };
  std::array<Field, 5> fields = {{{0, 4, 1970, 2999, 0},
                                  {5, 2, 1, 12, 0},
                                  {8, 2, 1, 31, 0},
                                  {11, 2, 0, 23, 0},
                                  {14, 2, 0, 59, 0}}};
  for (Field& field : fields) {
    if (!absl::SimpleAtoi(text.substr(field.at, field.size), &field.value) ||
        field.value < field.min || field.value > field.max) {
      return bad;
    }
  }
  double seconds = 0;
  if (!absl::SimpleAtod(text.substr(17), &seconds) || !(seconds >= 0) || !(seconds < 61)) {
    return bad;
  }
  const std::int64_t days = DaysOf(fields[0].value, fields[1].value, fields[2].value);
  return ((days * 24 + fields[3].value) * 60 + fields[4].value) * 60'000'000'000 +
         std::llround(seconds * 1e9);
}

// The columns of a CSV format. A row whose output is 0 is left out if `skips_empty`.
struct CsvFormat {
  absl::string_view time, prompt, output;
  std::vector<absl::string_view> others;
  bool date;
  bool skips_empty;
};

absl::StatusOr<RequestTrace> ParseCsv(absl::string_view text, const CsvFormat& format) {
  std::vector<absl::string_view> known = {format.time, format.prompt, format.output};
  known.insert(known.end(), format.others.begin(), format.others.end());
  const auto table = ParseDelimited(text, known, kMaxTraceRequests);
  if (!table.ok()) return table.status();
  const int time = table->Find(format.time), prompt = table->Find(format.prompt),
            output = table->Find(format.output);
  for (const absl::string_view column : {format.time, format.prompt, format.output}) {
    if (table->Find(column) < 0) {
      return absl::InvalidArgumentError(absl::StrCat("column ", column, " is missing"));
    }
  }
  RequestTrace trace;
  for (const std::vector<TextCell>& row : table->rows) {
    const auto out = CellInteger(row[static_cast<std::size_t>(output)], 0, kMaxTraceTokens);
    if (!out.ok()) return out.status();
    if (*out == 0 && format.skips_empty) continue;
    const auto in = CellInteger(row[static_cast<std::size_t>(prompt)], 0, kMaxTraceTokens);
    if (!in.ok()) return in.status();
    const TextCell& at = row[static_cast<std::size_t>(time)];
    TracedRequest& request = trace.requests.emplace_back();
    if (format.date) {
      const auto ns = TimeOf(at);
      if (!ns.ok()) return ns.status();
      request.arrival_ns = *ns;
    } else {
      const auto seconds = CellNumber(at, 0, kMaxTraceSeconds);
      if (!seconds.ok()) return seconds.status();
      request.arrival_ns = std::llround(*seconds * 1e9);
    }
    request.prompt_tokens = static_cast<std::uint32_t>(std::max<std::int64_t>(*in, 1));
    request.output_tokens = static_cast<std::uint32_t>(std::max<std::int64_t>(*out, 1));
  }
  if (absl::Status s = Finish(trace); !s.ok()) return s;
  return trace;
}

}  // namespace

std::vector<std::string> TraceFormatNames() {
  std::vector<std::string> names;
  for (const FormatName& format : kFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<TraceFormat> FindTraceFormat(absl::string_view name) {
  for (const FormatName& format : kFormats) {
    if (format.name == name) return format.format;
  }
  return absl::NotFoundError(absl::StrCat("there is no such format of traces; there are ",
                                          absl::StrJoin(TraceFormatNames(), ", ")));
}

TraceFormat DetectTraceFormat(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  const absl::string_view line = text.substr(0, std::min(text.find('\n'), kMaxMooncakeLineBytes));
  if (absl::StartsWith(line, "{")) {
    return absl::StrContains(line, "\"input_length\"") ? TraceFormat::kMooncake
                                                       : TraceFormat::kFlotilla;
  }
  if (absl::StrContains(line, "ContextTokens")) return TraceFormat::kAzure;
  if (absl::StrContains(line, "Request tokens")) return TraceFormat::kBurstGpt;
  return TraceFormat::kFlotilla;
}

absl::StatusOr<RequestTrace> ReadTrace(absl::string_view text, TraceFormat format) {
  switch (format) {
    case TraceFormat::kMooncake:
      return ParseMooncake(text);
    case TraceFormat::kBurstGpt:
      return ParseCsv(
          text, {.time = "Timestamp",
                 .prompt = "Request tokens",
                 .output = "Response tokens",
                 .others = {"Session ID", "Elapsed time", "Model", "Total tokens", "Log Type"},
                 .date = false,
                 .skips_empty = true});
    case TraceFormat::kAzure:
      return ParseCsv(text, {.time = "TIMESTAMP",
                             .prompt = "ContextTokens",
                             .output = "GeneratedTokens",
                             .others = {},
                             .date = true,
                             .skips_empty = false});
    case TraceFormat::kFlotilla:
      break;
  }
  return ParseTrace(text);
}

}  // namespace flotilla
