#include "worker/compute/model_shard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "kernels/ops.h"
#include "worker/compute/backend.h"

namespace flotilla::worker {
namespace {

// A shard of the vocabulary consists of whole chunks. The reductions over the vocabulary use the
// same chunks.
constexpr uint32_t kVocabChunk = kernels::kVocabularyChunk;

using model::FfnKind;

// The bytes of a row's tensors in all layers, but for those that are in `counted`, which it adds
// them to: several rows may have parts of one tensor.
uint64_t FileBytes(const model::Checkpoint& file, const model::ModelSpec& spec,
                   const model::TensorRow& row, absl::flat_hash_set<std::string>& counted) {
  uint64_t bytes = 0;
  for (std::string& name : model::NamesInFile(row, spec)) {
    const model::Tensor* tensor = file.FindTensor(name);
    if (tensor != nullptr && counted.insert(std::move(name)).second) bytes += tensor->bytes();
  }
  return bytes;
}

}  // namespace

ModelShard WholeModel(const model::ModelSpec& spec) {
  return {.layers = {0, static_cast<uint32_t>(spec.layers.size())},
          .attention = {0, spec.attention_splits()},
          .ffn = {0, spec.ffn().width},
          .vocab = {0, spec.vocab},
          .experts = {0, spec.ffn(FfnKind::kExpert).width},
          .shared = {0, spec.ffn(FfnKind::kShared).width}};
}

ModelParts PartsOf(const model::Checkpoint& file, const model::ModelSpec& spec) {
  const uint32_t chunks = (spec.vocab + kVocabChunk - 1) / kVocabChunk;
  uint64_t attention_bytes = 0, ffn_bytes = 0, expert_bytes = 0, shared_bytes = 0, head_bytes = 0;
  absl::flat_hash_set<std::string> counted;
  for (const model::TensorRow& row : spec.tensors) {
    const uint64_t bytes = FileBytes(file, spec, row, counted);
    const auto along = [&](model::Extent extent) {
      return row.rows == extent || row.columns == extent;
    };
    if (along(model::Extent::kQueries) || along(model::Extent::kKeys) ||
        along(model::Extent::kValues) || along(model::Extent::kResults) ||
        model::IsPerHead(row.role)) {
      attention_bytes += bytes;
    }
    if (along(model::Extent::kFfn)) ffn_bytes += bytes;
    if (along(model::Extent::kExpertFfn)) expert_bytes += bytes;
    if (along(model::Extent::kSharedFfn)) shared_bytes += bytes;
    if (row.role == model::HeadRole(spec)) head_bytes = bytes;
  }
  const auto layers = static_cast<uint32_t>(spec.layers.size());
  const auto of_split = [&](uint64_t bytes, uint32_t splits) {
    return splits == 0 ? 0 : bytes / layers / splits;
  };
  const auto splits = [&](FfnKind kind) { return spec.ffn(kind).splits(); };
  return {.layers = layers,
          .attention_splits = spec.attention_splits(),
          .ffn_splits = splits(FfnKind::kDense),
          .vocab_chunks = chunks,
          .attention_split_bytes = of_split(attention_bytes, spec.attention_splits()),
          .ffn_split_bytes = of_split(ffn_bytes, splits(FfnKind::kDense)),
          .vocab_chunk_bytes = head_bytes / chunks,
          .expert_splits = splits(FfnKind::kExpert),
          .shared_splits = splits(FfnKind::kShared),
          .expert_split_bytes = of_split(expert_bytes, splits(FfnKind::kExpert)),
          .shared_split_bytes = of_split(shared_bytes, splits(FfnKind::kShared))};
}

absl::StatusOr<std::vector<ModelShard>> ShardModel(const model::Checkpoint& file,
                                                   const model::ModelSpec& spec,
                                                   ParallelShape shape, ShardBalance balance) {
  const auto shards = PlanShards(PartsOf(file, spec), shape, balance);
  if (!shards.ok()) return shards.status();
  std::vector<ModelShard> result;
  for (const Shard& shard : *shards) {
    const auto scaled = [](IndexRange range, uint32_t width, uint32_t end) {
      return IndexRange{std::min(range.begin * width, end), std::min(range.end * width, end)};
    };
    const auto columns = [&](IndexRange of_ffn, FfnKind kind) {
      return scaled(of_ffn, spec.ffn(kind).split(), spec.ffn(kind).width);
    };
    result.push_back({.layers = shard.layers,
                      .attention = shard.attention_splits,
                      .ffn = columns(shard.ffn_splits, FfnKind::kDense),
                      .vocab = scaled(shard.vocab_chunks, kVocabChunk, spec.vocab),
                      .experts = columns(shard.expert_splits, FfnKind::kExpert),
                      .shared = columns(shard.shared_splits, FfnKind::kShared)});
  }
  return result;
}

IndexRange OwnHeads(const model::ModelSpec& spec, const ModelShard& shard) {
  const uint32_t heads = spec.attention().heads / spec.attention_splits();
  return {shard.attention.begin * heads, shard.attention.end * heads};
}

IndexRange OwnKvHeads(const model::ModelSpec& spec, const ModelShard& shard) {
  return spec.attention().splits_queries() ? IndexRange{0, 1} : shard.attention;
}

KvShape KvShapeOf(const model::ModelSpec& spec, const KvFormats& formats, IndexRange layers,
                  uint32_t kv_heads) {
  KvShape shape{
      .kv_heads = static_cast<int>(kv_heads), .dims = KvDimsOf(spec.attention()), .layers = {}};
  shape.block_tokens = formats.block_tokens();
  std::vector<int64_t> ends(spec.kv_groups.size());
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    shape.AddLayer(formats.Of(layer), ends[spec.layers[layer].attention.kv_group]);
  }
  return shape;
}

