// The shards of a model: what each rank of a group computes of it, in the model's own units.
// Pure functions of the file's sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/comm/limits.h"
#include "worker/compute/kv_shape.h"
#include "worker/compute/row_partials.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

struct ModelShard {
  IndexRange layers;
  IndexRange attention;     // splits (AttentionSpec::splits)
  IndexRange ffn;           // columns of the FFN of layers without experts; whole splits
  IndexRange vocab;         // entries of a row of logits; whole chunks; may be empty
  IndexRange experts = {};  // columns of each expert; whole splits
  IndexRange shared = {};   // columns of the shared expert; whole splits

  IndexRange columns(model::FfnKind kind) const {
    return kind == model::FfnKind::kDense    ? ffn
           : kind == model::FfnKind::kExpert ? experts
                                             : shared;
  }

  bool operator==(const ModelShard&) const = default;
};

// What there is to share of a model. Bytes are those in the file, each tensor once, which is close
// enough to the packed ones. Layers count as alike.
ModelParts PartsOf(const model::Checkpoint& file, const model::ModelSpec& spec);

// WholeModel returns the shard that is the whole model; ShardModel returns the shards of a
// group's ranks. INVALID_ARGUMENT as for PlanShards.
ModelShard WholeModel(const model::ModelSpec& spec);
absl::StatusOr<std::vector<ModelShard>> ShardModel(const model::Checkpoint& file,
                                                   const model::ModelSpec& spec,
                                                   ParallelShape shape, ShardBalance balance);

// The query heads and the KV heads of a shard.
IndexRange OwnHeads(const model::ModelSpec& spec, const ModelShard& shard);
IndexRange OwnKvHeads(const model::ModelSpec& spec, const ModelShard& shard);

// The elements of a head's K and V in the KV memory. Those that fill them up are zero.
kernels::KvDims KvDimsOf(const model::AttentionSpec& spec);

// The K and V of so many KV heads on a stage with these layers. A page has room for each of its KV
// groups (model/kv_groups.h).
KvShape KvShapeOf(const model::ModelSpec& spec, const KvFormats& formats, IndexRange layers,
                  std::uint32_t kv_heads);

// The ends of the splits of attention's output product, in its inputs.
std::vector<std::int32_t> OutputSplitEnds(const model::AttentionSpec& spec);

// The ends of the splits of the down product, in its inputs.
std::vector<std::int32_t> DownSplitEnds(const model::FfnSpec& spec);

// The splits behind a shard's columns of an FFN.
IndexRange FfnSplits(const model::ModelSpec& spec, const ModelShard& shard, model::FfnKind kind);

// How the ranks of the last stage share the vocabulary. `shards` are those of all ranks.
VocabularyShards ShardVocabulary(const model::ModelSpec& spec, absl::Span<const ModelShard> shards,
                                 ParallelShape shape);

// The floats that ranks exchange in a step of at most `rows` rows; the other limits stay as they
// are. `shards` are those of all ranks.
CommLimits ExchangeLimits(const model::ModelSpec& spec, absl::Span<const ModelShard> shards,
                          ParallelShape shape, int rows);

}  // namespace flotilla::worker
