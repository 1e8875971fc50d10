// SvgPlot: small line, step and bar charts as self-contained SVG: no script, no
// fonts, no other dependency. The background is transparent and all colours have a middle
// lightness, so that a chart is readable on white and on dark pages.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace flotilla {

struct PlotSeries {
  enum class Kind { kLine, kStep, kBars };
  std::string name;
  // The points (x, y). A point that is not finite is left out. For bars, x counts the categories
  // from 0.
  std::vector<std::pair<double, double>> points;
  Kind kind = Kind::kLine;
  bool marks = false;  // a dot at each point
};

struct SvgPlot {
  std::string title;
  std::string x_label, y_label;  // with their units
  std::vector<PlotSeries> series;
  // For bars: the names of x = 0, 1, ...
  std::vector<std::string> categories;
  // Whether an axis is logarithmic. Points at 0 or below are then left out.
  bool log_x = false, log_y = false;
  // The range of the axis of y. If both are 0, the points give it.
  double low_y = 0, high_y = 0;
  double width = 640, height = 360;
  bool legend = true;  // of the series, if there are several

  // The picture as an SVG document. Axes that are not logarithmic begin at 0. Names
  // are escaped.
  std::string Draw() const;
};

// The pictures as one SVG document: rows of `columns` panels below a title and one legend, which
// is that of the first panel. All panels have the size of the first one and the same series.
std::string DrawGrid(const std::string& title, absl::Span<const SvgPlot> panels,
                     std::size_t columns);

}  // namespace flotilla
