// Plots: the charts of runs, by the name of the file that each is written to.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "simulator/run_record.h"
#include "simulator/summary.h"
#include "simulator/svg_plot.h"

namespace flotilla::simulator {

struct NamedPlot {
  std::string file;  // NAME.svg
  SvgPlot plot;
};

// Throughput, queue and used blocks over time, and the distributions of TTFT and
// ITL; one series per run, `labels` being their names. As many labels as records.
std::vector<NamedPlot> PlotRuns(absl::Span<const std::string> labels,
                                absl::Span<const RunRecord> records);

// One curve of a sweep over rates: a point per rate.
struct Sweep {
  std::string label;
  std::vector<double> rates;
  std::vector<Summary> runs;  // as many
};

// Latency over throughput, and goodput over rate.
std::vector<NamedPlot> PlotSweeps(absl::Span<const Sweep> sweeps);

// Sequences served at once, and throughput, by how memory is allocated.
NamedPlot PlotMemory(absl::Span<const Summary> runs);

}  // namespace flotilla::simulator
