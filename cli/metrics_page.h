// MetricsPage: a page of /metrics as a value. MetricsChange: what changed between two pages.
// Both are for `flotilla top` and are pure: no clock, no socket.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::cli {

class MetricsPage {
 public:
  using Labels = std::map<std::string, std::string>;

  // Reads Prometheus' text format 0.0.4, as it was at `time_ns` of any clock.
  // INVALID_ARGUMENT names the line that is not of that format.
  static absl::StatusOr<MetricsPage> Parse(std::string_view text, std::int64_t time_ns);

  bool Has(const std::string& name) const { return series_.contains(name); }
  // The sum over the series of `name` that have all of `labels`; 0: there is none.
  double Sum(const std::string& name, const Labels& labels = {}) const;
  // The value of `label` of the first series of `name`; empty: there is none.
  std::string Label(const std::string& name, const std::string& label) const;
  // The cumulative counts of a histogram by upper bound, summed over its series.
  std::map<double, double> Buckets(const std::string& histogram) const;
  std::int64_t time_ns() const { return time_ns_; }

 private:
  struct Series {
    Labels labels;
    double value = 0;
  };
  absl::StatusOr<std::string> ParseLine(std::string_view line, Series* series) const;

  std::map<std::string, std::vector<Series>> series_;
  std::int64_t time_ns_ = 0;
};

// The change from `before` (null: not known) to `now`. Both are pages of one process and
// outlive this object. If a counter is lower than before, the process was restarted and the
// counter began again at 0.
class MetricsChange {
 public:
  MetricsChange(const MetricsPage* before, const MetricsPage& now) : before_(before), now_(now) {}

  // How much a counter rose per second. None: there is no earlier page, or both pages have the
  // same time.
  std::optional<double> Rate(const std::string& counter,
                             const MetricsPage::Labels& labels = {}) const;
  // How much one counter rose per unit of another. None: the other counter did not rise.
  std::optional<double> Ratio(const std::string& counter, const std::string& per,
                              const MetricsPage::Labels& labels = {},
                              const MetricsPage::Labels& per_labels = {}) const;
  // The quantile of what a histogram observed between the pages, as Prometheus'
  // histogram_quantile computes it: linear within a bucket. A quantile beyond the last finite
  // bound is that bound. None: the histogram observed nothing.
  std::optional<double> Quantile(const std::string& histogram, double q) const;

 private:
  double Rise(const std::string& counter, const MetricsPage::Labels& labels) const;

  const MetricsPage* const before_;
  const MetricsPage& now_;
};

}  // namespace flotilla::cli
