#include "worker/compute/decoder/attention.h"

#include <utility>
#include <vector>

#include "worker/core/split_layout.h"

namespace flotilla::worker {
namespace {

using model::TensorRole;

// Where the splits of the output product are, by query heads.
std::vector<SplitPlace> OutputSplits(const model::AttentionSpec& spec) {
  return PlaceSplits(OutputSplitEnds(spec));
}

// A norm of all heads needs all heads, on every rank.
bool ProjectsAll(const model::AttentionSpec& spec) {
  return spec.head_norms == model::HeadNorms::kAllHeads;
}

// The slopes of this rank's heads.
std::vector<float> Slopes(const model::AttentionSpec& spec, IndexRange heads) {
  std::vector<float> slopes;
  for (std::uint32_t head = heads.begin; head < heads.end; ++head) {
    slopes.push_back(model::AlibiSlope(head, spec.heads));
  }
  return slopes;
}

// All of an attention's operation that does not need weights.
AttentionOp MakeOp(const model::ModelSpec& model, const ModelShard& shard, std::uint32_t layer,
                   absl::Span<const RopeHandle> ropes) {
  const model::AttentionSpec& spec = model.layers[layer].attention;
  const IndexRange heads = OwnHeads(model, shard), kv_heads = OwnKvHeads(model, shard);
  const bool all = ProjectsAll(spec);
  AttentionOp op{.layer = static_cast<int>(layer - shard.layers.begin),
                 .group = GroupIndex{spec.kv_group},
                 .heads = static_cast<int>(heads.size()),
                 .kv_heads = static_cast<int>(kv_heads.size()),
                 .projected_heads = static_cast<int>(all ? spec.heads : heads.size()),
                 .projected_kv_heads = static_cast<int>(all ? spec.kv_heads : kv_heads.size()),
                 .first_head = static_cast<int>(all ? heads.begin : 0),
                 .first_kv_head = static_cast<int>(all ? kv_heads.begin : 0),
                 .dims = KvDimsOf(spec),
                 .head_dim = static_cast<int>(spec.head_dim),
                 .result_dim = static_cast<int>(spec.value_dim),
                 .rope_at = 0,
                 .kv_scales = model.KvScalesOf(layer),
                 .scale = spec.scale,
                 .window = static_cast<int>(spec.window),
                 .softcap = spec.softcap,
                 .slopes = {},
                 .sinks = {},
                 .rope = spec.rope.has_value() ? ropes[*spec.rope] : RopeHandle(),
                 .head_norms = spec.head_norms,
                 .query_norm = {},
                 .key_norm = {},
                 .head_places = {}};
  const std::vector<SplitPlace> splits = OutputSplits(spec);
  const std::uint32_t heads_per_split = spec.heads / spec.splits();
  for (std::uint32_t head = heads.begin; head < heads.end; ++head) {
    const SplitPlace& split = splits[head / heads_per_split];
    const std::uint32_t in_split = head % heads_per_split * spec.value_dim;
    op.head_places.push_back(split.own_at() + static_cast<std::int32_t>(in_split) -
                             splits[shard.attention.begin].at);
  }
  return op;
}

}  // namespace

AttentionPart::Buffers AttentionPart::AddBuffers(const WeightSource& weights, BufferHandle normed,
                                                 BufferHandle projected) {
  const model::AttentionSpec& spec = weights.spec().attention();
  const AttentionOp op = MakeOp(weights.spec(), weights.shard(), weights.shard().layers.begin,
                                std::vector<RopeHandle>(weights.spec().ropes.size()));
  const std::vector<SplitPlace> splits = OutputSplits(spec);
  const IndexRange own = weights.shard().attention;
  const SplitPlace &first = splits[own.begin], &last = splits[own.end - 1];
  Backend& backend = weights.backend();
  Buffers buffers{.normed = normed,
                  .projected = projected,
                  .qkv = backend.AddBuffer(
                      std::int64_t{op.projected_heads + op.projected_kv_heads} * op.dims.key +
                      std::int64_t{op.kv_heads} * op.dims.value),
                  .attended = backend.AddBuffer(last.at + last.width - first.at),
                  .ropes = {}};
  for (const model::RopeSpec& rope : weights.spec().ropes) {
    buffers.ropes.push_back(backend.AddRope(rope));
  }
  return buffers;
}

absl::StatusOr<AttentionPart> AttentionPart::Create(const WeightSource& weights,
                                                    std::uint32_t layer, const Buffers& buffers) {
  const model::LayerSpec& layer_spec = weights.spec().layers[layer];
  const model::AttentionSpec& spec = layer_spec.attention;
  Backend& backend = weights.backend();
  AttentionPart part;
  part.buffers_ = buffers;
  part.op_ = MakeOp(weights.spec(), weights.shard(), layer, buffers.ropes);
  if (layer_spec.norms_before) {
    const auto norm = weights.AddNorm(layer_spec.norm, TensorRole::kAttentionNorm,
                                      TensorRole::kAttentionNormBias, layer);
    if (!norm.ok()) return norm.status();
    part.norm_ = *norm;
  }
  if (spec.head_norms != model::HeadNorms::kNone) {
    const auto query = weights.AddNorm(spec.head_norm, TensorRole::kQueryNorm, std::nullopt, layer);
    if (!query.ok()) return query.status();
    const auto key = weights.AddNorm(spec.head_norm, TensorRole::kKeyNorm, std::nullopt, layer);
    if (!key.ok()) return key.status();
    part.op_.query_norm = *query;
    part.op_.key_norm = *key;
  }
  if (spec.alibi) {
    part.op_.slopes = backend.AddVector(Slopes(spec, OwnHeads(weights.spec(), weights.shard())));
  }
  if (spec.sinks) {
    const auto sinks = weights.AddVector(TensorRole::kSinks, layer);
    if (!sinks.ok()) return sinks.status();
    part.op_.sinks = *sinks;
  }
  const auto qkv = weights.AddQkv(layer);
  if (!qkv.ok()) return qkv.status();
  part.qkv_ = *qkv;
  const auto projection = weights.AddProjection(
      TensorRole::kAttentionOutput, TensorRole::kAttentionOutputBias, layer, OutputSplitEnds(spec),
      [](const ModelShard& shard) { return shard.attention; });
  if (!projection.ok()) return projection.status();
  auto output = ResidualPart::Create(weights, layer, *projection, TensorRole::kAttentionPostNorm);
  if (!output.ok()) return output.status();
  part.output_ = *std::move(output);
  backend.AddAttention(part.op_);
  return part;
}

void AttentionPart::Begin(BufferHandle residual, Backend& backend) const {
  if (norm_.has_value()) {
    backend.Norm(residual, *norm_, qkv_, buffers_.normed);
  } else {
    backend.Prepare(residual, qkv_, buffers_.normed);
  }
  backend.Multiply(buffers_.normed, qkv_, buffers_.qkv);
  backend.RopeAndStore(op_, buffers_.qkv);
  backend.Attend(op_, buffers_.qkv, buffers_.attended);
}

void AttentionPart::End(BufferHandle residual, Backend& backend) const {
  output_.Run(buffers_.attended, buffers_.projected, residual, backend);
}

}  // namespace flotilla::worker
