#include "worker/compute/decoder/ffn.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/core/split_layout.h"

namespace flotilla::worker {

using model::TensorRole;

FfnPart::Buffers FfnPart::AddBuffers(const WeightSource& weights, BufferHandle normed,
                                     BufferHandle projected) {
  const std::uint32_t columns = weights.shard().ffn.size();
  const std::int64_t padded = (columns + kSplitBlock - 1) / kSplitBlock * kSplitBlock;
  const std::int64_t width = weights.spec().ffn().gated ? 2 * padded : padded;
  return {.normed = normed, .projected = projected, .gate_up = weights.backend().AddBuffer(width)};
}

absl::StatusOr<FfnPart> FfnPart::Create(const WeightSource& weights, std::uint32_t layer,
                                        const Buffers& buffers) {
  const model::LayerSpec& spec = weights.spec().layers[layer];
  FfnPart part;
  part.buffers_ = buffers;
  part.op_ = {.activation = spec.ffn.activation, .gated = spec.ffn.gated};
  if (spec.norms_before) {
    const bool own = weights.Has(TensorRole::kFfnNorm);
    const auto norm =
        weights.AddNorm(spec.norm, own ? TensorRole::kFfnNorm : TensorRole::kAttentionNorm,
                        own ? TensorRole::kFfnNormBias : TensorRole::kAttentionNormBias, layer);
    if (!norm.ok()) return norm.status();
    part.norm_ = *norm;
  }
  const auto gate_up =
      spec.ffn.gated
          ? weights.AddMatrix({TensorRole::kGate, TensorRole::kUp},
                              {TensorRole::kGateBias, TensorRole::kUpBias}, layer, kSplitBlock)
          : weights.AddMatrix({TensorRole::kUp}, {TensorRole::kUpBias}, layer, kSplitBlock);
  if (!gate_up.ok()) return gate_up.status();
  part.gate_up_ = *gate_up;
  std::vector<std::int32_t> ends;
  for (std::uint32_t split = 1; split <= spec.ffn.splits(); ++split) {
    ends.push_back(static_cast<std::int32_t>(std::min(split * spec.ffn.split(), spec.ffn.width)));
  }
  const auto projection = weights.AddProjection(
      TensorRole::kDown, TensorRole::kDownBias, layer, std::move(ends),
      [&](const ModelShard& shard) { return FfnSplits(weights.spec(), shard); });
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
