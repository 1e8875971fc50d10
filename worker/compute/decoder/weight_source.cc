#include "worker/compute/decoder/weight_source.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tensor.h"
#include "worker/core/split_layout.h"

namespace flotilla::worker {

using model::TensorRole;

WeightSource::WeightSource(const model::Checkpoint& file, const model::ModelSpec& spec,
                           absl::Span<const ModelShard> shards, ParallelShape shape,
                           std::uint32_t rank, Backend& backend)
    : file_(file), spec_(spec), shards_(shards), shape_(shape), rank_(rank), backend_(backend) {}

LatentWidths WidthsOf(const model::AttentionSpec& spec) {
  const auto whole = [](std::uint32_t width) {
    return (width + kSplitBlock - 1) / kSplitBlock * kSplitBlock;
  };
  const model::LatentSpec& latent = *spec.latent;
  return {.query_rank = whole(latent.query_rank),
          .nope = whole(latent.nope_dim),
          .query = whole(latent.nope_dim) + latent.rope_dim,
          .latent = whole(latent.rank)};
}

IndexRange WeightSource::Own(model::Extent extent) const {
  const model::AttentionSpec& attention = spec_.attention();
  const auto of_heads = [&](IndexRange heads) {
    return IndexRange{heads.begin * attention.head_dim, heads.end * attention.head_dim};
  };
  const auto results_of = [&](IndexRange heads) {
    return IndexRange{heads.begin * attention.value_dim, heads.end * attention.value_dim};
  };
  switch (extent) {
    case model::Extent::kHeads:
      return OwnHeads(spec_, shard());
    case model::Extent::kKvHeads:
      return OwnKvHeads(spec_, shard());
    case model::Extent::kQueries:
      return of_heads(OwnHeads(spec_, shard()));
    case model::Extent::kKeys:
      return of_heads(OwnKvHeads(spec_, shard()));
    case model::Extent::kValues:
      return results_of(OwnKvHeads(spec_, shard()));
    case model::Extent::kResults:
      return results_of(OwnHeads(spec_, shard()));
    case model::Extent::kFfn:
      return shard().ffn;
    case model::Extent::kExpertFfn:
      return shard().experts;
    case model::Extent::kSharedFfn:
      return shard().shared;
    case model::Extent::kVocabulary:
      return shard().vocab;
    default:
      return {0, static_cast<std::uint32_t>(model::SizeOf(extent, spec_))};
  }
}

absl::StatusOr<const model::Tensor*> WeightSource::Find(TensorRole role, std::uint32_t layer,
                                                        std::uint32_t expert) const {
  const model::TensorRow* row = model::FindRow(spec_, role);
  if (row == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no ", std::string(model::RoleName(role))));
  }
  if (!model::IsPerExpert(role)) {
    const std::string name = model::NameInFile(*row, layer);
    const model::Tensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat("no tensor ", name));
    return tensor;
  }
  const auto weight = model::FindWeight(file_, spec_, *row, layer, expert);
  if (!weight.ok()) return absl::InvalidArgumentError(weight.status().message());
  return &weights_.emplace_back(*weight);
}

absl::StatusOr<MatrixPart> WeightSource::Part(TensorRole role, std::uint32_t layer,
                                              std::uint32_t expert) const {
  const auto tensor = Find(role, layer, expert);
  if (!tensor.ok()) return tensor.status();
  const model::TensorRow& row = *model::FindRow(spec_, role);
  return MatrixPart{
      .tensor = *tensor, .rows = Own(row.rows), .map = row.map, .transposed = row.transposed};
}

