#include "simulator/plots.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::simulator {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr std::size_t kCdfPoints = 200;
constexpr std::size_t kMostClasses = 4;  // panels in a row
constexpr double kPanelWidth = 320, kPanelHeight = 250;

PlotSeries OverTime(const std::string& name, const Timeline& timeline, std::int64_t end_ns) {
  PlotSeries series{.name = name, .points = {}, .kind = PlotSeries::Kind::kStep};
  const double width = static_cast<double>(timeline.bucket_ns()) / kNsPerSecond;
  for (const double value : timeline.PerSecond(end_ns)) {
    series.points.emplace_back(width * static_cast<double>(series.points.size()), value);
  }
  // A step is drawn up to its end.
  if (!series.points.empty()) {
    series.points.emplace_back(static_cast<double>(end_ns) / kNsPerSecond,
                               series.points.back().second);
  }
  return series;
}

PlotSeries Distribution(const std::string& name, std::vector<double> values) {
  PlotSeries series{.name = name, .points = {}};
  std::sort(values.begin(), values.end());
  if (values.empty()) return series;
  for (std::size_t i = 0; i <= kCdfPoints; ++i) {
    const double share = static_cast<double>(i) / kCdfPoints;
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
    series.points.emplace_back(values[at], 100 * share);
  }
  return series;
}

std::vector<double> FirstTokenMs(const RunRecord& record) {
  std::vector<double> values;
  for (const RequestRecord& request : record.requests) {
    if (request.first_token_ns == 0) continue;
    values.push_back(static_cast<double>(request.first_token_ns - request.arrival_ns) / 1e6);
  }
  return values;
}

std::vector<double> GapsMs(const RunRecord& record) {
  std::vector<double> values(record.gaps_us.begin(), record.gaps_us.end());
  for (double& value : values) value /= 1000;
  return values;
}

SvgPlot TimePlot(const char* title, const char* y_label) {
  SvgPlot plot;
  plot.title = title;
  plot.x_label = "virtual time, s";
  plot.y_label = y_label;
  return plot;
}

SvgPlot CdfPlot(const char* title) {
  SvgPlot plot;
  plot.title = title;
  plot.x_label = "milliseconds";
  plot.y_label = "share of all, %";
  plot.log_x = true;
  return plot;
}

PlotSeries Curve(const std::string& name) {
  return {.name = name, .points = {}, .kind = PlotSeries::Kind::kLine, .marks = true};
}

// TTFT over load in a row of panels for the medians and one for the 99th percentiles, with a column
// for each class. All panels have the same axis, which begins and ends at a power of ten.
NamedPlot PlotByClass(const std::string& file, const std::string& classes,
                      std::vector<ClassSummary> Summary::*member, absl::Span<const Sweep> sweeps,
                      const std::string& load) {
  NamedPlot grid{.file = file, .panels = {}, .title = "Time to first token by " + classes};
  grid.columns = std::min((sweeps[0].runs[0].*member).size(), kMostClasses);
  double low = INFINITY, high = 0;
  for (const auto& [name, percentile] :
       {std::pair("p50", &Percentiles::p50), std::pair("p99", &Percentiles::p99)}) {
    for (std::size_t c = 0; c < grid.columns; ++c) {
      SvgPlot& panel = grid.panels.emplace_back();
      panel.title = (sweeps[0].runs[0].*member)[c].name;
      panel.x_label = load;
      panel.y_label = absl::StrCat("TTFT ", name, ", ms");
      panel.log_y = true;
      panel.width = kPanelWidth;
      panel.height = kPanelHeight;
      for (const Sweep& sweep : sweeps) {
        PlotSeries& curve = panel.series.emplace_back(Curve(sweep.label));
        curve.marks = false;  // a grid has many points
        for (std::size_t i = 0; i < sweep.runs.size(); ++i) {
          const double ttft_ms = (sweep.runs[i].*member)[c].ttft_ms.*percentile;
          curve.points.emplace_back(sweep.loads[i], ttft_ms);
          if (ttft_ms <= 0) continue;
          low = std::min(low, ttft_ms);
          high = std::max(high, ttft_ms);
        }
      }
    }
  }
  for (SvgPlot& panel : grid.panels) {
    if (high <= 0) break;
    panel.low_y = std::pow(10, std::floor(std::log10(low)));
    panel.high_y = std::pow(10, std::floor(std::log10(high)) + 1);
  }
  return grid;
}

