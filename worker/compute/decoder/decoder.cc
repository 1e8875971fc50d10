#include "worker/compute/decoder/decoder.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

using model::TensorRole;

absl::Status Decoder::Check(const model::ModelSpec& spec) {
  const model::LayerSpec& layer = spec.layers.front();
  const auto alike = [&](const model::LayerSpec& other) { return other == layer; };
  std::string_view part;
  if (!layer.norms_before) part = "layers without norms before their parts";
  if (layer.norms_after) part = "norms after the parts of a layer";
  if (layer.wiring == model::Wiring::kParallel) part = "attention and FFN in parallel";
  if (layer.residual_factor != 1) part = "a factor of the residual";
  if (layer.moe.has_value()) part = "a mixture of experts";
  if (spec.kv_groups.size() > 1) part = "several KV groups";
  if (spec.kv_groups.front().window > 0) part = "attention in a window";
  if (!std::all_of(spec.layers.begin(), spec.layers.end(), alike)) part = "layers that differ";
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
  const auto attention_buffers = AttentionPart::AddBuffers(weights, normed);
  const auto ffn_buffers = FfnPart::AddBuffers(weights, normed);

  if (decoder.first_stage_) {
    const auto embedding = weights.AddEmbedding();
    if (!embedding.ok()) return embedding.status();
    decoder.embedding_ = *embedding;
  }
  const IndexRange layers = weights.shard().layers;
  for (std::uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    auto attention = AttentionPart::Create(weights, layer, attention_buffers);
    if (!attention.ok()) return attention.status();
    auto ffn = FfnPart::Create(weights, layer, ffn_buffers);
    if (!ffn.ok()) return ffn.status();
    decoder.layers_.push_back({*std::move(attention), *std::move(ffn)});
  }
  if (decoder.last_stage_) {
    const auto norm = weights.AddVector(TensorRole::kOutputNorm, 0);
    if (!norm.ok()) return norm.status();
    decoder.output_norm_ = *norm;
    decoder.output_norm_eps_ = spec.output_norm_eps;
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
  } else {
    backend_->ReceiveResidual(residual_);
  }
  for (int i = 0; i < layers; ++i) {
    layers_[i].attention.Run(residual_, *backend_);
    layers_[i].ffn.Run(residual_, *backend_);
  }
  if (last_stage_) {
    backend_->Head(residual_, output_norm_, output_norm_eps_, head_);
  } else {
    backend_->SendResidual(residual_);
  }
}

}  // namespace flotilla::worker