absl::Status WeightSource::Read(TensorRole role, std::uint32_t layer, std::size_t count,
                                std::vector<float>& values, std::uint32_t expert) const {
  const auto tensor = Find(role, layer, expert);
  if (!tensor.ok()) return tensor.status();
  std::vector<float> in_file((*tensor)->elements());
  const absl::Status status = model::DequantizeRow((*tensor)->type, (*tensor)->data, in_file);
  if (!status.ok()) return status;
  if (!model::IsPlain(**tensor)) {
    for (const float value : in_file) {
      if (std::isfinite(value)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(std::string((*tensor)->name), ": a scale is infinite or no number"));
    }
  }
  const model::TensorRow& row = *model::FindRow(spec_, role);
  // A matrix, which has a vector for each head, is one vector here.
  IndexRange own = Own(row.columns);
  if (row.rows != model::Extent::kOne) {
    const IndexRange rows = Own(row.rows);
    own = {rows.begin * own.size(), rows.end * own.size()};
  }
  const std::size_t end = values.size() + std::max<std::size_t>(count, own.size());
  for (std::uint32_t i = own.begin; i < own.end; ++i) {
    values.push_back(in_file[static_cast<std::size_t>(row.map.At(i))] + row.plus);
  }
  values.resize(end);
  return absl::OkStatus();
}

absl::StatusOr<VectorHandle> WeightSource::AddVector(TensorRole role, std::uint32_t layer) const {
  std::vector<float> values;
  if (absl::Status s = Read(role, layer, 0, values); !s.ok()) return s;
  return backend_.AddVector(std::move(values));
}

absl::StatusOr<NormOp> WeightSource::AddNorm(const model::NormSpec& spec, TensorRole weight,
                                             std::optional<TensorRole> bias,
                                             std::uint32_t layer) const {
  NormOp norm{.spec = spec, .weight = {}, .bias = {}};
  const auto weights = AddVector(weight, layer);
  if (!weights.ok()) return weights.status();
  norm.weight = *weights;
  if (bias.has_value() && Has(*bias)) {
    const auto biases = AddVector(*bias, layer);
    if (!biases.ok()) return biases.status();
    norm.bias = *biases;
  }
  return norm;
}

absl::Status WeightSource::ReadParts(absl::Span<const TensorRole> roles,
                                     absl::Span<const TensorRole> biases, std::uint32_t layer,
                                     std::uint32_t expert, std::uint32_t outputs_of,
                                     std::vector<MatrixPart>& parts,
                                     std::vector<float>& bias) const {
  const bool has_bias =
      std::any_of(biases.begin(), biases.end(), [&](TensorRole role) { return Has(role); });
  for (std::size_t i = 0; i < roles.size(); ++i) {
    auto part = Part(roles[i], layer, expert);
    if (!part.ok()) return part.status();
    part->outputs = (part->rows.size() + outputs_of - 1) / outputs_of * outputs_of;
    if (has_bias) {
      if (!Has(biases[i])) {
        bias.resize(bias.size() + part->outputs);
      } else if (absl::Status s = Read(biases[i], layer, part->outputs, bias, expert); !s.ok()) {
        return s;
      }
    }
    parts.push_back(*part);
  }
  return absl::OkStatus();
}

absl::StatusOr<MatrixHandle> WeightSource::AddMatrix(absl::Span<const TensorRole> roles,
                                                     absl::Span<const TensorRole> biases,
                                                     std::uint32_t layer,
                                                     std::uint32_t outputs_of) const {
  std::vector<MatrixPart> parts;
  std::vector<float> bias;
  absl::Status status = ReadParts(roles, biases, layer, 0, outputs_of, parts, bias);
  if (!status.ok()) return status;
  return backend_.AddMatrix(std::move(parts), std::move(bias));
}

