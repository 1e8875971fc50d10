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
#include "worker/compute/row_partials.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

struct ModelShard {
  IndexRange layers;
  IndexRange attention;  // splits (AttentionSpec::splits)
  IndexRange ffn;        // columns; whole splits
  IndexRange vocab;      // tokens whose logits it computes; whole chunks; may be empty

  bool operator==(const ModelShard&) const = default;
};

// WholeModel returns the shard that is the whole model; ShardModel returns the shards of a
// group's ranks. INVALID_ARGUMENT as for PlanShards.
ModelShard WholeModel(const model::ModelSpec& spec);
absl::StatusOr<std::vector<ModelShard>> ShardModel(const model::Checkpoint& file,
                                                   const model::ModelSpec& spec,
                                                   ParallelShape shape, ShardBalance balance);

// The query heads and the KV heads of a shard.
IndexRange OwnHeads(const model::ModelSpec& spec, const ModelShard& shard);
IndexRange OwnKvHeads(const model::ModelSpec& spec, const ModelShard& shard);

// The ends of the splits of attention's output product, in its inputs.
std::vector<std::int32_t> OutputSplitEnds(const model::AttentionSpec& spec);

// The splits behind a shard's FFN columns.
IndexRange FfnSplits(const model::ModelSpec& spec, const ModelShard& shard);

// How the ranks of the last stage share the vocabulary. `shards` are those of all ranks.
VocabularyShards ShardVocabulary(absl::Span<const ModelShard> shards, ParallelShape shape);

// The floats that ranks exchange in a step of at most `rows` rows; the other limits stay as they
// are. `shards` are those of all ranks.
CommLimits ExchangeLimits(const model::ModelSpec& spec, absl::Span<const ModelShard> shards,
                          ParallelShape shape, int rows);

}  // namespace flotilla::worker
