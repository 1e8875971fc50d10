// This part of Device computes a mixture of experts.
#include "tests/support/deferred_device.h"

#include "kernels/scalar_math.h"

namespace flotilla::testing {

absl::Status DeferredBackend::Device::RouteRows(BufferHandle x_handle,
                                                const std::optional<NormOp>& norm,
                                                ExpertsHandle handle, BufferHandle out_handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  const Experts& experts = experts_.at(handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  if ((norm.has_value() && x.width != SizeOf(*norm)) || experts.hidden != x.width ||
      out.width != x.width || x_handle.index() == out_handle.index()) {
    return Misfit("RouteRows");
  }
  routed_ = handle;
  routes_.assign(rows(), {});
  const auto chosen = static_cast<std::size_t>(experts.spec.chosen);
  for (std::size_t row = 0; row < rows(); ++row) {
    std::vector<float>& to = out.rows[row];
    const float* const from = x.rows[row].data();
    const std::vector<float> normed =
        norm.has_value() ? Normed(*norm, from, x.width) : std::vector<float>(from, from + x.width);
    std::copy(normed.begin(), normed.end(), to.begin());
    Operand operand = experts.router.OperandOf(worker::Recipe::kFp32, to.data());
    std::vector<float> logits(static_cast<std::size_t>(experts.spec.experts), kNaN);
    experts.router.Multiply(operand, logits.data());
    if (!experts.router_bias.empty()) {
      Reference().add(experts.router_bias.data(), logits.data(), experts.spec.experts);
    }
    Route& route = routes_[row];
    route.ids.resize(chosen);
    route.weights.resize(chosen);
    Reference().choose_experts(
        {.logits = logits.data(),
         .stride = experts.spec.experts,
         .experts = static_cast<int>(experts.spec.experts),
         .chosen = static_cast<int>(chosen),
         .scores = experts.spec.scores,
         .bias = experts.choice_bias.empty() ? nullptr : experts.choice_bias.data(),
         .groups = static_cast<int>(experts.spec.groups),
         .kept_groups = static_cast<int>(experts.spec.kept_groups),
         .group_pairs = experts.spec.group_pairs,
         .normalised = experts.spec.normalised,
         .factor = experts.spec.factor,
         .ids = route.ids.data(),
         .weights = route.weights.data()},
        0, 1);
    if (experts.shared_router.has_value()) {
      experts.shared_router->Multiply(operand, &route.shared_logit);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::GateUpExperts(BufferHandle x_handle, ExpertsHandle handle,
                                                    const worker::FfnOp& ffn,
                                                    BufferHandle out_handle) {
  const Experts& experts = experts_.at(handle.index());
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t columns = experts.experts.front().gate_up.columns();
  const std::int64_t width = ffn.gated ? columns / 2 : columns;
  if (routed_.index() != handle.index()) return Misfit("the rows are not routed");
  if (x.width != experts.hidden || out.width < columns * experts.spec.chosen) {
    return Misfit("GateUpExperts");
  }
  out.Poison();
  std::vector<float> gate_up(static_cast<std::size_t>(columns));
  for (std::size_t row = 0; row < rows(); ++row) {
    for (std::size_t i = 0; i < routes_[row].ids.size(); ++i) {
      const Experts::Expert& expert =
          experts.experts[static_cast<std::size_t>(routes_[row].ids[i])];
      Operand operand = expert.gate_up.OperandOf(options_.recipe, x.rows[row].data());
      expert.gate_up.Multiply(operand, gate_up.data());
      if (!expert.bias.empty()) Reference().add(expert.bias.data(), gate_up.data(), columns);
      Reference().activate({.activation = ffn.activation,
                            .gate = gate_up.data(),
                            .up = ffn.gated ? gate_up.data() + width : nullptr,
                            .in_stride = columns,
                            .n = static_cast<int>(width),
                            .out = out.rows[row].data() + static_cast<std::int64_t>(i) * columns,
                            .out_stride = width},
                           0, 1);
    }
  }
  return absl::OkStatus();
}

std::vector<float> DeferredBackend::Device::MixRow(const Experts& experts,
                                                   const worker::TreeProgram& program,
                                                   const Route& route, const float* x,
                                                   std::int64_t x_stride) const {
  std::vector<std::vector<float>> registers(program.depth);
  std::vector<float> partial(static_cast<std::size_t>(experts.hidden));
  for (const worker::TreeStep& step : program.steps) {
    std::vector<float>& sum = registers[step.to];
    if (!step.load) {
      Reference().add(registers[step.to + 1].data(), sum.data(), experts.hidden);
      continue;
    }
    sum.assign(partial.size(), 0.0f);
    for (std::size_t i = 0; i < route.ids.size(); ++i) {
      const Weights& down = experts.experts[static_cast<std::size_t>(route.ids[i])].down[step.from];
      Operand operand =
          down.OperandOf(options_.recipe, x + static_cast<std::int64_t>(i) * x_stride +
                                              experts.splits[step.from].at);
      down.Multiply(operand, partial.data());
      Reference().add_scaled(partial.data(), route.weights[i], sum.data(), experts.hidden);
    }
  }
  return std::move(registers.front());
}

absl::Status DeferredBackend::Device::RunMixture(BufferHandle x_handle, ExpertsHandle handle,
                                                 bool accumulate, BufferHandle out_handle) {
  const Experts& experts = experts_.at(handle.index());
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t x_stride = experts.experts.front().gate_up.columns();
  if (routed_.index() != handle.index()) return Misfit("the rows are not routed");
  if (out.width != experts.hidden || x.width < x_stride * experts.spec.chosen ||
      x_stride < experts.inputs()) {
    return Misfit("the mixture");
  }
  form_ = {};
  std::vector<float> sums;
  for (const worker::TreeProgram& program : experts.products) {
    for (std::size_t row = 0; row < rows(); ++row) {
      const std::vector<float> sum =
          MixRow(experts, program, routes_[row], x.rows[row].data(), x_stride);
      sums.insert(sums.end(), sum.begin(), sum.end());
    }
  }
  absl::Status status = ShareSums(experts.tree, experts.hidden, sums, accumulate, out);
  if (!status.ok() || experts.experts.front().down_bias.empty()) return status;
  for (std::size_t row = 0; row < rows(); ++row) {
    for (std::size_t i = 0; i < routes_[row].ids.size(); ++i) {
      const auto expert = static_cast<std::size_t>(routes_[row].ids[i]);
      Reference().add_scaled(experts.experts[expert].down_bias.data(), routes_[row].weights[i],
                             out.rows[row].data(), experts.hidden);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::ScaleShared(ExpertsHandle handle, BufferHandle x_handle) {
  Buffer& x = buffers_.at(x_handle.index());
  if (routed_.index() != handle.index()) return Misfit("the rows are not routed");
  for (std::size_t row = 0; row < rows(); ++row) {
    const float factor = 1.0f / (1.0f + kernels::Exp(-routes_[row].shared_logit));
    Reference().scale(x.rows[row].data(), factor, x.width);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::AddScaled(BufferHandle x_handle, float factor,
                                                BufferHandle residual_handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& residual = buffers_.at(residual_handle.index());
  if (x.width != residual.width) return Misfit("AddScaled");
  for (std::size_t row = 0; row < rows(); ++row) {
    Reference().add_scaled(x.rows[row].data(), factor, residual.rows[row].data(), x.width);
  }
  return absl::OkStatus();
}

}  // namespace flotilla::testing
