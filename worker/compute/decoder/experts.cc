#include "worker/compute/decoder/experts.h"

#include <utility>

#include "worker/compute/decoder/ffn.h"
#include "worker/core/split_layout.h"

namespace flotilla::worker {

using model::FfnKind;
using model::TensorRole;

ExpertsPart::Buffers ExpertsPart::AddBuffers(const WeightSource& weights, BufferHandle normed,
                                             BufferHandle projected) {
  const model::MoeSpec* const spec = weights.spec().moe();
  if (spec == nullptr) return {};
  return {.routed = weights.backend().AddBuffer(weights.spec().hidden),
          .normed = normed,
          .projected = projected,
          .gate_up = FfnPart::AddGateUpBuffer(weights, FfnKind::kExpert, spec->chosen),
          .shared_gate_up = FfnPart::AddGateUpBuffer(weights, FfnKind::kShared, 1)};
}

absl::StatusOr<ExpertsPart> ExpertsPart::Create(const WeightSource& weights, std::uint32_t layer,
                                                const Buffers& buffers) {
  const model::MoeSpec& spec = *weights.spec().layers[layer].moe;
  ExpertsPart part;
  part.buffers_ = buffers;
  part.op_ = {.activation = spec.expert.activation, .gated = spec.expert.gated};
  auto norm = FfnPart::AddNorm(weights, layer);
  if (!norm.ok()) return norm.status();
  part.norm_ = *norm;
  const auto experts = weights.AddExperts(spec, layer, kSplitBlock, [&](const ModelShard& shard) {
    return FfnSplits(weights.spec(), shard, FfnKind::kExpert);
  });
  if (!experts.ok()) return experts.status();
  part.experts_ = *experts;
  if (spec.shared.width > 0) {
    auto shared = AddShared(weights, spec, layer);
    if (!shared.ok()) return shared.status();
    part.shared_ = *shared;
  }
  auto end = ResidualPart::Create(weights, layer, {}, TensorRole::kFfnPostNorm);
  if (!end.ok()) return end.status();
  part.end_ = *std::move(end);
  return part;
}

absl::StatusOr<ExpertsPart::Shared> ExpertsPart::AddShared(const WeightSource& weights,
                                                           const model::MoeSpec& spec,
                                                           std::uint32_t layer) {
  Shared shared{.op = {.activation = spec.shared.activation, .gated = spec.shared.gated},
                .scaled = weights.Has(TensorRole::kSharedRouter),
                .gate_up = {},
                .down = {}};
  const auto gate_up = weights.AddMatrix({TensorRole::kSharedGate, TensorRole::kSharedUp},
                                         {TensorRole::kSharedGateBias, TensorRole::kSharedUpBias},
                                         layer, kSplitBlock);
  if (!gate_up.ok()) return gate_up.status();
  shared.gate_up = *gate_up;
  const auto down = weights.AddProjection(
      TensorRole::kSharedDown, TensorRole::kSharedDownBias, layer, DownSplitEnds(spec.shared),
      [&](const ModelShard& shard) { return FfnSplits(weights.spec(), shard, FfnKind::kShared); });
  if (!down.ok()) return down.status();
  shared.down = *down;
  return shared;
}

void ExpertsPart::Begin(BufferHandle residual, Backend& backend) const {
  backend.RouteRows(residual, norm_, experts_, buffers_.routed);
  backend.GateUpExperts(buffers_.routed, experts_, op_, buffers_.gate_up);
  if (!shared_.has_value()) return;
  backend.Prepare(buffers_.routed, shared_->gate_up, buffers_.normed);
  backend.GateUp(buffers_.normed, shared_->gate_up, shared_->op, buffers_.shared_gate_up);
  if (shared_->scaled) backend.ScaleShared(experts_, buffers_.shared_gate_up);
}

void ExpertsPart::End(BufferHandle residual, Backend& backend) const {
  const BufferHandle sum = end_.direct() ? residual : buffers_.projected;
  if (end_.direct()) {
    backend.AddMixture(buffers_.gate_up, experts_, residual);
  } else {
    backend.Mix(buffers_.gate_up, experts_, sum);
  }
  if (shared_.has_value()) backend.AddProjection(buffers_.shared_gate_up, shared_->down, sum);
  if (!end_.direct()) end_.Add(sum, residual, backend);
}

}  // namespace flotilla::worker
