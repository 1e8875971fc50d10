#include "common/report/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace flotilla {
namespace {

constexpr double kLeft = 72, kRight = 16, kTop = 40, kBottom = 52;
constexpr double kLegendLine = 16;
// In a grid: the title and the legend above the panels.
constexpr double kGridTop = 56, kLegendLetter = 7;
// Contrast with white and with black is at least 4 to 1.
constexpr const char* kInk = "#767c85";
// After Okabe and Ito (2008), which colour-blind readers tell apart; middle lightness.
constexpr auto kColors = std::to_array<const char*>(
    {"#0a84d6", "#d97700", "#009e73", "#c062a0", "#8f9400", "#e0483e", "#8a7fe0", "#2aa9c9"});

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
  }
  return out;
}

// A round step that divides `range` into about `parts`.
double RoundStep(double range, int parts) {
  const double raw = range / parts, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string Number(double x) {
  const double size = std::abs(x);
  if (size == 0) return "0";  // not -0
  if (size >= 1e6) return absl::StrCat(x / 1e6, "M");
  if (size >= 1e4) return absl::StrCat(x / 1e3, "k");
  return absl::StrFormat("%.6g", x);
}

struct Axis {
  double low = 0, high = 1;
  bool log = false;

  double Place(double value) const {
    if (log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
    return (value - low) / (high - low);
  }
  bool Shows(double value) const { return std::isfinite(value) && (!log || value > 0); }
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log) {
      const bool few = high / low < 1000;  // then also 2 and 5
      for (double t = std::pow(10, std::floor(std::log10(low))); t <= high * 1.0001; t *= 10) {
        for (const double factor : {1.0, 2.0, 5.0}) {
          const double tick = t * factor;
          if ((factor == 1 || few) && tick >= low * 0.9999 && tick <= high * 1.0001) {
            ticks.push_back(tick);
          }
        }
      }
      return ticks;
    }
    const double step = RoundStep(high - low, 6);
    for (double i = std::ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); ++i) {
      ticks.push_back(i * step);
    }
    return ticks;
  }
};

// Sets the range of an axis for `values`, all of which the axis can show.
void FindRange(const std::vector<double>& values, Axis& axis) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (axis.log) {
    // The range is at least a decade, so that there is a tick.
    axis.low = values.empty() ? 1 : *least;
    axis.high = std::max(values.empty() ? 0 : *most, axis.low * 10);
    return;
  }
  axis.low = values.empty() ? 0 : std::min(*least, 0.0);
  axis.high = values.empty() ? 1 : *most;
  if (axis.high <= axis.low) axis.high = axis.low + 1;
}

void AppendText(double x, double y, const char* anchor, const std::string& text, const char* more,
                std::string& out) {
  absl::StrAppendFormat(&out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>%s</text>\n", x, y,
                        anchor, more, Escape(text));
}

void AppendKey(double x, double y, std::size_t series, const std::string& name, std::string& out) {
  absl::StrAppendFormat(&out,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"4\" fill=\"%s\"/>\n", x,
                        y, kColors[series % kColors.size()]);
  AppendText(x + 20, y + 6, "start", name, "", out);
}

// The tags that begin a document of this size.
std::string Begin(double width, double height, const std::string& title) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"%s\" role=\"img\">\n"
      "<title>%s</title>\n",
      width, height, kInk, Escape(title));
}

class Canvas {
 public:
  explicit Canvas(const SvgPlot& plot)
      : plot_(plot),
        plot_width_(plot.width - kLeft - kRight),
        plot_height_(plot.height - kTop - kBottom) {
    FindRanges();
  }

  std::string Draw() && {
    AppendText(plot_.width / 2, 22, "middle", plot_.title, "font-size=\"14\" font-weight=\"bold\"",
               out_);
    DrawAxes();
    for (std::size_t i = 0; i < plot_.series.size(); ++i) DrawSeries(i);
    if (plot_.legend) DrawLegend();
    return std::move(out_);
  }

 private:
  bool Shows(const std::pair<double, double>& point) const {
    return x_.Shows(point.first) && y_.Shows(point.second);
  }
  double X(double value) const { return kLeft + plot_width_ * x_.Place(value); }
  double Y(double value) const { return kTop + plot_height_ * (1 - y_.Place(value)); }

  void FindRanges() {
    x_.log = plot_.log_x;
    y_.log = plot_.log_y;
    std::vector<double> xs, ys;
    for (const PlotSeries& series : plot_.series) {
      for (const auto& point : series.points) {
        if (!Shows(point)) continue;
        xs.push_back(point.first);
        ys.push_back(point.second);
      }
    }
    FindRange(xs, x_);
    FindRange(ys, y_);
    if (plot_.high_y > plot_.low_y) {
      y_.low = plot_.low_y;
      y_.high = plot_.high_y;
    }
    if (!plot_.categories.empty()) {
      x_.low = -0.5;
      x_.high = static_cast<double>(plot_.categories.size()) - 0.5;
    }
    // The highest line is a round number.
    const double step = RoundStep(y_.high, 6);
    if (!y_.log) y_.high = step * std::ceil(y_.high / step - 1e-9);
  }

