#include "worker/compute/decoder/decoder.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

using model::TensorRole;

absl::Status Decoder::Check(const model::ModelSpec& spec) {
  const model::LayerSpec& first = spec.layers.front();
  std::string_view part;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::AttentionSpec& attention = layer.attention;
    bool alike = attention.heads == first.attention.heads &&
                 attention.head_dim == first.attention.head_dim &&
                 attention.value_dim == first.attention.value_dim &&
                 attention.kv_heads == first.attention.kv_heads &&
                 attention.latent == first.attention.latent;
    for (const model::FfnKind kind : model::kFfnKinds) {
      const model::FfnSpec &own = layer.ffn_of(kind), &of_all = spec.ffn(kind);
      alike = alike && (own.width == 0 || (own.width == of_all.width && own.gated == of_all.gated));
    }
    if (layer.moe.has_value()) {
      alike = alike && layer.moe->chosen == spec.moe()->chosen;
      if (!layer.moe->expert.gated) part = "experts without a gate";
    }
    if (attention.latent.has_value() &&
        (attention.head_norms != model::HeadNorms::kNone || attention.alibi || attention.sinks ||
         !layer.norms_before || attention.kv_heads != 1)) {
      part = "a latent beside other parts of attention";
    }
    const auto dims = KvDimsOf(attention);
    if (attention.head_norms == model::HeadNorms::kAllHeads &&
        (static_cast<std::uint32_t>(dims.key) != attention.head_dim)) {
      part = "one norm of heads whose size is no multiple of 16";
    }
    if (!alike) part = "layers of different sizes";
  }
  if (part.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the decoder cannot compute ", std::string(part)));
}

absl::StatusOr<Decoder> Decoder::Load(const model::Checkpoint& file, const model::ModelSpec& spec,
                                      absl::Span<const ModelShard> shards, ParallelShape shape,
                                      std::uint32_t rank, Backend& backend) {
  absl::Status status = Check(spec);
  if (status.ok()) status = backend.Check(spec);
  if (!status.ok()) return status;
  const WeightSource weights(file, spec, shards, shape, rank, backend);
  const std::uint32_t stage = rank / shape.tensor;
  Decoder decoder;
  decoder.backend_ = &backend;
  decoder.first_stage_ = stage == 0;
  decoder.last_stage_ = stage + 1 == shape.pipeline;
  decoder.residual_ = backend.AddBuffer(spec.hidden);
  const BufferHandle normed = backend.AddBuffer(spec.hidden);
  BufferHandle projected;
  if (std::any_of(spec.layers.begin(), spec.layers.end(), ResidualPart::NeedsBuffer)) {
    projected = backend.AddBuffer(spec.hidden);
  }
  const bool latent = spec.attention().latent.has_value();
  AttentionPart::Buffers attention_buffers;
  LatentPart::Buffers latent_buffers;
  if (latent) {
    latent_buffers = LatentPart::AddBuffers(weights, normed, projected);
  } else {
    attention_buffers = AttentionPart::AddBuffers(weights, normed, projected);
  }
  const auto ffn_buffers = FfnPart::AddBuffers(weights, normed, projected);
  const auto experts_buffers = ExpertsPart::AddBuffers(weights, normed, projected);

  if (decoder.first_stage_) {
    const auto embedding = weights.AddEmbedding();
    if (!embedding.ok()) return embedding.status();
    decoder.embedding_ = *embedding;
    if (weights.Has(TensorRole::kEmbeddingNorm)) {
      const auto norm = weights.AddNorm(spec.embedding_norm, TensorRole::kEmbeddingNorm,
                                        TensorRole::kEmbeddingNormBias, 0);
      if (!norm.ok()) return norm.status();
      decoder.embedding_norm_ = *norm;
    }
  }
  const IndexRange layers = weights.shard().layers;
  for (std::uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    Layer made{.attention = {}, .ffn = {}, .wiring = spec.layers[layer].wiring};
    if (latent) {
      auto attention = LatentPart::Create(weights, layer, latent_buffers);
      if (!attention.ok()) return attention.status();
      made.attention = *std::move(attention);
    } else {
      auto attention = AttentionPart::Create(weights, layer, attention_buffers);
      if (!attention.ok()) return attention.status();
      made.attention = *std::move(attention);
    }
    if (spec.layers[layer].moe.has_value()) {
      auto experts = ExpertsPart::Create(weights, layer, experts_buffers);
      if (!experts.ok()) return experts.status();
      made.ffn = *std::move(experts);
    } else {
      auto ffn = FfnPart::Create(weights, layer, ffn_buffers);
      if (!ffn.ok()) return ffn.status();
      made.ffn = *std::move(ffn);
    }
    decoder.layers_.push_back(std::move(made));
  }
  if (decoder.last_stage_) {
    const auto norm =
        weights.AddNorm(spec.output_norm, TensorRole::kOutputNorm, TensorRole::kOutputNormBias, 0);
    if (!norm.ok()) return norm.status();
    decoder.output_norm_ = *norm;
    const auto head = weights.AddHead();
    if (!head.ok()) return head.status();
    decoder.head_ = *head;
  }
  status = backend.Load();
  if (!status.ok()) return status;
  return decoder;
}

void Decoder::Start(StepInputs inputs, RowReceiver* receiver) const {
  StartFirst(static_cast<int>(layers_.size()), std::move(inputs), receiver);
}

void Decoder::StartFirst(int layers, StepInputs inputs, RowReceiver* receiver) const {
  const bool empty = inputs.rows() == 0;
  backend_->Start(std::move(inputs), receiver);
  if (empty) return;
  if (first_stage_) {
    backend_->Embed(embedding_, residual_);
    if (embedding_norm_.has_value()) backend_->NormInPlace(residual_, *embedding_norm_);
  } else {
    backend_->ReceiveResidual(residual_);
  }
  for (int i = 0; i < layers; ++i) {
    const Layer& layer = layers_[i];
    const auto begin_ffn = [&] {
      std::visit([&](const auto& ffn) { ffn.Begin(residual_, *backend_); }, layer.ffn);
    };
    std::visit([&](const auto& part) { part.Begin(residual_, *backend_); }, layer.attention);
    // In parallel the FFN sees the residual without the attention.
    if (layer.wiring == model::Wiring::kParallel) begin_ffn();
    std::visit([&](const auto& part) { part.End(residual_, *backend_); }, layer.attention);
    if (layer.wiring == model::Wiring::kSequential) begin_ffn();
    std::visit([&](const auto& ffn) { ffn.End(residual_, *backend_); }, layer.ffn);
  }
  if (last_stage_) {
    backend_->Head(residual_, output_norm_, head_);
  } else {
    backend_->SendResidual(residual_);
  }
}

}  // namespace flotilla::worker