absl::StatusOr<MatrixHandle> WeightSource::AddQkv(std::uint32_t layer) const {
  const model::AttentionSpec& spec = spec_.attention();
  std::vector<MatrixPart> roles, parts;
  std::vector<float> biases, bias;
  absl::Status status =
      ReadParts({TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue},
                {TensorRole::kQueryBias, TensorRole::kKeyBias, TensorRole::kValueBias}, layer, 0, 1,
                roles, biases);
  if (!status.ok()) return status;
  const auto dims = KvDimsOf(spec);
  const auto key = static_cast<std::uint32_t>(dims.key),
             value = static_cast<std::uint32_t>(dims.value);
  if (key == spec.head_dim && value == spec.value_dim) {
    return backend_.AddMatrix(std::move(roles), std::move(biases));
  }
  auto of_head = biases.begin();
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const std::uint32_t dim = i < 2 ? spec.head_dim : spec.value_dim;
    for (std::uint32_t row = roles[i].rows.begin; row < roles[i].rows.end; row += dim) {
      MatrixPart& head = parts.emplace_back(roles[i]);
      head.rows = {row, row + dim};
      head.outputs = i < 2 ? key : value;
      if (biases.empty()) continue;
      bias.insert(bias.end(), of_head, of_head + dim);
      bias.resize(bias.size() + head.outputs - dim);
      of_head += dim;
    }
  }
  return backend_.AddMatrix(std::move(parts), std::move(bias));
}

absl::StatusOr<MatrixHandle> WeightSource::AddQueries(std::uint32_t layer) const {
  const auto all = Part(TensorRole::kQuery, layer);
  if (!all.ok()) return all.status();
  const LatentWidths widths = WidthsOf(spec_.attention());
  if (widths.query == spec_.attention().head_dim) return backend_.AddMatrix({*all}, {});
  const std::uint32_t nope = spec_.attention().latent->nope_dim;
  std::vector<MatrixPart> parts;
  for (std::uint32_t row = all->rows.begin; row < all->rows.end;
       row += spec_.attention().head_dim) {
    parts.push_back(*all);
    parts.back().rows = {row, row + nope};
    parts.back().outputs = widths.nope;
    parts.push_back(*all);
    parts.back().rows = {row + nope, row + spec_.attention().head_dim};
  }
  return backend_.AddMatrix(std::move(parts), {});
}

absl::StatusOr<HeadMatricesHandle> WeightSource::AddHeadMatrices(TensorRole role,
                                                                 std::uint32_t layer) const {
  const model::TensorRow* row = model::FindRow(spec_, role);
  if (row == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no ", std::string(model::RoleName(role))));
  }
  const auto outputs = static_cast<std::uint32_t>(model::SizeOf(row->rows, spec_));
  const IndexRange heads = OwnHeads(spec_, shard());
  std::vector<MatrixPart> parts;
  for (std::uint32_t head = heads.begin; head < heads.end; ++head) {
    const auto weight = model::FindHeadWeight(file_, spec_, *row, layer, head);
    if (!weight.ok()) return absl::InvalidArgumentError(weight.status().message());
    parts.push_back({.tensor = &weights_.emplace_back(*weight),
                     .rows = {0, outputs},
                     .map = {},
                     .transposed = row->transposed});
  }
  return backend_.AddHeadMatrices(std::move(parts));
}

