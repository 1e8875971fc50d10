#include "common/report/svg_plot.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/plots.h"

namespace flotilla::simulator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns "" if `text` is a well-formed document of the XML that SvgPlot uses (no comments, no
// processing instructions). Otherwise it returns the error.
std::string XmlError(const std::string& text) {
  std::vector<std::string> open;
  int roots = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '<') {
      if (text[at] == '&') {
        const std::string entity = text.substr(at, text.find(';', at) - at + 1);
        if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") {
          return "bad entity " + entity;
        }
      }
      if (open.empty() && text[at] != '\n') return "text outside the root";
      ++at;
      continue;
    }
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return "a tag without an end";
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "< inside a tag";
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "odd quotes in " + tag;
    const std::string name = tag.substr(0, tag.find_first_of(" />", tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return "unexpected " + tag;
      open.pop_back();
    } else {
      if (open.empty() && ++roots > 1) return "two roots";
      if (tag.back() != '/') open.push_back(name);
    }
    at = end + 1;
  }
  if (!open.empty()) return open.back() + " is not closed";
  return roots == 1 ? "" : "no root";
}

TEST(SvgPlotTest, TheCheckerSeesFaults) {
  EXPECT_EQ(XmlError("<a><b/></a>\n"), "");
  EXPECT_NE(XmlError("<a><b></a>"), "");
  EXPECT_NE(XmlError("<a>&</a>"), "");
  EXPECT_NE(XmlError("<a/><b/>"), "");
  EXPECT_NE(XmlError("<a"), "");
}

SvgPlot Example() {
  SvgPlot plot;
  plot.title = "A < B & \"C\"\x1b";
  plot.x_label = "time, s";
  plot.y_label = "tokens/s";
  plot.series = {{.name = "line <1>", .points = {{0, 0}, {1, 10}, {2, 5}}, .marks = true},
                 {.name = "step", .points = {{0, 3}, {2, 7}}, .kind = PlotSeries::Kind::kStep}};
  return plot;
}

TEST(SvgPlotTest, ADocumentIsWellFormedAndEscaped) {
  const std::string svg = Example().Draw();
  EXPECT_EQ(XmlError(svg), "");
  EXPECT_THAT(svg, HasSubstr("A &lt; B &amp; &quot;C&quot;?"));
  EXPECT_THAT(svg, HasSubstr("line &lt;1&gt;"));
  EXPECT_THAT(svg, HasSubstr("time, s"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SvgPlotTest, PointsLieWhereTheAxesSay) {
  // The axis of x maps 0..2 to 72..624; the axis of y maps 0..10 to 308..40.
  const std::string svg = Example().Draw();
  EXPECT_THAT(svg, HasSubstr("d=\"M72.0 308.0L348.0 40.0L624.0 174.0\""));
  EXPECT_THAT(svg, HasSubstr("d=\"M72.0 227.6H624.0V120.4\""));
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"348.0\" cy=\"40.0\""));
}

TEST(SvgPlotTest, OddDataDrawSomething) {
  SvgPlot plot;
  EXPECT_EQ(XmlError(plot.Draw()), "");
  plot.series = {{.name = "x", .points = {{NAN, 1}, {1, INFINITY}, {3, 0}}}};
  EXPECT_EQ(XmlError(plot.Draw()), "");
  plot.log_x = true;
  plot.series[0].points = {{0, 1}, {-1, 2}, {5, 3}};
  const std::string svg = plot.Draw();
  EXPECT_EQ(XmlError(svg), "");
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgPlotTest, BarsStandSideBySide) {
  SvgPlot plot;
  plot.categories = {"one", "two"};
  plot.series = {{.name = "a", .points = {{0, 4}, {1, 8}}, .kind = PlotSeries::Kind::kBars},
                 {.name = "b", .points = {{0, 2}, {1, 6}}, .kind = PlotSeries::Kind::kBars}};
  const std::string svg = plot.Draw();
  EXPECT_EQ(XmlError(svg), "");
  EXPECT_THAT(svg, HasSubstr(">two</text>"));
  EXPECT_THAT(svg, HasSubstr("height=\"134.0\""));  // half of 268
}

