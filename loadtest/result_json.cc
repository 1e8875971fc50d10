#include "loadtest/result_json.h"

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace flotilla::loadtest {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::size_t kMaxRuns = 1000;

// Six digits after the point are enough for every figure, and keep files small.
double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

Ordered LatencyJson(const Latency& latency) {
  Ordered out = {{"count", latency.count}};
  for (const LatencyColumn& column : LatencyColumns()) {
    out[column.key] = Rounded(latency.*column.value);
  }
  Ordered& curve = out["curve"] = Ordered::array();
  for (const auto& [ms, share] : latency.curve) {
    curve.push_back(Ordered::array({Rounded(ms), Rounded(share)}));
  }
  return out;
}

Ordered RunJson(const LoadResult& run) {
  Ordered out = {{"label", run.label}, {"settings", Ordered::object()}};
  for (const auto& [name, value] : run.settings) out["settings"][name] = value;
  for (const Figure& figure : Figures()) out[figure.key] = Rounded(run.*figure.value);
  for (const LatencyFigure& figure : LatencyFigures()) {
    out[figure.key] = LatencyJson(run.*figure.value);
  }
  out["failures"] = Ordered::object();
  for (const auto& [reason, count] : run.failures) out["failures"][reason] = count;
  Ordered& intervals = out["intervals"] = Ordered::array();
  for (const LoadInterval& at : run.intervals) {
    intervals.push_back({{"start_s", Rounded(at.start_s)},
                         {"tokens_per_s", Rounded(at.tokens_per_s)},
                         {"in_flight", Rounded(at.in_flight)},
                         {"finished_per_s", Rounded(at.finished_per_s)},
                         {"failed_per_s", Rounded(at.failed_per_s)}});
  }
  return out;
}

double NumberAt(const Json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

const Json& At(const Json& object, const char* key) {
  static const Json kNothing;
  if (!object.is_object()) return kNothing;
  const auto it = object.find(key);
  return it == object.end() ? kNothing : *it;
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

Latency LatencyOf(const Json& from) {
  Latency latency{.count = NumberAt(from, "count")};
  for (const LatencyColumn& column : LatencyColumns()) {
    latency.*column.value = NumberAt(from, column.key);
  }
  for (const Json& point : At(from, "curve")) {
    if (point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number()) {
      latency.curve.emplace_back(point[0].get<double>(), point[1].get<double>());
    }
  }
  return latency;
}

LoadResult RunOf(const Json& from) {
  LoadResult run;
  run.label = TextOf(At(from, "label"));
  for (const auto& [name, value] : At(from, "settings").items()) {
    run.settings.emplace_back(name, TextOf(value));
  }
  for (const Figure& figure : Figures()) run.*figure.value = NumberAt(from, figure.key);
  for (const LatencyFigure& figure : LatencyFigures()) {
    run.*figure.value = LatencyOf(At(from, figure.key));
  }
  for (const auto& [reason, count] : At(from, "failures").items()) {
    if (count.is_number()) run.failures[reason] = count.get<double>();
  }
  for (const Json& at : At(from, "intervals")) {
    run.intervals.push_back({.start_s = NumberAt(at, "start_s"),
                             .tokens_per_s = NumberAt(at, "tokens_per_s"),
                             .in_flight = NumberAt(at, "in_flight"),
                             .finished_per_s = NumberAt(at, "finished_per_s"),
                             .failed_per_s = NumberAt(at, "failed_per_s")});
  }
  return run;
}

}  // namespace

std::string ResultsJson(absl::Span<const LoadResult> runs) {
  Ordered out = {{"runs", Ordered::array()}};
  for (const LoadResult& run : runs) out["runs"].push_back(RunJson(run));
  return out.dump(1, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::vector<LoadResult>> ParseResults(absl::string_view json) {
  const Json parsed = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  const Json& runs = At(parsed, "runs");
  if (!runs.is_array() || runs.empty() || runs.size() > kMaxRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat("that is no result of flotilla loadtest --json with 1..", kMaxRuns, " runs"));
  }
  std::vector<LoadResult> results;
  for (const Json& run : runs) results.push_back(RunOf(run));
  return results;
}

}  // namespace flotilla::loadtest