absl::StatusOr<ProjectionSource> WeightSource::Projection(
    TensorRole role, TensorRole bias, std::uint32_t layer, std::uint32_t expert,
    std::vector<std::int32_t> split_ends,
    absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const {
  const auto tensor = Find(role, layer, expert);
  if (!tensor.ok()) return tensor.status();
  ProjectionSource source{.tensor = *tensor,
                          .transposed = model::FindRow(spec_, role)->transposed,
                          .split_ends = std::move(split_ends),
                          .splits = {},
                          .bias = {}};
  if (Has(bias)) {
    if (absl::Status s = Read(bias, layer, 0, source.bias, expert); !s.ok()) return s;
  }
  const std::uint32_t stage_begin = rank_ - rank_ % shape_.tensor;
  for (const ModelShard& shard : shards_.subspan(stage_begin, shape_.tensor)) {
    source.splits.push_back(splits_of(shard));
  }
  return source;
}

absl::StatusOr<ProjectionHandle> WeightSource::AddProjection(
    TensorRole role, TensorRole bias, std::uint32_t layer, std::vector<std::int32_t> split_ends,
    absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const {
  const auto source = Projection(role, bias, layer, 0, std::move(split_ends), splits_of);
  if (!source.ok()) return source.status();
  return backend_.AddProjection(*source);
}

absl::StatusOr<ExpertsHandle> WeightSource::AddExperts(
    const model::MoeSpec& spec, std::uint32_t layer, std::uint32_t outputs_of,
    absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const {
  ExpertsSource source{.spec = spec,
                       .router = {},
                       .router_bias = {},
                       .choice_bias = {},
                       .shared_router = {},
                       .experts = {}};
  const auto router = Part(TensorRole::kRouter, layer);
  if (!router.ok()) return router.status();
  source.router = *router;
  const auto read = [&](TensorRole role, std::vector<float>& values) {
    return Has(role) ? Read(role, layer, 0, values) : absl::OkStatus();
  };
  if (absl::Status s = read(TensorRole::kRouterBias, source.router_bias); !s.ok()) return s;
  if (absl::Status s = read(TensorRole::kExpertBias, source.choice_bias); !s.ok()) return s;
  if (Has(TensorRole::kSharedRouter)) {
    const auto shared = Part(TensorRole::kSharedRouter, layer);
    if (!shared.ok()) return shared.status();
    source.shared_router = *shared;
  }
  for (std::uint32_t i = 0; i < spec.experts; ++i) {
    ExpertsSource::Expert expert;
    absl::Status status = ReadParts({TensorRole::kExpertGate, TensorRole::kExpertUp},
                                    {TensorRole::kExpertGateBias, TensorRole::kExpertUpBias}, layer,
                                    i, outputs_of, expert.gate_up, expert.bias);
    if (!status.ok()) return status;
    auto down = Projection(TensorRole::kExpertDown, TensorRole::kExpertDownBias, layer, i,
                           DownSplitEnds(spec.expert), splits_of);
    if (!down.ok()) return down.status();
    expert.down = *std::move(down);
    source.experts.push_back(std::move(expert));
  }
  return backend_.AddExperts(source);
}

absl::StatusOr<EmbeddingHandle> WeightSource::AddEmbedding() const {
  const auto table = Find(TensorRole::kTokenEmbedding, 0);
  if (!table.ok()) return table.status();
  EmbeddingSource source{.table = *table,
                         .factor = spec_.embedding_factor,
                         .positions = nullptr,
                         .position_offset = spec_.position_offset};
  if (Has(TensorRole::kPositionEmbedding)) {
    const auto positions = Find(TensorRole::kPositionEmbedding, 0);
    if (!positions.ok()) return positions.status();
    source.positions = *positions;
  }
  // Rows are decoded when tokens come. Those that are the head's, too, are read when it is packed,
  // by one rank or another.
  for (const model::Tensor* table : {source.table, source.positions}) {
    if (table == nullptr ||
        (table == source.table && model::HeadRole(spec_) == TensorRole::kTokenEmbedding))
      continue;
    if (absl::Status s = model::CheckRows(*table); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(std::string(table->name), ": ", s.message()));
    }
  }
  return backend_.AddEmbedding(source);
}

absl::StatusOr<HeadHandle> WeightSource::AddHead() const {
  const auto tensor = Find(model::HeadRole(spec_), 0);
  if (!tensor.ok()) return tensor.status();
  HeadSource source{.part = {.tensor = *tensor, .rows = shard().vocab},
                    .shard = ShardVocabulary(spec_, shards_, shape_).shard(rank_ % shape_.tensor),
                    .vocabulary = spec_.vocab,
                    .bias = {},
                    .factor = spec_.logit_factor,
                    .softcap = spec_.logit_softcap};
  if (Has(TensorRole::kHeadBias)) {
    if (absl::Status s = Read(TensorRole::kHeadBias, 0, 0, source.bias); !s.ok()) return s;
  }
  return backend_.AddHead(source);
}

}  // namespace flotilla::worker
