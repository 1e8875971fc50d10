#include "simulator/cost_model.h"

#include <algorithm>
#include <cmath>

namespace flotilla::simulator {
namespace {

// A day. With this limit no parameters give a time that overflows when it is added up.
constexpr double kMaxStepNs = 86400e9;
// The cost of a plan with only drops and decodes of finished sequences. The plan is read, and
// nothing is launched.
constexpr std::int64_t kEmptyStepNs = 1000;

std::int64_t ToNs(double ns) {
  if (!(ns > 1)) return 1;  // also not a number
  return std::llround(std::min(ns, kMaxStepNs));
}

StepCost Cost(const LinearModel& m, const StepShape& s) {
  const double ns = m.step_ns + m.prefill_row_ns * static_cast<double>(s.prefill_rows) +
                    m.decode_row_ns * static_cast<double>(s.decode_rows) +
                    m.prefill_context_ns * static_cast<double>(s.prefill_context) +
                    m.decode_context_ns * static_cast<double>(s.decode_context);
  return {.ns = ToNs(ns)};
}

StepCost Cost(const RooflineModel& m, const StepShape& s) {
  const double rows = static_cast<double>(s.rows()), samples = static_cast<double>(s.samples);
  const double bytes = m.weight_bytes + m.kv_bytes_per_token * static_cast<double>(s.kv_positions);
  const double flops =
      m.flops_per_row * rows + m.flops_per_sample * samples +
      m.flops_per_context * static_cast<double>(s.prefill_context + s.decode_context);
  const double memory_ns = 1e9 * bytes / (m.bytes_per_second * m.memory_efficiency);
  const double compute_ns = 1e9 * flops / (m.flops_per_second * m.compute_efficiency);
  const double exchange_ns =
      m.allreduces *
      (m.allreduce_ns + 1e9 * m.allreduce_bytes_per_row * rows / m.allreduce_bytes_per_second);
  return {.ns = ToNs(std::max(memory_ns, compute_ns) + exchange_ns + m.step_overhead_ns +
                     m.row_overhead_ns * samples),
          .bound = memory_ns >= compute_ns ? Bound::kMemory : Bound::kCompute};
}

// The positions that a row or a sequence sees of `positions`.
std::uint64_t Seen(const KvGroup& group, std::uint64_t positions, std::uint64_t window) {
  return group.kind == KvGroup::Kind::kWindow ? std::min(positions, window) : positions;
}

// Row i of `rows` attends to first + i + 1 positions, or to the window.
std::uint64_t ContextOf(const KvGroup& group, std::uint64_t first, std::uint64_t rows) {
  const std::uint64_t window = Seen(group, first + rows, group.window);
  const std::uint64_t below = std::min(rows, window - std::min(first, window));
  return below * first + below * (below + 1) / 2 + (rows - below) * window;
}

}  // namespace

StepShape ShapeOf(const worker::Batch& batch, absl::Span<const KvGroup> groups) {
  StepShape shape;
  for (const worker::BatchItem& item : batch.items) {
    const std::uint64_t first = item.first_position, rows = item.row_count;
    (item.decode ? shape.decode_rows : shape.prefill_rows) += rows;
    for (const KvGroup& group : groups) {
      (item.decode ? shape.decode_context : shape.prefill_context) += ContextOf(group, first, rows);
      shape.kv_positions += Seen(group, first + rows, group.window + rows - 1);
    }
    shape.samples += item.samples || item.candidates > 0;
    shape.samples += item.prompt_targets.size();
  }
  shape.prefill_context /= groups.size();
  shape.decode_context /= groups.size();
  shape.kv_positions /= groups.size();
  return shape;
}

StepCost CostOf(const CostModel& model, const StepShape& shape) {
  if (shape.rows() == 0) return {.ns = kEmptyStepNs};
  return std::visit([&](const auto& m) { return Cost(m, shape); }, model);
}

}  // namespace flotilla::simulator
