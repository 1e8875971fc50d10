// CostModel: how long a step takes on a machine, as a function of its shape.
//
// Two kinds. A roofline is derived from data sheets and the model's sizes:
//   max(memory, compute) + exchange + overhead
// A linear model is fitted to measured steps (step_fit.h):
//   a + b * prefill rows + c * decode rows + d * positions read by either
// Values only: no clock, no I/O. docs/simulate.md states the limits.
#pragma once

#include <cstdint>
#include <variant>

#include "absl/types/span.h"
#include "common/types/executor.h"
#include "worker/core/group_state.h"

namespace flotilla::simulator {

// What the time of a step depends on.
struct StepShape {
  std::uint64_t prefill_rows = 0;
  std::uint64_t decode_rows = 0;
  // Sum over rows of the positions that each attends to, itself included. This and the next are
  // means over the KV groups, because a layer with a window attends to no more than the window.
  std::uint64_t prefill_context = 0;
  std::uint64_t decode_context = 0;
  // Positions whose K and V are read: every chunk of a prompt reads those of its sequence
  // once, and every decode reads all of those of its sequence.
  std::uint64_t kv_positions = 0;
  // Rows that need logits.
  std::uint64_t samples = 0;

  std::uint64_t rows() const { return prefill_rows + decode_rows; }
  bool operator==(const StepShape&) const = default;
};

// The shape of a step that ranks are about to compute, of a model with these KV groups.
StepShape ShapeOf(const worker::Batch& batch, absl::Span<const KvGroup> groups);

// Bytes, FLOP and seconds of the whole group (all its ranks together).
struct RooflineModel {
  double weight_bytes = 0;        // read once a step, whatever the rows
  double kv_bytes_per_token = 0;  // K and V of one position, all layers
  double flops_per_row = 0;       // all products but the vocabulary's
  double flops_per_sample = 0;    // the vocabulary's
  // One row against one position: 2 products of 2 FLOP, all heads and layers.
  double flops_per_context = 0;
  double bytes_per_second = 0;  // data sheet
  double flops_per_second = 0;  // data sheet, dense, in the weights' type
  double memory_efficiency = 1;
  double compute_efficiency = 1;
  double step_overhead_ns = 0;  // launches, sampling, hand-over
  double row_overhead_ns = 0;   // sampling and result of a row with logits
  // All-reduces between the ranks: number in a step, latency of each, bytes that
  // a row adds to each and bytes per second at which one is reduced.
  double allreduces = 0;
  double allreduce_ns = 0;
  double allreduce_bytes_per_row = 0;
  double allreduce_bytes_per_second = 1;
};

// Nanoseconds.
struct LinearModel {
  double step_ns = 0;
  double prefill_row_ns = 0;
  double decode_row_ns = 0;
  double prefill_context_ns = 0;  // per row and position
  double decode_context_ns = 0;   // per row and position
};

using CostModel = std::variant<LinearModel, RooflineModel>;

// What limits a step of a roofline.
enum class Bound : std::uint8_t { kNone, kMemory, kCompute };

struct StepCost {
  std::int64_t ns = 1;  // at least 1
  Bound bound = Bound::kNone;
};

// The cost of a step. A step without rows takes a microsecond.
StepCost CostOf(const CostModel& model, const StepShape& shape);

}  // namespace flotilla::simulator
