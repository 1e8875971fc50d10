#include "worker/compute/decoder/ffn.h"

#include <utility>

#include "worker/core/split_layout.h"

namespace flotilla::worker {

using model::TensorRole;

FfnPart::Buffers FfnPart::AddBuffers(const WeightSource& weights, BufferHandle normed,
                                     BufferHandle projected) {
  return {.normed = normed,
          .projected = projected,
          .gate_up = AddGateUpBuffer(weights, model::FfnKind::kDense, 1)};
}

BufferHandle FfnPart::AddGateUpBuffer(const WeightSource& weights, model::FfnKind kind,
                                      std::uint32_t count) {
  const std::uint32_t columns = weights.shard().columns(kind).size();
  if (columns == 0) return {};
  const std::int64_t padded = (columns + kSplitBlock - 1) / kSplitBlock * kSplitBlock;
  const std::int64_t width = weights.spec().ffn(kind).gated ? 2 * padded : padded;
  return weights.backend().AddBuffer(count * width);
}

absl::StatusOr<std::optional<NormOp>> FfnPart::AddNorm(const WeightSource& weights,
                                                       std::uint32_t layer) {
  const model::LayerSpec& spec = weights.spec().layers[layer];
  if (!spec.norms_before) return std::nullopt;
  const bool own = weights.Has(TensorRole::kFfnNorm);
  const auto norm =
      weights.AddNorm(spec.norm, own ? TensorRole::kFfnNorm : TensorRole::kAttentionNorm,
                      own ? TensorRole::kFfnNormBias : TensorRole::kAttentionNormBias, layer);
  if (!norm.ok()) return norm.status();
  return *norm;
}

absl::StatusOr<FfnPart> FfnPart::Create(const WeightSource& weights, std::uint32_t layer,
                                        const Buffers& buffers) {
  const model::LayerSpec& spec = weights.spec().layers[layer];
  FfnPart part;
  part.buffers_ = buffers;
  part.op_ = {.activation = spec.ffn.activation, .gated = spec.ffn.gated};
  auto norm = AddNorm(weights, layer);
  if (!norm.ok()) return norm.status();
  part.norm_ = *norm;
  const auto gate_up =
      spec.ffn.gated
          ? weights.AddMatrix({TensorRole::kGate, TensorRole::kUp},
                              {TensorRole::kGateBias, TensorRole::kUpBias}, layer, kSplitBlock)
          : weights.AddMatrix({TensorRole::kUp}, {TensorRole::kUpBias}, layer, kSplitBlock);
  if (!gate_up.ok()) return gate_up.status();
  part.gate_up_ = *gate_up;
  const auto projection =
      weights.AddProjection(TensorRole::kDown, TensorRole::kDownBias, layer,
                            DownSplitEnds(spec.ffn), [&](const ModelShard& shard) {
                              return FfnSplits(weights.spec(), shard, model::FfnKind::kDense);
                            });
  if (!projection.ok()) return projection.status();
  auto down = ResidualPart::Create(weights, layer, *projection, TensorRole::kFfnPostNorm);
  if (!down.ok()) return down.status();
  part.down_ = *std::move(down);
  return part;
}

void FfnPart::Begin(BufferHandle residual, Backend& backend) const {
  if (norm_.has_value()) {
    backend.Norm(residual, *norm_, gate_up_, buffers_.normed);
  } else {
    backend.Prepare(residual, gate_up_, buffers_.normed);
  }
  backend.GateUp(buffers_.normed, gate_up_, op_, buffers_.gate_up);
}

void FfnPart::End(BufferHandle residual, Backend& backend) const {
  down_.Run(buffers_.gate_up, buffers_.projected, residual, backend);
}

}  // namespace flotilla::worker
