#include "worker/compute/decoder/weight_source.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tensor.h"

namespace flotilla::worker {

using model::TensorRole;

WeightSource::WeightSource(const model::Checkpoint& file, const model::ModelSpec& spec,
                           absl::Span<const ModelShard> shards, ParallelShape shape,
                           std::uint32_t rank, Backend& backend)
    : file_(file), spec_(spec), shards_(shards), shape_(shape), rank_(rank), backend_(backend) {}

IndexRange WeightSource::Own(model::Extent extent) const {
  const model::AttentionSpec& attention = spec_.attention();
  const auto heads = [&](std::uint32_t width) {
    return IndexRange{shard().kv_heads.begin * width, shard().kv_heads.end * width};
  };
  switch (extent) {
    case model::Extent::kQueries:
      return heads(attention.heads / attention.kv_heads * attention.head_dim);
    case model::Extent::kKeys:
      return heads(attention.head_dim);
    case model::Extent::kFfn:
      return shard().ffn;
    case model::Extent::kVocabulary:
      return shard().vocab;
    default:
      return {0, static_cast<std::uint32_t>(model::SizeOf(extent, spec_))};
  }
}

std::int32_t WeightSource::PairsOf(TensorRole role) const {
  const bool halves = model::FindRow(spec_, role)->fix == model::TensorFix::kInterleavePairs;
  return halves ? static_cast<std::int32_t>(spec_.attention().head_dim) : 0;
}

absl::StatusOr<const model::Tensor*> WeightSource::Find(TensorRole role,
                                                        std::uint32_t layer) const {
  const std::string name = model::NameInFile(*model::FindRow(spec_, role), layer);
  const model::Tensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat("no tensor ", name));
  return tensor;
}

absl::StatusOr<MatrixPart> WeightSource::Part(TensorRole role, std::uint32_t layer) const {
  const auto tensor = Find(role, layer);
  if (!tensor.ok()) return tensor.status();
  return MatrixPart{
      .tensor = *tensor, .rows = Own(model::FindRow(spec_, role)->rows), .pairs_of = PairsOf(role)};
}

absl::StatusOr<VectorHandle> WeightSource::AddVector(TensorRole role, std::uint32_t layer) const {
  const auto tensor = Find(role, layer);
  if (!tensor.ok()) return tensor.status();
  std::vector<float> values((*tensor)->elements());
  const absl::Status status = model::DequantizeRow((*tensor)->type, (*tensor)->data, values);
  if (!status.ok()) return status;
  std::vector<float> ordered(values.size());
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    ordered[i] = values[model::IndexInFile(static_cast<std::int64_t>(i), PairsOf(role))];
  }
  return backend_.AddVector(std::move(ordered));
}

absl::StatusOr<MatrixHandle> WeightSource::AddMatrix(absl::Span<const TensorRole> roles,
                                                     std::uint32_t layer) const {
  std::vector<MatrixPart> parts;
  for (const TensorRole role : roles) {
    const auto part = Part(role, layer);
    if (!part.ok()) return part.status();
    parts.push_back(*part);
  }
  return backend_.AddMatrix(std::move(parts));
}

absl::StatusOr<ProjectionHandle> WeightSource::AddProjection(
    TensorRole role, std::uint32_t layer, std::vector<std::int32_t> split_ends,
    absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const {
  const auto tensor = Find(role, layer);
  if (!tensor.ok()) return tensor.status();
  ProjectionSource source{.tensor = *tensor, .split_ends = std::move(split_ends), .splits = {}};
  const std::uint32_t stage_begin = rank_ - rank_ % shape_.tensor;
  for (const ModelShard& shard : shards_.subspan(stage_begin, shape_.tensor)) {
    source.splits.push_back(splits_of(shard));
  }
  return backend_.AddProjection(source);
}

absl::StatusOr<EmbeddingHandle> WeightSource::AddEmbedding() const {
  const auto tensor = Find(TensorRole::kTokenEmbedding, 0);
  if (!tensor.ok()) return tensor.status();
  return backend_.AddEmbedding(**tensor);
}

absl::StatusOr<HeadHandle> WeightSource::AddHead() const {
  const auto tensor = Find(model::HeadRole(spec_), 0);
  if (!tensor.ok()) return tensor.status();
  return backend_.AddHead({.part = {.tensor = *tensor, .rows = shard().vocab},
                           .shard = ShardVocabulary(shards_, shape_).shard(rank_ % shape_.tensor),
                           .vocabulary = spec_.vocab});
}

}  // namespace flotilla::worker
