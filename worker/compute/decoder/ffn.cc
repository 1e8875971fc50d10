#include "worker/compute/decoder/ffn.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace flotilla::worker {

using model::TensorRole;

FfnPart::Buffers FfnPart::AddBuffers(const WeightSource& weights, BufferHandle normed) {
  const std::int64_t columns = weights.shard().ffn.size();
  return {.normed = normed, .gate_up = weights.backend().AddBuffer(2 * columns)};
}

absl::StatusOr<FfnPart> FfnPart::Create(const WeightSource& weights, std::uint32_t layer,
                                        const Buffers& buffers) {
  const model::ModelSpec& spec = weights.spec();
  FfnPart part;
  part.buffers_ = buffers;
  part.norm_eps_ = spec.layers[layer].norm_eps;
  const auto norm = weights.AddVector(TensorRole::kFfnNorm, layer);
  if (!norm.ok()) return norm.status();
  part.norm_ = *norm;
  const auto gate_up = weights.AddMatrix({TensorRole::kGate, TensorRole::kUp}, layer);
  if (!gate_up.ok()) return gate_up.status();
  part.gate_up_ = *gate_up;
  const model::FfnSpec& ffn = spec.layers[layer].ffn;
  std::vector<std::int32_t> ends;
  for (std::uint32_t split = 1; split <= spec.ffn_splits(); ++split) {
    ends.push_back(static_cast<std::int32_t>(std::min(split * ffn.split, ffn.width)));
  }
  const auto down =
      weights.AddProjection(TensorRole::kDown, layer, std::move(ends),
                            [&](const ModelShard& shard) { return FfnSplits(spec, shard); });
  if (!down.ok()) return down.status();
  part.down_ = *down;
  return part;
}

void FfnPart::Run(BufferHandle residual, Backend& backend) const {
  backend.Norm(residual, norm_, norm_eps_, gate_up_, buffers_.normed);
  backend.GateUp(buffers_.normed, gate_up_, buffers_.gate_up);
  backend.AddProjection(buffers_.gate_up, down_, residual);
}

}  // namespace flotilla::worker