// A grid of figures over load.
NamedPlot PlotLoad(absl::Span<const Sweep> sweeps, const std::string& load) {
  struct Figure {
    const char* title;
    const char* y_label;
    double (*value)(const Summary&);
    bool log = false;
  };
  constexpr auto kFigures = std::to_array<Figure>({
      {"TTFT, median", "ms", [](const Summary& s) { return s.ttft_ms.p50; }, true},
      {"TTFT, 99th percentile", "ms", [](const Summary& s) { return s.ttft_ms.p99; }, true},
      {"Throughput, middle half", "requests/s",
       [](const Summary& s) { return s.steady_requests_per_s; }},
      {"From the prefix cache", "% of prompt tokens",
       [](const Summary& s) { return 100 * s.cached_share; }},
  });
  NamedPlot grid{.file = "load.svg", .panels = {}, .title = "Over the load", .columns = 2};
  for (const Figure& figure : kFigures) {
    SvgPlot& panel = grid.panels.emplace_back();
    panel.title = figure.title;
    panel.x_label = load;
    panel.y_label = figure.y_label;
    panel.log_y = figure.log;
    panel.width = kPanelWidth;
    panel.height = kPanelHeight;
    for (const Sweep& sweep : sweeps) {
      PlotSeries& curve = panel.series.emplace_back(Curve(sweep.label));
      for (std::size_t i = 0; i < sweep.runs.size(); ++i) {
        curve.points.emplace_back(sweep.loads[i], figure.value(sweep.runs[i]));
      }
    }
  }
  return grid;
}

}  // namespace

std::string NamedPlot::Draw() const {
  return columns > 0 ? DrawGrid(title, panels, columns) : panels[0].Draw();
}

std::vector<NamedPlot> PlotRuns(absl::Span<const std::string> labels,
                                absl::Span<const RunRecord> records) {
  std::vector<NamedPlot> plots = {
      {"throughput.svg", {TimePlot("Output tokens per second", "tokens/s")}},
      {"queue.svg", {TimePlot("Requests that wait", "requests")}},
      {"running.svg", {TimePlot("Requests that run", "requests")}},
      {"blocks.svg", {TimePlot("KV blocks in use", "blocks")}},
      {"ttft.svg", {CdfPlot("Time to first token")}},
      {"itl.svg", {CdfPlot("Time between tokens")}},
  };
  for (std::size_t i = 0; i < records.size(); ++i) {
    const RunRecord& r = records[i];
    plots[0].panels[0].series.push_back(OverTime(labels[i], r.tokens, r.end_ns));
    plots[1].panels[0].series.push_back(OverTime(labels[i], r.waiting, r.end_ns));
    plots[2].panels[0].series.push_back(OverTime(labels[i], r.running, r.end_ns));
    plots[3].panels[0].series.push_back(OverTime(labels[i], r.used_blocks, r.end_ns));
    plots[4].panels[0].series.push_back(Distribution(labels[i], FirstTokenMs(r)));
    plots[5].panels[0].series.push_back(Distribution(labels[i], GapsMs(r)));
  }
  return plots;
}

std::vector<NamedPlot> PlotSweeps(absl::Span<const Sweep> sweeps, const std::string& load) {
  SvgPlot latency, goodput;
  latency.title = "Latency over throughput";
  latency.x_label = "output tokens/s";
  latency.y_label = "latency per output token, ms (mean)";
  latency.log_y = true;
  goodput.title = "Goodput over load";
  goodput.x_label = load;
  goodput.y_label = "good requests/s";
  for (const Sweep& sweep : sweeps) {
    PlotSeries a = Curve(sweep.label), b = Curve(sweep.label);
    for (std::size_t i = 0; i < sweep.runs.size(); ++i) {
      a.points.emplace_back(sweep.runs[i].output_tokens_per_s, sweep.runs[i].token_latency_ms.mean);
      b.points.emplace_back(sweep.loads[i], sweep.runs[i].goodput_per_s);
    }
    latency.series.push_back(std::move(a));
    goodput.series.push_back(std::move(b));
  }
  std::vector<NamedPlot> plots = {{"latency_throughput.svg", {std::move(latency)}},
                                  {"goodput.svg", {std::move(goodput)}},
                                  PlotLoad(sweeps, load)};
  if (sweeps.empty() || sweeps[0].runs.empty()) return plots;
  const Summary& first = sweeps[0].runs[0];
  const auto add = [&](const char* file, const char* classes, auto member) {
    if ((first.*member).size() < 2) return;
    plots.push_back(PlotByClass(file, classes, member, sweeps, load));
  };
  add("ttft_by_prompt.svg", "length of prompt", &Summary::by_prompt);
  add("ttft_by_priority.svg", "priority", &Summary::by_priority);
  add("ttft_by_tenant.svg", "tenant", &Summary::by_tenant);
  return plots;
}

NamedPlot PlotMemory(absl::Span<const Summary> runs) {
  SvgPlot plot;
  plot.title = "Sequences served at once, by allocation";
  plot.y_label = "sequences";
  PlotSeries mean{.name = "mean", .points = {}, .kind = PlotSeries::Kind::kBars};
  PlotSeries peak{.name = "peak", .points = {}, .kind = PlotSeries::Kind::kBars};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    plot.categories.push_back(runs[i].label);
    mean.points.emplace_back(static_cast<double>(i), runs[i].mean_running);
    peak.points.emplace_back(static_cast<double>(i), runs[i].peak_running);
  }
  plot.series = {std::move(mean), std::move(peak)};
  return {"memory.svg", {std::move(plot)}};
}

}  // namespace flotilla::simulator
