#include "loadtest/html_report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "common/report/svg_plot.h"

namespace flotilla::loadtest {
namespace {

// So many curves can be told apart in one chart.
constexpr std::size_t kMostCurves = 6;

constexpr char kHead[] = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 1.5em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin: 1.4em 0 .4em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15em .8em; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child { text-align: left; padding-left: 0; white-space: pre; }
.row { display: flex; flex-wrap: wrap; gap: 0 1.5em; align-items: flex-start; }
.tiles { display: flex; flex-wrap: wrap; gap: 1em; margin: 1em 0; }
.tile { border: 1px solid #8884; border-radius: 6px; padding: .5em 1em; }
.tile b { display: block; font-size: 1.5em; } .row > svg { width: 430px; height: auto; }
</style></head><body>
)";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Row(absl::Span<const std::string> cells, const char* tag = "td") {
  std::string out = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&out, "<", tag, ">", Escaped(cell), "</", tag, ">");
  }
  return out + "</tr>\n";
}

std::string Tile(const std::string& title, const std::string& value) {
  return absl::StrCat("<div class=\"tile\">", Escaped(title), "<b>", Escaped(value),
                      "</b></div>\n");
}

// Runs and predictions as columns of one table or curves of one chart.
struct Column {
  std::string name;
  const LoadResult* run;
};

std::vector<Column> ColumnsOf(const HtmlReport& report) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const LoadResult& run = report.runs[i];
    columns.push_back({run.label.empty() ? "measured" : run.label, &run});
    if (i < report.predictions.size()) {
      columns.push_back({absl::StrCat(run.label, run.label.empty() ? "" : " ", "simulated"),
                         &report.predictions[i]});
    }
  }
  return columns;
}

std::string FiguresTable(const std::vector<Column>& columns) {
  std::vector<std::string> head = {""};
  for (const Column& column : columns) head.push_back(column.name);
  std::string out = absl::StrCat("<table>\n", Row(head, "th"));
  for (const Figure& figure : Figures()) {
    std::vector<std::string> row = {figure.title};
    for (const Column& column : columns) {
      row.push_back(absl::StrFormat("%.*f", figure.decimals, column.run->*figure.value));
    }
    out += Row(row);
  }
  std::set<std::string> reasons;
  for (const Column& column : columns) {
    for (const auto& [reason, count] : column.run->failures) reasons.insert(reason);
  }
  for (const std::string& reason : reasons) {
    std::vector<std::string> row = {absl::StrCat("failed: ", reason)};
    for (const Column& column : columns) {
      const auto it = column.run->failures.find(reason);
      row.push_back(absl::StrFormat("%.0f", it == column.run->failures.end() ? 0 : it->second));
    }
    out += Row(row);
  }
  return out + "</table>\n";
}

std::string LatencyTable(const std::vector<Column>& columns) {
  std::vector<std::string> head = {"ms"};
  for (const LatencyColumn& column : LatencyColumns()) head.emplace_back(column.key);
  std::string out = absl::StrCat("<table>\n", Row(head, "th"));
  for (const LatencyFigure& figure : LatencyFigures()) {
    for (const Column& column : columns) {
      std::vector<std::string> row = {
          absl::StrCat(figure.title, columns.size() > 1 ? " " + column.name : "")};
      for (const LatencyColumn& at : LatencyColumns()) {
        row.push_back(absl::StrFormat("%.1f", column.run->*figure.value.*at.value));
      }
      out += Row(row);
    }
  }
  return out + "</table>\n";
}

std::string CurveChart(const std::vector<Column>& columns, const LatencyFigure& figure) {
  SvgPlot plot{.title = absl::StrCat(figure.title, ", distribution"),
               .x_label = "ms",
               .y_label = "requests or gaps at most as long, %",
               .log_x = true,
               .high_y = 100};
  for (const Column& column : columns) {
    plot.series.push_back({.name = column.name, .points = (column.run->*figure.value).curve});
  }
  return plot.Draw();
}

std::string TimeChart(const std::vector<Column>& columns, const std::string& title,
                      const std::string& unit, double LoadInterval::*value) {
  SvgPlot plot{.title = title, .x_label = "time, s", .y_label = unit};
  for (const Column& column : columns) {
    if (column.run->intervals.empty()) continue;
    PlotSeries& series = plot.series.emplace_back();
    series.name = column.name;
    series.kind = PlotSeries::Kind::kStep;
    for (const LoadInterval& at : column.run->intervals) {
      series.points.emplace_back(at.start_s, at.*value);
    }
  }
  return plot.series.empty() ? "" : plot.Draw();
}

