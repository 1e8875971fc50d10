#include "worker/compute/decoder/attention.h"

#include <utility>
#include <vector>

namespace flotilla::worker {

using model::TensorRole;

AttentionPart::Buffers AttentionPart::AddBuffers(const WeightSource& weights, BufferHandle normed) {
  const model::AttentionSpec& spec = weights.spec().attention();
  const std::int64_t keys = std::int64_t{weights.shard().kv_heads.size()} * spec.head_dim;
  const std::int64_t queries = keys * (spec.heads / spec.kv_heads);
  Backend& backend = weights.backend();
  Buffers buffers{.normed = normed,
                  .qkv = backend.AddBuffer(queries + 2 * keys),
                  .attended = backend.AddBuffer(queries),
                  .ropes = {}};
  for (const model::RopeSpec& rope : weights.spec().ropes) {
    buffers.ropes.push_back(backend.AddRope(rope.frequencies));
  }
  return buffers;
}

absl::StatusOr<AttentionPart> AttentionPart::Create(const WeightSource& weights,
                                                    std::uint32_t layer, const Buffers& buffers) {
  const model::LayerSpec& layer_spec = weights.spec().layers[layer];
  const model::AttentionSpec& spec = layer_spec.attention;
  const int group = static_cast<int>(spec.heads / spec.kv_heads);
  const int kv_heads = static_cast<int>(weights.shard().kv_heads.size());
  AttentionPart part;
  part.buffers_ = buffers;
  part.norm_eps_ = layer_spec.norm_eps;
  part.op_ = {.layer = static_cast<int>(layer - weights.shard().layers.begin),
              .group = GroupIndex{spec.kv_group},
              .heads = kv_heads * group,
              .kv_heads = kv_heads,
              .head_dim = static_cast<int>(spec.head_dim),
              .scale = spec.scale,
              .rope = buffers.ropes[spec.rope],
              .query_norm = {},
              .key_norm = {},
              .norm_eps = layer_spec.norm_eps};

  const auto norm = weights.AddVector(TensorRole::kAttentionNorm, layer);
  if (!norm.ok()) return norm.status();
  part.norm_ = *norm;
  if (spec.head_norms) {
    const auto query_norm = weights.AddVector(TensorRole::kQueryNorm, layer);
    if (!query_norm.ok()) return query_norm.status();
    const auto key_norm = weights.AddVector(TensorRole::kKeyNorm, layer);
    if (!key_norm.ok()) return key_norm.status();
    part.op_.query_norm = *query_norm;
    part.op_.key_norm = *key_norm;
  }
  const auto qkv =
      weights.AddMatrix({TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue}, layer);
  if (!qkv.ok()) return qkv.status();
  part.qkv_ = *qkv;
  std::vector<std::int32_t> ends;
  for (std::uint32_t head = 1; head <= weights.spec().attention_splits(); ++head) {
    ends.push_back(static_cast<std::int32_t>(head * group * spec.head_dim));
  }
  const auto output =
      weights.AddProjection(TensorRole::kAttentionOutput, layer, std::move(ends), AttentionSplits);
  if (!output.ok()) return output.status();
  part.output_ = *output;
  return part;
}

void AttentionPart::Run(BufferHandle residual, Backend& backend) const {
  backend.Norm(residual, norm_, norm_eps_, qkv_, buffers_.normed);
  backend.Multiply(buffers_.normed, qkv_, buffers_.qkv);
  backend.RopeAndStore(op_, buffers_.qkv);
  backend.Attend(op_, buffers_.qkv, buffers_.attended);
  backend.AddProjection(buffers_.attended, output_, residual);
}

}  // namespace flotilla::worker