  void Text(double x, double y, const char* anchor, const std::string& text,
            const char* more = "") {
    AppendText(x, y, anchor, text, more, out_);
  }
  void Line(double x1, double y1, double x2, double y2, double opacity) {
    absl::StrAppendFormat(&out_,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                          "stroke-opacity=\"%g\"/>\n",
                          x1, y1, x2, y2, kInk, opacity);
  }

  void DrawAxes() {
    const double bottom = kTop + plot_height_, right = kLeft + plot_width_;
    for (const double tick : y_.Ticks()) {
      Line(kLeft, Y(tick), right, Y(tick), tick == 0 ? 1 : 0.25);
      Text(kLeft - 6, Y(tick) + 4, "end", Number(tick));
    }
    if (plot_.categories.empty()) {
      for (const double tick : x_.Ticks()) {
        Line(X(tick), bottom, X(tick), bottom + 4, 1);
        Text(X(tick), bottom + 17, "middle", Number(tick));
      }
    }
    for (std::size_t i = 0; i < plot_.categories.size(); ++i) {
      Text(X(static_cast<double>(i)), bottom + 17, "middle", plot_.categories[i]);
    }
    Line(kLeft, kTop, kLeft, bottom, 1);
    Text(kLeft + plot_width_ / 2, plot_.height - 14, "middle", plot_.x_label);
    absl::StrAppendFormat(
        &out_,
        "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
        kTop + plot_height_ / 2, Escape(plot_.y_label));
  }

  void DrawSeries(std::size_t index) {
    const PlotSeries& series = plot_.series[index];
    const char* color = kColors[index % kColors.size()];
    if (series.kind == PlotSeries::Kind::kBars) return DrawBars(index, color);
    std::string path;
    double last_y = 0;
    for (const auto& point : series.points) {
      if (!Shows(point)) continue;
      const double x = X(point.first), y = Y(point.second);
      if (path.empty()) {
        absl::StrAppendFormat(&path, "M%.1f %.1f", x, y);
      } else if (series.kind == PlotSeries::Kind::kStep) {
        absl::StrAppendFormat(&path, "H%.1f", x);
        if (y != last_y) absl::StrAppendFormat(&path, "V%.1f", y);
      } else {
        absl::StrAppendFormat(&path, "L%.1f %.1f", x, y);
      }
      last_y = y;
    }
    if (path.empty()) return;
    absl::StrAppendFormat(&out_,
                          "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" "
                          "stroke-linejoin=\"round\"/>\n",
                          path, color);
    if (!series.marks) return;
    for (const auto& point : series.points) {
      if (!Shows(point)) continue;
      absl::StrAppendFormat(&out_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                            X(point.first), Y(point.second), color);
    }
  }

  // Bars of several series stand side by side.
  void DrawBars(std::size_t index, const char* color) {
    const double slot = plot_width_ / (x_.high - x_.low);
    const double width = 0.8 * slot / static_cast<double>(plot_.series.size());
    for (const auto& point : plot_.series[index].points) {
      if (!Shows(point)) continue;
      const double x = X(point.first) - 0.4 * slot + width * static_cast<double>(index);
      absl::StrAppendFormat(
          &out_, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
          Y(point.second), width * 0.94, std::max(0.0, kTop + plot_height_ - Y(point.second)),
          color);
      Text(x + width * 0.47, Y(point.second) - 4, "middle",
           Number(std::round(point.second * 10) / 10), "font-size=\"10\"");
    }
  }

  void DrawLegend() {
    if (plot_.series.size() < 2) return;
    for (std::size_t i = 0; i < plot_.series.size(); ++i) {
      AppendKey(kLeft + 10, kTop + 6 + kLegendLine * static_cast<double>(i), i,
                plot_.series[i].name, out_);
    }
  }

  const SvgPlot& plot_;
  const double plot_width_, plot_height_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::string SvgPlot::Draw() const {
  return absl::StrCat(Begin(width, height, title), Canvas(*this).Draw(), "</svg>\n");
}

std::string DrawGrid(const std::string& title, absl::Span<const SvgPlot> panels,
                     std::size_t columns) {
  if (panels.empty() || columns == 0) return Begin(kGridTop, kGridTop, title) + "</svg>\n";
  const double width = panels[0].width, height = panels[0].height;
  const std::size_t rows = (panels.size() + columns - 1) / columns;
  const double whole = width * static_cast<double>(std::min(columns, panels.size()));
  std::string out = Begin(whole, kGridTop + height * static_cast<double>(rows), title);
  AppendText(whole / 2, 20, "middle", title, "font-size=\"15\" font-weight=\"bold\"", out);
  double x = kLeft;
  for (std::size_t i = 0; i < panels[0].series.size(); ++i) {
    const std::string& name = panels[0].series[i].name;
    AppendKey(x, 38, i, name, out);
    x += 40 + kLegendLetter * static_cast<double>(name.size());
  }
  for (std::size_t i = 0; i < panels.size(); ++i) {
    SvgPlot panel = panels[i];
    panel.legend = false;
    absl::StrAppendFormat(&out, "<g transform=\"translate(%g %g)\">\n%s</g>\n",
                          width * static_cast<double>(i % columns),
                          kGridTop + height * static_cast<double>(i / columns),
                          Canvas(panel).Draw());
  }
  return out + "</svg>\n";
}

}  // namespace flotilla
