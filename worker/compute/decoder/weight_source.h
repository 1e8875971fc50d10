// WeightSource: where the parts of a decoder get their weights. It knows the tensor table of the
// model and the shards of the ranks, and adds to a backend what this rank has of a tensor.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/backend.h"
#include "worker/compute/model_shard.h"

namespace flotilla::worker {

// How wide activations of a latent attention are. Products read multiples of kSplitBlock inputs,
// so what they read is filled up with zeros.
struct LatentWidths {
  std::uint32_t query_rank = 0;  // what queries are made of
  std::uint32_t nope = 0;        // the first part of a query
  std::uint32_t query = 0;       // that, and the rotated part
  std::uint32_t latent = 0;      // the result of a head's attention
};
LatentWidths WidthsOf(const model::AttentionSpec& spec);

class WeightSource {
 public:
  // `shards` are those of all ranks, of which this one is number `rank`. All arguments outlive the
  // source, and the source outlives Backend::Load. `spec` is what LoadSpec returned for this file,
  // so tensors are present and have the right dimensions.
  WeightSource(const model::Checkpoint& file, const model::ModelSpec& spec,
               absl::Span<const ModelShard> shards, ParallelShape shape, std::uint32_t rank,
               Backend& backend);

  const model::ModelSpec& spec() const { return spec_; }
  const ModelShard& shard() const { return shards_[rank_]; }
  Backend& backend() const { return backend_; }

  bool Has(model::TensorRole role) const { return model::FindRow(spec_, role) != nullptr; }

  // Each adds the tensor of a role in one layer of the model (0 where there is one for all), or the
  // tensors of several roles as one matrix, whose biases are in turn those of `biases`. Of a
  // vector whose axis is sharded the rank gets its own elements. INVALID_ARGUMENT: the file lacks a
  // tensor; other errors as for the backend.
  absl::StatusOr<VectorHandle> AddVector(model::TensorRole role, std::uint32_t layer) const;
  // `bias` counts only where the model has it.
  absl::StatusOr<NormOp> AddNorm(const model::NormSpec& spec, model::TensorRole weight,
                                 std::optional<model::TensorRole> bias, std::uint32_t layer) const;
  // Each role's outputs are filled up to a multiple of `outputs_of`.
  absl::StatusOr<MatrixHandle> AddMatrix(absl::Span<const model::TensorRole> roles,
                                         absl::Span<const model::TensorRole> biases,
                                         std::uint32_t layer, std::uint32_t outputs_of = 1) const;
  // The q, k and v of this rank's heads, without a latent. Each head is filled up with zeros to
  // what KvDimsOf says.
  absl::StatusOr<MatrixHandle> AddQkv(std::uint32_t layer) const;
  // With a latent: the queries of this rank's heads, as wide as LatentWidths says.
  absl::StatusOr<MatrixHandle> AddQueries(std::uint32_t layer) const;
  // The matrices of this rank's heads.
  absl::StatusOr<HeadMatricesHandle> AddHeadMatrices(model::TensorRole role,
                                                     std::uint32_t layer) const;
  // `split_ends` are the ends of the model's splits; `splits_of` says which of them a shard has.
  absl::StatusOr<ProjectionHandle> AddProjection(
      model::TensorRole role, model::TensorRole bias, std::uint32_t layer,
      std::vector<std::int32_t> split_ends,
      absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const;
  // `outputs_of` and `splits_of` are as above, for gate and up, and for down.
  absl::StatusOr<ExpertsHandle> AddExperts(
      const model::MoeSpec& spec, std::uint32_t layer, std::uint32_t outputs_of,
      absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const;
  absl::StatusOr<EmbeddingHandle> AddEmbedding() const;
  absl::StatusOr<HeadHandle> AddHead() const;

 private:
  // The tensor lives as long as the file, or if it is that of an expert or a head as the source.
  absl::StatusOr<const model::Tensor*> Find(model::TensorRole role, std::uint32_t layer,
                                            std::uint32_t expert = 0) const;
  // What this rank has of a tensor's rows.
  absl::StatusOr<MatrixPart> Part(model::TensorRole role, std::uint32_t layer,
                                  std::uint32_t expert = 0) const;
  // The tensors of several roles, one after the other, and their biases.
  absl::Status ReadParts(absl::Span<const model::TensorRole> roles,
                         absl::Span<const model::TensorRole> biases, std::uint32_t layer,
                         std::uint32_t expert, std::uint32_t outputs_of,
                         std::vector<MatrixPart>& parts, std::vector<float>& bias) const;
  absl::StatusOr<ProjectionSource> Projection(
      model::TensorRole role, model::TensorRole bias, std::uint32_t layer, std::uint32_t expert,
      std::vector<std::int32_t> split_ends,
      absl::FunctionRef<IndexRange(const ModelShard&)> splits_of) const;
  // The part of an axis that this rank has.
  IndexRange Own(model::Extent extent) const;
  // Appends what this rank has of a vector to `values`, filled up to `count` values if that is
  // more.
  absl::Status Read(model::TensorRole role, std::uint32_t layer, std::size_t count,
                    std::vector<float>& values, std::uint32_t expert = 0) const;

  const model::Checkpoint& file_;
  const model::ModelSpec& spec_;
  const absl::Span<const ModelShard> shards_;
  const ParallelShape shape_;
  const std::uint32_t rank_;
  Backend& backend_;
  mutable std::deque<model::Tensor> weights_;  // those of experts and heads
};

}  // namespace flotilla::worker