kernels::KvDims KvDimsOf(const model::AttentionSpec& spec) {
  if (spec.latent.has_value()) {
    return {.key = static_cast<int>(spec.key_dim()),
            .value = static_cast<int>(spec.latent->rank),
            .prefix = true};
  }
  constexpr std::uint32_t kWhole = 16;
  const auto whole = [](std::uint32_t dim) {
    return static_cast<int>((dim + kWhole - 1) / kWhole * kWhole);
  };
  return {.key = whole(spec.head_dim), .value = whole(spec.value_dim)};
}

std::vector<int32_t> OutputSplitEnds(const model::AttentionSpec& spec) {
  std::vector<int32_t> ends;
  const uint32_t width = spec.heads / spec.splits() * spec.value_dim;
  for (uint32_t split = 1; split <= spec.splits(); ++split) {
    ends.push_back(static_cast<int32_t>(split * width));
  }
  return ends;
}

std::vector<int32_t> DownSplitEnds(const model::FfnSpec& spec) {
  std::vector<int32_t> ends;
  for (uint32_t split = 1; split <= spec.splits(); ++split) {
    ends.push_back(static_cast<int32_t>(std::min(split * spec.split(), spec.width)));
  }
  return ends;
}

IndexRange FfnSplits(const model::ModelSpec& spec, const ModelShard& shard, FfnKind kind) {
  const uint32_t split = spec.ffn(kind).split();
  const IndexRange columns = shard.columns(kind);
  return {columns.begin / split, (columns.end + split - 1) / split};
}

VocabularyShards ShardVocabulary(const model::ModelSpec& spec, absl::Span<const ModelShard> shards,
                                 ParallelShape shape) {
  std::vector<IndexRange> entries;
  for (const ModelShard& shard : shards.last(shape.tensor)) entries.push_back(shard.vocab);
  return VocabularyShards(entries, spec.tokens);
}

CommLimits ExchangeLimits(const model::ModelSpec& spec, absl::Span<const ModelShard> shards,
                          ParallelShape shape, int rows) {
  size_t subtrees = 0;
  for (const ModelShard& shard : shards) {
    subtrees = std::max(subtrees, SubtreesOf(shard.attention, spec.attention_splits()).size());
    for (const FfnKind kind : model::kFfnKinds) {
      subtrees = std::max(subtrees,
                          SubtreesOf(FfnSplits(spec, shard, kind), spec.ffn(kind).splits()).size());
    }
  }
  const int64_t hidden = int64_t{std::max(rows, Backend::kLogitRows)} * spec.hidden;
  CommLimits limits;
  if (shape.tensor > 1) limits.partial_floats = static_cast<int64_t>(subtrees) * hidden;
  if (shape.tensor > 1) limits.logit_floats = int64_t{Backend::kLogitRows} * spec.vocab;
  if (shape.pipeline > 1) limits.residual_floats = hidden;
  return limits;
}

}  // namespace flotilla::worker
