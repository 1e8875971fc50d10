#include "common/traces/request_trace.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/traces/delimited_text.h"
#include "common/traces/trace_lines.h"

namespace flotilla {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxTenants = 100'000;
constexpr std::size_t kMaxTenantBytes = 256;
// A line is one flat object.
constexpr std::size_t kMaxLineBytes = 4096;

std::int64_t ToNs(double seconds) { return std::llround(seconds * 1e9); }

struct Column {
  absl::string_view name;
  bool required;
  double min, max;
  bool whole;
  void (*set)(TracedRequest&, double);
};

template <class T>
T To(double value) {
  return static_cast<T>(value);
}

constexpr auto kColumns = std::to_array<Column>({
    {"arrival_s", true, 0, kMaxTraceSeconds, false,
     [](TracedRequest& r, double v) { r.arrival_ns = ToNs(v); }},
    {"prompt_tokens", true, 1, kMaxTraceTokens, true,
     [](TracedRequest& r, double v) { r.prompt_tokens = To<std::uint32_t>(v); }},
    {"output_tokens", true, 1, kMaxTraceTokens, true,
     [](TracedRequest& r, double v) { r.output_tokens = To<std::uint32_t>(v); }},
    {"priority", false, -1e6, 1e6, true,
     [](TracedRequest& r, double v) { r.priority = To<std::int32_t>(v); }},
    {"deadline_s", false, 0, kMaxTraceSeconds, false,
     [](TracedRequest& r, double v) { r.deadline_ns = ToNs(v); }},
    {"prefix_group", false, 0, 1 << 30, true,
     [](TracedRequest& r, double v) { r.prefix_group = To<std::uint32_t>(v); }},
    {"prefix_tokens", false, 0, kMaxTraceTokens, true,
     [](TracedRequest& r, double v) { r.prefix_tokens = To<std::uint32_t>(v); }},
    {"n", false, 1, 1024, true,
     [](TracedRequest& r, double v) { r.sequences = To<std::uint32_t>(v); }},
    {"beams", false, 0, 1024, true,
     [](TracedRequest& r, double v) { r.beams = To<std::uint32_t>(v); }},
});
constexpr absl::string_view kTenant = "tenant";

const Column* FindColumn(absl::string_view name) {
  for (const Column& column : kColumns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

// Maps the names of tenants to indices, in the order in which they first appear.
class Tenants {
 public:
  explicit Tenants(RequestTrace& trace) : trace_(trace) {}

  absl::StatusOr<std::uint32_t> IndexOf(absl::string_view name) {
    const auto [it, fresh] =
        index_.try_emplace(std::string(name), static_cast<std::uint32_t>(index_.size()));
    if (fresh) {
      if (index_.size() > kMaxTenants) {
        return absl::InvalidArgumentError(
            absl::StrCat("there are more than ", kMaxTenants, " tenants"));
      }
      if (name.size() > kMaxTenantBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("the name is longer than ", kMaxTenantBytes, " bytes"));
      }
      trace_.tenants.emplace_back(name);
    }
    return it->second;
  }

 private:
  RequestTrace& trace_;
  absl::flat_hash_map<std::string, std::uint32_t> index_;
};

absl::Status ParseCsvRow(const std::vector<TextCell>& row, Tenants& tenants,
                         TracedRequest& request) {
  absl::string_view tenant;
  for (const TextCell& cell : row) {
    if (cell.column == kTenant) {
      tenant = cell.text;
      continue;
    }
    const Column& column = *FindColumn(cell.column);
    absl::StatusOr<double> value = CellNumber(cell, column.min, column.max);
    if (!value.ok()) return value.status();
    if (column.whole && *value != std::floor(*value)) {
      return CellError(cell, "the value is not a whole number");
    }
    column.set(request, *value);
  }
  const absl::StatusOr<std::uint32_t> index = tenants.IndexOf(tenant);
  if (!index.ok()) {
    return LineError(row.front().line, absl::StrCat("column tenant: ", index.status().message()));
  }
  request.tenant = *index;
  return absl::OkStatus();
}

absl::Status ParseCsv(absl::string_view text, RequestTrace& trace) {
  std::vector<absl::string_view> known = {kTenant};
  for (const Column& column : kColumns) known.push_back(column.name);
  const auto table = ParseDelimited(text, known, kMaxTraceRequests);
  if (!table.ok()) return table.status();
  for (const Column& column : kColumns) {
    if (column.required && table->Find(column.name) < 0) {
      return absl::InvalidArgumentError(absl::StrCat("column ", column.name, " is missing"));
    }
  }
  Tenants tenants(trace);
  trace.requests.reserve(table->rows.size());
  for (const std::vector<TextCell>& row : table->rows) {
    absl::Status s = ParseCsvRow(row, tenants, trace.requests.emplace_back());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ParseJsonLine(const Json& object, std::uint64_t line, Tenants& tenants,
                           TracedRequest& request) {
  if (!object.is_object()) return LineError(line, "the line is not a JSON object");
  std::string tenant;
  for (const auto& [key, value] : object.items()) {
    if (key == kTenant) {
      if (!value.is_string()) return LineError(line, "column tenant is not a string");
      tenant = value.get<std::string>();
      continue;
    }
    const Column* column = FindColumn(key);
    if (column == nullptr) {
      return LineError(line,
                       absl::StrCat("unknown column \"", absl::CEscape(key.substr(0, 40)), "\""));
    }
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= column->min) || !(number <= column->max) ||
        (column->whole && number != std::floor(number))) {
      return LineError(line,
                       absl::StrCat("column ", key, " is not a ", column->whole ? "whole " : "",
                                    "number in ", column->min, "..", column->max));
    }
    column->set(request, number);
  }
  for (const Column& column : kColumns) {
    if (column.required && !object.contains(std::string(column.name))) {
      return LineError(line, absl::StrCat("column ", column.name, " is missing"));
    }
  }
  const absl::StatusOr<std::uint32_t> index = tenants.IndexOf(tenant);
  if (!index.ok()) {
    return LineError(line, absl::StrCat("column tenant: ", index.status().message()));
  }
  request.tenant = *index;
  return absl::OkStatus();
}

absl::Status ParseJsonLines(absl::string_view text, RequestTrace& trace) {
  Tenants tenants(trace);
  return ForEachTraceLine(text, kMaxLineBytes, trace, [&](const Json& object, std::uint64_t line) {
    return ParseJsonLine(object, line, tenants, trace.requests.emplace_back());
  });
}

}  // namespace

absl::StatusOr<RequestTrace> ParseTrace(absl::string_view text) {
  RequestTrace trace;
  const bool json = absl::StripLeadingAsciiWhitespace(text).substr(0, 1) == "{";
  absl::Status s = json ? ParseJsonLines(text, trace) : ParseCsv(text, trace);
  if (s.ok()) s = SortByArrival(trace);
  if (!s.ok()) return s;
  return trace;
}

}  // namespace flotilla
