// Plots: the charts of runs, by the name of the file that each is written to.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/report/svg_plot.h"
#include "simulator/run_record.h"
#include "simulator/summary.h"

namespace flotilla::simulator {

struct NamedPlot {
  std::string file;  // NAME.svg
  // One, or the panels of a grid.
  std::vector<SvgPlot> panels;
  // Of a grid.
  std::string title{};
  std::size_t columns = 0;

  std::string Draw() const;
};

// Throughput, queue and used blocks over time, and the distributions of TTFT and
// ITL; one series per run, `labels` being their names. As many labels as records.
std::vector<NamedPlot> PlotRuns(absl::Span<const std::string> labels,
                                absl::Span<const RunRecord> records);

// One curve of a sweep over loads: a point per load.
struct Sweep {
  std::string label;
  std::vector<double> loads;  // rates of arrivals, or numbers of users
  std::vector<Summary> runs;  // as many
};

// Latency over throughput; goodput over load; TTFT, throughput and the share of prompts that the
// prefix cache has, over load; TTFT over load by length of the prompt, and by
// priority and by tenant if there are several. `load` names the axis of loads, with its unit.
std::vector<NamedPlot> PlotSweeps(absl::Span<const Sweep> sweeps, const std::string& load);

// Sequences served at once, and throughput, by how memory is allocated.
NamedPlot PlotMemory(absl::Span<const Summary> runs);

}  // namespace flotilla::simulator