// A figure over the offered rate, measured and simulated.
template <class Value>
std::string SweepChart(const HtmlReport& report, const std::string& title, const std::string& unit,
                       bool log_y, Value value) {
  SvgPlot plot{.title = title, .x_label = "offered, requests/s", .y_label = unit, .log_y = log_y};
  const auto add = [&](const char* name, const std::vector<LoadResult>& runs) {
    if (runs.empty()) return;
    PlotSeries& series = plot.series.emplace_back();
    series.name = name;
    series.marks = true;
    for (const LoadResult& run : runs) series.points.emplace_back(run.offered_per_s, value(run));
    std::sort(series.points.begin(), series.points.end());
  };
  add("measured", report.runs);
  add("simulated", report.predictions);
  return plot.Draw();
}

std::string Tiles(const HtmlReport& report) {
  std::string out = "<div class=\"tiles\">\n";
  if (report.sweep) {
    out +=
        Tile("knee, requests/s", report.knee > 0 ? absl::StrFormat("%.2f", report.knee) : "none");
    if (report.predicted_knee > 0) {
      out += Tile("simulated knee", absl::StrFormat("%.2f", report.predicted_knee));
    }
  } else if (report.runs.size() == 1) {
    const LoadResult& run = report.runs.front();
    out += Tile("requests/s", absl::StrFormat("%.2f", run.requests_per_s));
    out += Tile("output tokens/s", absl::StrFormat("%.1f", run.output_tokens_per_s));
    out += Tile("goodput, requests/s", absl::StrFormat("%.2f", run.goodput_per_s));
    out += Tile("TTFT p50 / p99, ms",
                absl::StrFormat("%.1f / %.1f", run.ttft_ms.p50, run.ttft_ms.p99));
    out +=
        Tile("ITL p50 / p99, ms", absl::StrFormat("%.1f / %.1f", run.itl_ms.p50, run.itl_ms.p99));
    out += Tile("failed", absl::StrFormat("%.0f", run.failed));
  }
  return out + "</div>\n";
}

std::string SettingsTable(const LoadResult& run) {
  std::string out = "<h2>Settings</h2>\n<table>\n";
  for (const auto& [name, value] : run.settings) {
    out += Row(std::vector<std::string>{name, value});
  }
  return out + "</table>\n";
}

}  // namespace

std::string HtmlReport::Draw() const {
  std::string out = absl::StrFormat(kHead, Escaped(title));
  absl::StrAppend(&out, "<h1>", Escaped(title), "</h1>\n", Tiles(*this));
  std::vector<Column> columns = ColumnsOf(*this);
  absl::StrAppend(&out, "<h2>Figures</h2>\n<div class=\"row\">\n", FiguresTable(columns));
  if (columns.size() <= 2) absl::StrAppend(&out, LatencyTable(columns));
  out += "</div>\n";
  if (sweep) {
    absl::StrAppend(&out, "<h2>Over the offered load</h2>\n<div class=\"row\">\n",
                    SweepChart(*this, "Good share of requests", "share", false,
                               [](const LoadResult& run) { return run.good_share; }),
                    SweepChart(*this, "Throughput", "output tokens/s", false,
                               [](const LoadResult& run) { return run.output_tokens_per_s; }),
                    SweepChart(*this, "TTFT, 99th percentile", "ms", true,
                               [](const LoadResult& run) { return run.ttft_ms.p99; }),
                    SweepChart(*this, "ITL, 99th percentile", "ms", true,
                               [](const LoadResult& run) { return run.itl_ms.p99; }),
                    "</div>\n");
  }
  if (columns.size() > kMostCurves) columns.resize(kMostCurves);
  out += "<h2>Latencies</h2>\n<div class=\"row\">\n";
  for (const LatencyFigure& figure : LatencyFigures()) out += CurveChart(columns, figure);
  absl::StrAppend(&out, "</div>\n<h2>Over time</h2>\n<div class=\"row\">\n",
                  TimeChart(columns, "Throughput", "tokens/s", &LoadInterval::tokens_per_s),
                  TimeChart(columns, "Requests in flight", "requests", &LoadInterval::in_flight),
                  TimeChart(columns, "Finished", "requests/s", &LoadInterval::finished_per_s),
                  TimeChart(columns, "Failures", "requests/s", &LoadInterval::failed_per_s),
                  "</div>\n");
  if (columns.size() > 2 && !sweep) absl::StrAppend(&out, LatencyTable(columns));
  if (!runs.empty()) out += SettingsTable(runs.front());
  return out + "</body></html>\n";
}

}  // namespace flotilla::loadtest
