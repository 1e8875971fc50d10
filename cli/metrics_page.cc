#include "cli/metrics_page.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace flotilla::cli {
namespace {

// Reads forward through one line.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}

  bool Take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void SkipSpace() {
    while (Take(' ') || Take('\t')) {
    }
  }
  // Takes the text up to the first of `ends`, or to the end of the line.
  std::string TakeUntil(std::string_view ends) {
    const std::size_t length = std::min(rest_.find_first_of(ends), rest_.size());
    std::string taken(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return taken;
  }
  // Takes a quoted value and resolves its escapes. None: a quote is missing.
  std::optional<std::string> TakeQuoted() {
    if (!Take('"')) return std::nullopt;
    std::string value;
    while (!rest_.empty() && rest_.front() != '"') {
      char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '\\') {
        if (rest_.empty()) return std::nullopt;
        c = rest_.front() == 'n' ? '\n' : rest_.front();
        rest_.remove_prefix(1);
      }
      value += c;
    }
    if (!Take('"')) return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

bool Matches(const MetricsPage::Labels& labels, const MetricsPage::Labels& wanted) {
  for (const auto& [name, value] : wanted) {
    const auto found = labels.find(name);
    if (found == labels.end() || found->second != value) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<MetricsPage> MetricsPage::Parse(std::string_view text, std::int64_t time_ns) {
  MetricsPage page;
  page.time_ns_ = time_ns;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    Series series;
    absl::StatusOr<std::string> name = page.ParseLine(line, &series);
    if (!name.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the metrics: ", name.status().message()));
    }
    page.series_[*std::move(name)].push_back(std::move(series));
  }
  return page;
}

absl::StatusOr<std::string> MetricsPage::ParseLine(std::string_view line, Series* series) const {
  Cursor cursor(line);
  std::string name = cursor.TakeUntil("{ \t");
  if (name.empty()) return absl::InvalidArgumentError("the metric has no name");
  if (cursor.Take('{')) {
    while (!cursor.Take('}')) {
      std::string label = cursor.TakeUntil("=}");
      if (!cursor.Take('=')) return absl::InvalidArgumentError("a label has no value");
      std::optional<std::string> value = cursor.TakeQuoted();
      if (!value.has_value()) {
        return absl::InvalidArgumentError("the value of a label lacks a quote");
      }
      series->labels[std::move(label)] = *std::move(value);
      cursor.Take(',');
    }
  }
  cursor.SkipSpace();
  if (!absl::SimpleAtod(cursor.TakeUntil(" \t\r"), &series->value)) {
    return absl::InvalidArgumentError("the value is not a number");
  }
  return name;
}

double MetricsPage::Sum(const std::string& name, const Labels& labels) const {
  const auto found = series_.find(name);
  if (found == series_.end()) return 0;
  double sum = 0;
  for (const Series& one : found->second) {
    if (Matches(one.labels, labels)) sum += one.value;
  }
  return sum;
}

std::string MetricsPage::Label(const std::string& name, const std::string& label) const {
  const auto found = series_.find(name);
  if (found == series_.end()) return "";
  const auto value = found->second.front().labels.find(label);
  return value == found->second.front().labels.end() ? "" : value->second;
}

std::map<double, double> MetricsPage::Buckets(const std::string& histogram) const {
  std::map<double, double> buckets;
  const auto found = series_.find(histogram + "_bucket");
  if (found == series_.end()) return buckets;
  for (const Series& one : found->second) {
    const auto bound = one.labels.find("le");
    double le = 0;
    if (bound == one.labels.end() || !absl::SimpleAtod(bound->second, &le)) continue;
    buckets[le] += one.value;
  }
  return buckets;
}

double MetricsChange::Rise(const std::string& counter, const MetricsPage::Labels& labels) const {
  const double now = now_.Sum(counter, labels);
  const double before = before_ == nullptr ? 0 : before_->Sum(counter, labels);
  return now < before ? now : now - before;
}

std::optional<double> MetricsChange::Rate(const std::string& counter,
                                          const MetricsPage::Labels& labels) const {
  if (before_ == nullptr || now_.time_ns() <= before_->time_ns()) return std::nullopt;
  const auto elapsed_ns = static_cast<double>(now_.time_ns() - before_->time_ns());
  return Rise(counter, labels) / elapsed_ns * 1e9;
}

std::optional<double> MetricsChange::Ratio(const std::string& counter, const std::string& per,
                                           const MetricsPage::Labels& labels,
                                           const MetricsPage::Labels& per_labels) const {
  if (before_ == nullptr) return std::nullopt;
  const double units = Rise(per, per_labels);
  if (!(units > 0)) return std::nullopt;
  return Rise(counter, labels) / units;
}

std::optional<double> MetricsChange::Quantile(const std::string& histogram, double q) const {
  if (before_ == nullptr) return std::nullopt;
  std::map<double, double> rise = now_.Buckets(histogram);
  const std::map<double, double> before = before_->Buckets(histogram);
  if (rise.empty()) return std::nullopt;
  const auto total_before = before.empty() ? 0 : before.rbegin()->second;
  if (rise.rbegin()->second >= total_before) {  // else the process was restarted
    for (auto& [bound, count] : rise) {
      if (const auto found = before.find(bound); found != before.end()) count -= found->second;
    }
  }
  const double rank = q * rise.rbegin()->second;
  if (!(rank > 0)) return std::nullopt;
  double low = 0, below = 0;
  for (const auto& [bound, count] : rise) {
    if (count >= rank) {
      if (std::isinf(bound)) return low;
      return low + (bound - low) * (rank - below) / (count - below);
    }
    low = bound;
    below = count;
  }
  return low;
}

}  // namespace flotilla::cli