TEST(SvgPlotTest, AGridHasOneLegendAndItsPanelsSideBySide) {
  SvgPlot panel = Example();
  panel.title = "a panel";
  const std::string svg = DrawGrid("the grid", std::vector<SvgPlot>(3, panel), 2);
  EXPECT_EQ(XmlError(svg), "");
  EXPECT_THAT(svg, HasSubstr("viewBox=\"0 0 1280 776\""));  // 2 columns, 2 rows and the head
  EXPECT_THAT(svg, HasSubstr("translate(640 56)"));
  EXPECT_THAT(svg, HasSubstr("translate(0 416)"));
  const std::size_t legend = svg.find("line &lt;1&gt;");
  ASSERT_NE(legend, std::string::npos);
  EXPECT_EQ(svg.find("line &lt;1&gt;", legend + 1), std::string::npos);
  EXPECT_EQ(XmlError(DrawGrid("none", {}, 2)), "");
}

TEST(SvgPlotTest, ARangeThatIsGivenIsTheAxis) {
  SvgPlot plot = Example();
  plot.high_y = 20;  // then 10 is in the middle of 308..40
  EXPECT_THAT(plot.Draw(), HasSubstr("L348.0 174.0"));
}

// A sweep of two loads. Prompts of each class have TTFTs of their own.
TEST(PlotsTest, TtftIsDrawnByClassAndLoad) {
  Summary low, high;
  low.by_prompt = {{"short", 1, {.p50 = 20, .p99 = 100}}, {"long", 1, {.p50 = 30, .p99 = 200}}};
  high.by_prompt = {{"short", 1, {.p50 = 40, .p99 = 400}}, {"long", 1, {.p50 = 60, .p99 = 900}}};
  low.by_priority = high.by_priority = {{"priority 0", 2, {}}};
  const std::vector<NamedPlot> plots =
      PlotSweeps(std::vector<Sweep>{{"fcfs", {10, 20}, {low, high}}}, "load");
  ASSERT_EQ(plots.size(), 4u);  // one priority is no reason for a plot
  const NamedPlot& grid = plots[3];
  EXPECT_EQ(grid.file, "ttft_by_prompt.svg");
  ASSERT_EQ(grid.panels.size(), 4u);
  EXPECT_EQ(grid.panels[0].title, "short");
  EXPECT_THAT(grid.panels[0].series[0].points,
              ::testing::ElementsAre(std::pair(10.0, 20.0), std::pair(20.0, 40.0)));
  EXPECT_THAT(grid.panels[3].series[0].points,
              ::testing::ElementsAre(std::pair(10.0, 200.0), std::pair(20.0, 900.0)));
  for (const SvgPlot& panel : grid.panels) {  // one axis for all
    EXPECT_EQ(panel.low_y, 10);
    EXPECT_EQ(panel.high_y, 1000);
  }
  EXPECT_EQ(XmlError(grid.Draw()), "");
}

TEST(PlotsTest, EveryChartOfARunIsWellFormed) {
  RunRecord record;
  record.end_ns = 2'000'000'000;
  record.requests.resize(3);
  record.AddToken(0, 1'000'000);
  record.AddToken(0, 5'000'000);
  record.running.Hold(0, 1'000'000'000, 2);
  Summary summary;
  summary.label = "a & b";
  for (const NamedPlot& plot : PlotRuns({"a & b"}, {record})) {
    EXPECT_EQ(XmlError(plot.Draw()), "") << plot.file;
  }
  for (const NamedPlot& plot :
       PlotSweeps(std::vector<Sweep>{{"x", {1, 2}, {summary, summary}}}, "load")) {
    EXPECT_EQ(XmlError(plot.Draw()), "") << plot.file;
  }
  EXPECT_EQ(XmlError(PlotMemory({summary}).Draw()), "");
}

}  // namespace
}  // namespace flotilla::simulator
