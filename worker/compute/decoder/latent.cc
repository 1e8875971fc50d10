#include "worker/compute/decoder/latent.h"

#include <utility>

#include "worker/core/split_layout.h"

namespace flotilla::worker {
namespace {

using model::TensorRole;

// All of an attention's operation that does not need weights.
AttentionOp MakeLatentOp(const model::ModelSpec& model, const ModelShard& shard,
                         std::uint32_t layer, absl::Span<const RopeHandle> ropes) {
  const model::AttentionSpec& spec = model.layers[layer].attention;
  const auto heads = static_cast<int>(OwnHeads(model, shard).size());
  AttentionOp op{.layer = static_cast<int>(layer - shard.layers.begin),
                 .group = GroupIndex{spec.kv_group},
                 .heads = heads,
                 .kv_heads = 1,
                 .projected_heads = heads,
                 .projected_kv_heads = 1,
                 .dims = KvDimsOf(spec),
                 .head_dim = static_cast<int>(spec.key_dim()),
                 .result_dim = static_cast<int>(spec.latent->rank),
                 .rope_at = static_cast<int>(spec.latent->rank),
                 .kv_scales = model.KvScalesOf(layer),
                 .scale = spec.scale,
                 .window = static_cast<int>(spec.window),
                 .softcap = spec.softcap,
                 .slopes = {},
                 .sinks = {},
                 .rope = spec.rope.has_value() ? ropes[*spec.rope] : RopeHandle(),
                 .query_norm = {},
                 .key_norm = {},
                 .head_places = {}};
  const auto width = static_cast<std::int32_t>(WidthsOf(spec).latent);
  for (int head = 0; head < heads; ++head) op.head_places.push_back(head * width);
  return op;
}

}  // namespace

LatentPart::Buffers LatentPart::AddBuffers(const WeightSource& weights, BufferHandle normed,
                                           BufferHandle projected) {
  const model::AttentionSpec& spec = weights.spec().attention();
  const LatentWidths widths = WidthsOf(spec);
  const auto heads = std::int64_t{OwnHeads(weights.spec(), weights.shard()).size()};
  const std::vector<SplitPlace> splits = PlaceSplits(OutputSplitEnds(spec));
  const IndexRange own = weights.shard().attention;
  const SplitPlace &first = splits[own.begin], &last = splits[own.end - 1];
  Backend& backend = weights.backend();
  Buffers buffers{.normed = normed,
                  .projected = projected,
                  .query_down = {},
                  .query_in = {},
                  .queries = backend.AddBuffer(heads * widths.query),
                  .latent = backend.AddBuffer(spec.key_dim()),
                  .qkv = backend.AddBuffer((heads + 1) * spec.key_dim()),
                  .latents = backend.AddBuffer(heads * widths.latent),
                  .attended = backend.AddBuffer(last.at + last.width - first.at),
                  .ropes = {}};
  if (spec.latent->query_rank > 0) {
    buffers.query_down = backend.AddBuffer(spec.latent->query_rank);
    buffers.query_in = backend.AddBuffer(widths.query_rank);
  }
  for (const model::RopeSpec& rope : weights.spec().ropes) {
    buffers.ropes.push_back(backend.AddRope(rope));
  }
  return buffers;
}

absl::StatusOr<LatentPart> LatentPart::Create(const WeightSource& weights, std::uint32_t layer,
                                              const Buffers& buffers) {
  const model::LayerSpec& layer_spec = weights.spec().layers[layer];
  const model::AttentionSpec& spec = layer_spec.attention;
  const model::LatentSpec& latent = *spec.latent;
  LatentPart part;
  part.buffers_ = buffers;
  part.op_ = MakeLatentOp(weights.spec(), weights.shard(), layer, buffers.ropes);
  absl::Status status;
  const auto take = [&status](auto made, auto& to) {
    status.Update(made.status());
    if (made.ok()) to = *std::move(made);
  };
  const auto norm = [&](const model::NormSpec& of, TensorRole role, NormOp& to) {
    take(weights.AddNorm(of, role, std::nullopt, layer), to);
  };
  norm(layer_spec.norm, TensorRole::kAttentionNorm, part.norm_);
  if (latent.query_rank > 0) {
    take(weights.AddMatrix({TensorRole::kQueryDown}, {TensorRole::kQueryDownBias}, layer),
         part.query_down_);
    norm(latent.norm, TensorRole::kQueryDownNorm, part.query_norm_);
  }
  take(weights.AddQueries(layer), part.query_);
  take(weights.AddMatrix({TensorRole::kLatent}, {TensorRole::kLatentBias}, layer), part.latent_);
  norm(latent.norm, TensorRole::kLatentNorm, part.latent_op_.norm);
  part.latent_op_.rope_dim = static_cast<int>(latent.rope_dim);
  take(weights.AddHeadMatrices(TensorRole::kLatentKeys, layer), part.latent_op_.keys);
  take(weights.AddHeadMatrices(TensorRole::kLatentValues, layer), part.values_);
  const std::vector<SplitPlace> splits = PlaceSplits(OutputSplitEnds(spec));
  const IndexRange own = weights.shard().attention;
  for (std::uint32_t split = own.begin; split < own.end; ++split) {
    part.value_places_.push_back(splits[split].own_at() - splits[own.begin].at);
  }
  if (!status.ok()) return status;
  const auto projection = weights.AddProjection(
      TensorRole::kAttentionOutput, TensorRole::kAttentionOutputBias, layer, OutputSplitEnds(spec),
      [](const ModelShard& shard) { return shard.attention; });
  if (!projection.ok()) return projection.status();
  auto output = ResidualPart::Create(weights, layer, *projection, TensorRole::kAttentionPostNorm);
  if (!output.ok()) return output.status();
  part.output_ = *std::move(output);
  return part;
}

void LatentPart::Begin(BufferHandle residual, Backend& backend) const {
  backend.Norm(residual, norm_, latent_, buffers_.normed);
  backend.Multiply(buffers_.normed, latent_, buffers_.latent);
  if (query_down_.has_value()) {
    backend.Norm(residual, norm_, *query_down_, buffers_.normed);
    backend.Multiply(buffers_.normed, *query_down_, buffers_.query_down);
    backend.Norm(buffers_.query_down, query_norm_, query_, buffers_.query_in);
    backend.Multiply(buffers_.query_in, query_, buffers_.queries);
  } else {
    backend.Norm(residual, norm_, query_, buffers_.normed);
    backend.Multiply(buffers_.normed, query_, buffers_.queries);
  }
  backend.Absorb(latent_op_, buffers_.queries, buffers_.latent, buffers_.qkv);
  backend.RopeAndStore(op_, buffers_.qkv);
  backend.Attend(op_, buffers_.qkv, buffers_.latents);
  backend.MultiplyHeads(buffers_.latents, values_, value_places_, buffers_.attended);
}

void LatentPart::End(BufferHandle residual, Backend& backend) const {
  output_.Run(buffers_.attended, buffers_.projected, residual, backend);
}

}  // namespace flotilla::worker
