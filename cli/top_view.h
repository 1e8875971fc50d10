// What `flotilla top` shows. Two looks at the metrics of a fleet's processes become rows, and
// rows become tables. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/metrics_page.h"

namespace flotilla::cli {

// The metrics of a process, or why they could not be read.
struct Look {
  std::string address;  // host:port
  absl::StatusOr<MetricsPage> page;
};

// Rates and latencies cover the time between the two looks. None: nothing happened, or there
// was only one look.
struct RouterRow {
  std::string address;
  bool ready = false, draining = false;
  double in_flight = 0;
  std::optional<double> requests_per_s, refused_per_s;
  std::optional<double> first_token_p50_s, first_token_p99_s, inter_token_p50_s, inter_token_p99_s;

  bool operator==(const RouterRow&) const = default;
};

struct ReplicaRow {  // a scheduler
  std::string address, model;
  bool ready = false, draining = false;
  double waiting = 0, running = 0;
  double blocks_used = 0, blocks_total = 0;
  double step_age_s = 0;
  std::optional<double> batch;  // mean sequences of a step
  std::optional<double> output_tokens_per_s, prompt_tokens_per_s;
  std::optional<double> hit_ratio;  // of the prefix cache

  bool operator==(const ReplicaRow&) const = default;
};

struct WorkerRow {
  std::string address;
  std::optional<double> busy;  // share of time in forward and sampling
  std::optional<double> steps_per_s, tokens_per_s, s_per_step;
  // The process and its ranks together.
  std::optional<double> cpu_cores;
  double resident_bytes = 0;

  bool operator==(const WorkerRow&) const = default;
};

struct TopView {
  std::vector<RouterRow> routers;
  std::vector<ReplicaRow> replicas;
  std::vector<WorkerRow> workers;
  std::vector<std::string> missing;  // "address: why" of processes that were not read
};

// `before` is empty, or has the processes of `now` in the same order. A process has a row
// for each role that it plays: `flotilla serve` has all three.
TopView MakeTopView(absl::Span<const Look> before, absl::Span<const Look> now);

// Tables whose lines have at most `columns` characters; none: no bound. If there is too little
// room, columns are left out, the least useful first, and then lines are cut. Names that come
// from processes and users are made printable.
std::string TopText(const TopView& view, std::optional<std::size_t> columns = std::nullopt);

}  // namespace flotilla::cli
