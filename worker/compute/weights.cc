#include "worker/compute/weights.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"

namespace flotilla::worker {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;

// The number of rows that one work item packs. It is large enough to amortise the hand-over, and
// small enough to spread the embedding table over all threads.
constexpr int64_t kRowsPerItem = 2048;
// A shard of the vocabulary consists of whole chunks. The reductions over the vocabulary use the
// same chunks.
constexpr uint32_t kVocabChunk = kernels::kVocabularyChunk;

using model::TensorRole;

// The tensor that is the head.
TensorRole HeadRole(const model::ModelSpec& spec) {
  return spec.tied_embedding ? TensorRole::kTokenEmbedding : TensorRole::kHead;
}

std::optional<WeightFormat> PackedFormat(model::GgmlType type) {
  switch (type) {
    case model::GgmlType::kF32:
      return WeightFormat::kF32;
    case model::GgmlType::kF16:
      return WeightFormat::kF16;
    case model::GgmlType::kBF16:
      return WeightFormat::kBf16;
    case model::GgmlType::kQ4_0:
      return WeightFormat::kQ4_0;
    case model::GgmlType::kQ4_1:
      return WeightFormat::kQ4_1;
    case model::GgmlType::kQ8_0:
      return WeightFormat::kQ8_0;
    default:
      return std::nullopt;
  }
}

// A part of a tensor that goes into a matrix. The `count` rows from `row` on become the matrix
// columns from `column` on. The matrix takes k elements of each row, from first_k on.
struct Source {
  const model::Tensor* tensor;
  int64_t row;
  int64_t count;
  int64_t first_k;
  int64_t column;
  int64_t pairs_of = 0;  // heads of this size have their pairs half a head apart; 0: no change
};

// Returns where the file has the element `index` of the canonical order, in which the elements of a
// pair follow each other.
int64_t IndexInFile(int64_t index, int64_t pairs_of) {
  if (pairs_of == 0) return index;
  const int64_t in_head = index % pairs_of;
  return index - in_head + in_head / 2 + in_head % 2 * (pairs_of / 2);
}

// One unit of parallel work. No other unit writes the panels of its columns.
struct PackItem {
  PackedMatrix* matrix;
  std::vector<Source> sources;
};

// Packs one row of `tensor` as a column of the matrix, through fp32 if the formats differ. `values`
// has room for a row.
absl::Status PackRow(PackedMatrix& matrix, const Source& source, int64_t row, int64_t column,
                     std::vector<float>& values) {
  const model::Tensor& tensor = *source.tensor;
  const int64_t row_bytes = tensor.data.size() / tensor.dims[1];
  const std::span<const std::byte> bytes = tensor.data.subspan(row * row_bytes, row_bytes);
  if (const auto format = PackedFormat(tensor.type); format == matrix.format()) {
    const int64_t skip = source.first_k == 0 ? 0 : kernels::RowBytes(*format, source.first_k);
    return matrix.PackColumns(column, 1, {bytes.data() + skip, bytes.size() - skip}, row_bytes);
  }
  absl::Status status = model::DequantizeRow(tensor.type, bytes, values);
  if (!status.ok()) return status;
  const size_t used = matrix.k() * sizeof(float);
  return matrix.PackColumns(
      column, 1, {reinterpret_cast<const std::byte*>(values.data() + source.first_k), used}, used);
}

absl::Status Pack(PackedMatrix& matrix, const Source& source) {
  const model::Tensor& tensor = *source.tensor;
  const auto format = PackedFormat(tensor.type);
  if (format == matrix.format() && source.pairs_of == 0) {
    const int64_t row_bytes = tensor.data.size() / tensor.dims[1];
    const int64_t skip = source.first_k == 0 ? 0 : kernels::RowBytes(*format, source.first_k);
    return matrix.PackColumns(source.column, source.count,
                              {tensor.data.data() + source.row * row_bytes + skip,
                               static_cast<size_t>(source.count * row_bytes - skip)},
                              row_bytes);
  }
  std::vector<float> values(tensor.dims[0]);
  for (int64_t r = 0; r < source.count; ++r) {
    const int64_t row = IndexInFile(source.row + r, source.pairs_of);
    absl::Status status = PackRow(matrix, source, row, source.column + r, values);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

class Loader {
 public:
  Loader(const model::Checkpoint& file, const model::ModelSpec& spec, const ModelShard& shard)
      : file_(file), spec_(spec), shard_(shard) {}

  absl::StatusOr<Weights> Load(ThreadPool& pool);

 private:
  absl::Status CheckLayout() const;
  absl::Status LoadLayer(uint32_t index, LayerWeights& layer);
  // Creates `matrix` from the rows that this rank has of each of `roles`, in their order. Adds the
  // work items that pack it.
  absl::Status AddMatrix(const std::vector<TensorRole>& roles, uint32_t layer,
                         PackedMatrix& matrix);
  // Adds the products of a row-parallel matrix. `ends` says where each split of the model ends;
  // `splits` are the splits of this rank.
  absl::Status AddSplitProducts(TensorRole role, uint32_t layer, absl::Span<const int32_t> ends,
                                IndexRange splits, std::vector<SplitProduct>& products);
  absl::Status AddSources(std::vector<Source> sources, int64_t k,
                          absl::Span<const int32_t> split_ends, PackedMatrix& matrix);
  absl::Status AddVector(TensorRole role, uint32_t layer, std::vector<float>& out) const;
  absl::StatusOr<const model::Tensor*> Find(const model::TensorRow& row, uint32_t layer) const;
  const model::TensorRow& Row(TensorRole role) const { return *model::FindRow(spec_, role); }
  // The part of an axis that this rank has.
  IndexRange Own(model::Extent extent) const;
  // Source::pairs_of for a tensor with this fix.
  int64_t PairsOf(const model::TensorRow& row) const {
    return row.fix == model::TensorFix::kInterleavePairs ? spec_.attention().head_dim : 0;
  }
  absl::Status PackAll(ThreadPool& pool);
  uint64_t ContentHash(ThreadPool& pool) const;

  const model::Checkpoint& file_;
  const model::ModelSpec& spec_;
  const ModelShard& shard_;
  std::vector<PackItem> items_;
  int64_t bytes_ = 0;
};

absl::Status Loader::CheckLayout() const {
  const uint32_t head_dim = spec_.attention().head_dim;
  if (head_dim % 16 != 0 || head_dim > kernels::kMaxHeadDim) {
    return absl::UnimplementedError(absl::StrCat(
        "head size ", head_dim, " is not a multiple of 16 up to ", kernels::kMaxHeadDim));
  }
  return absl::OkStatus();
}

IndexRange Loader::Own(model::Extent extent) const {
  const model::AttentionSpec& attention = spec_.attention();
  const auto heads = [&](uint32_t width) {
    return IndexRange{shard_.kv_heads.begin * width, shard_.kv_heads.end * width};
  };
  switch (extent) {
    case model::Extent::kQueries:
      return heads(attention.heads / attention.kv_heads * attention.head_dim);
    case model::Extent::kKeys:
      return heads(attention.head_dim);
    case model::Extent::kFfn:
      return shard_.ffn;
    case model::Extent::kVocabulary:
      return shard_.vocab;
    default:
      return {0, static_cast<uint32_t>(model::SizeOf(extent, spec_))};
  }
}

absl::StatusOr<const model::Tensor*> Loader::Find(const model::TensorRow& row,
                                                  uint32_t layer) const {
  const std::string name = model::NameInFile(row, layer);
  const model::Tensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat("no tensor ", name));
  return tensor;
}

absl::Status Loader::AddVector(TensorRole role, uint32_t layer, std::vector<float>& out) const {
  const model::TensorRow& row = Row(role);
  const auto tensor = Find(row, layer);
  if (!tensor.ok()) return tensor.status();
  std::vector<float> values((*tensor)->elements());
  absl::Status status = model::DequantizeRow((*tensor)->type, (*tensor)->data, values);
  if (!status.ok()) return status;
  out.resize(values.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = values[IndexInFile(static_cast<int64_t>(i), PairsOf(row))];
  }
  return absl::OkStatus();
}

absl::Status Loader::AddMatrix(const std::vector<TensorRole>& roles, uint32_t layer,
                               PackedMatrix& matrix) {
  std::vector<Source> sources;
  int64_t columns = 0;
  for (const TensorRole role : roles) {
    const model::TensorRow& row = Row(role);
    const auto tensor = Find(row, layer);
    if (!tensor.ok()) return tensor.status();
    const IndexRange own = Own(row.rows);
    sources.push_back({.tensor = *tensor,
                       .row = own.begin,
                       .count = own.size(),
                       .first_k = 0,
                       .column = columns,
                       .pairs_of = PairsOf(row)});
    columns += own.size();
  }
  const int64_t k = static_cast<int64_t>(sources[0].tensor->dims[0]);
  return AddSources(std::move(sources), k, {}, matrix);
}

absl::Status Loader::AddSources(std::vector<Source> sources, int64_t k,
                                absl::Span<const int32_t> split_ends, PackedMatrix& matrix) {
  std::optional<WeightFormat> format;
  for (const Source& source : sources) {
    const auto own = PackedFormat(source.tensor->type).value_or(WeightFormat::kF32);
    format = format.value_or(own) == own ? own : WeightFormat::kF32;
  }
  const int64_t columns = sources.back().column + sources.back().count;
  auto created = PackedMatrix::Create(*format, columns, k, split_ends);
  if (!created.ok()) return created.status();
  matrix = *std::move(created);
  bytes_ += matrix.bytes();

  if (sources.size() > 1) {  // parts may share a panel, so they are one item
    items_.push_back({&matrix, std::move(sources)});
    return absl::OkStatus();
  }
  static_assert(kRowsPerItem % kernels::kPanelColumns == 0);
  for (int64_t row = 0; row < columns; row += kRowsPerItem) {
    Source part = sources[0];
    part.row += row;
    part.column = row;
    part.count = std::min(kRowsPerItem, columns - row);
    items_.push_back({&matrix, {part}});
  }
  return absl::OkStatus();
}

absl::Status Loader::AddSplitProducts(TensorRole role, uint32_t layer,
                                      absl::Span<const int32_t> ends, IndexRange splits,
                                      std::vector<SplitProduct>& products) {
  const auto tensor = Find(Row(role), layer);
  if (!tensor.ok()) return tensor.status();
  const auto begin_of = [&](uint32_t split) { return split == 0 ? 0 : ends[split - 1]; };
  const auto subtrees = SubtreesOf(splits, static_cast<uint32_t>(ends.size()));
  products.resize(subtrees.size());  // items point to the matrices
  for (size_t i = 0; i < subtrees.size(); ++i) {
    const IndexRange subtree = subtrees[i];
    const int32_t first = begin_of(subtree.begin);
    std::vector<int32_t> own_ends;
    for (uint32_t split = subtree.begin; split < subtree.end; ++split) {
      own_ends.push_back(ends[split] - first);
    }
    products[i].first_k = first - begin_of(splits.begin);
    products[i].first_split = static_cast<int>(subtree.begin - splits.begin);
    absl::Status status = AddSources(
        {{.tensor = *tensor, .row = 0, .count = spec_.hidden, .first_k = first, .column = 0}},
        own_ends.back(), own_ends, products[i].matrix);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Loader::LoadLayer(uint32_t index, LayerWeights& layer) {
  const model::AttentionSpec& attention = spec_.attention();
  const model::FfnSpec& ffn = spec_.ffn();
  const int32_t head_group = attention.heads / attention.kv_heads * attention.head_dim;
  std::vector<int32_t> attention_ends, ffn_ends;
  for (uint32_t h = 0; h < spec_.attention_splits(); ++h) {
    attention_ends.push_back((h + 1) * head_group);
  }
  for (uint32_t s = 0; s < spec_.ffn_splits(); ++s) {
    ffn_ends.push_back(std::min((s + 1) * ffn.split, ffn.width));
  }
  absl::Status status = AddVector(TensorRole::kAttentionNorm, index, layer.attention_norm);
  status.Update(AddVector(TensorRole::kFfnNorm, index, layer.ffn_norm));
  if (attention.head_norms) {
    status.Update(AddVector(TensorRole::kQueryNorm, index, layer.query_norm));
    status.Update(AddVector(TensorRole::kKeyNorm, index, layer.key_norm));
  }
  status.Update(
      AddMatrix({TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue}, index, layer.qkv));
  status.Update(AddSplitProducts(TensorRole::kAttentionOutput, index, attention_ends,
                                 AttentionSplits(shard_), layer.attention_output));
  status.Update(AddMatrix({TensorRole::kGate, TensorRole::kUp}, index, layer.gate_up));
  status.Update(
      AddSplitProducts(TensorRole::kDown, index, ffn_ends, FfnSplits(spec_, shard_), layer.down));
  return status;
}

absl::Status Loader::PackAll(ThreadPool& pool) {
  std::vector<absl::Status> results(items_.size());
  pool.ParallelItems(static_cast<int64_t>(items_.size()), [&](int64_t i) {
    for (const Source& source : items_[i].sources) {
      results[i].Update(Pack(*items_[i].matrix, source));
    }
  });
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) continue;
    return absl::Status(
        results[i].code(),
        absl::StrCat(std::string(items_[i].sources[0].tensor->name), ": ", results[i].message()));
  }
  return absl::OkStatus();
}

uint64_t Loader::ContentHash(ThreadPool& pool) const {
  const auto tensors = file_.tensors();
  std::vector<uint64_t> hashes(tensors.size() + 1);
  pool.ParallelItems(static_cast<int64_t>(tensors.size()), [&](int64_t i) {
    hashes[i] = XXH3_64bits(tensors[i].data.data(), tensors[i].data.size());
  });
  hashes.back() = file_.MetadataHash();
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
}

absl::StatusOr<Weights> Loader::Load(ThreadPool& pool) {
  absl::Status status = CheckLayout();
  if (!status.ok()) return status;
  Weights weights;
  weights.shard = shard_;
  weights.layers.resize(shard_.layers.size());
  const auto tokens = Find(Row(TensorRole::kTokenEmbedding), 0);
  if (!tokens.ok()) return tokens.status();
  weights.tokens = **tokens;
  status = AddVector(TensorRole::kOutputNorm, 0, weights.output_norm);
  if (shard_.vocab.size() > 0) status.Update(AddMatrix({HeadRole(spec_)}, 0, weights.head));
  for (uint32_t i = 0; status.ok() && i < shard_.layers.size(); ++i) {
    status = LoadLayer(shard_.layers.begin + i, weights.layers[i]);
  }
  if (status.ok()) status = PackAll(pool);
  if (!status.ok()) return status;
  weights.content_hash = ContentHash(pool);
  weights.bytes = bytes_;
  return weights;
}

}  // namespace

ModelShard WholeModel(const model::ModelSpec& spec) {
  return {.layers = {0, static_cast<uint32_t>(spec.layers.size())},
          .kv_heads = {0, spec.attention().kv_heads},
          .ffn = {0, spec.ffn().width},
          .vocab = {0, spec.vocab}};
}

absl::StatusOr<std::vector<ModelShard>> ShardModel(const model::Checkpoint& file,
                                                   const model::ModelSpec& spec,
                                                   ParallelShape shape, ShardBalance balance) {
  // A tensor's bytes in the file are close enough to its packed bytes. Layers are alike.
  const uint32_t chunks = (spec.vocab + kVocabChunk - 1) / kVocabChunk;
  uint64_t attention_bytes = 0, ffn_bytes = 0, head_bytes = 0;
  for (const model::TensorRow& row : spec.tensors) {
    const model::Tensor* tensor = file.FindTensor(model::NameInFile(row, 0));
    const uint64_t bytes = tensor == nullptr ? 0 : tensor->data.size();
    const auto along = [&](model::Extent extent) {
      return row.rows == extent || row.columns == extent;
    };
    if (along(model::Extent::kQueries) || along(model::Extent::kKeys)) attention_bytes += bytes;
    if (along(model::Extent::kFfn)) ffn_bytes += bytes;
    if (row.role == HeadRole(spec)) head_bytes = bytes;
  }
  const ModelParts parts{.layers = static_cast<uint32_t>(spec.layers.size()),
                         .attention_splits = spec.attention_splits(),
                         .ffn_splits = spec.ffn_splits(),
                         .vocab_chunks = chunks,
                         .attention_split_bytes = attention_bytes / spec.attention_splits(),
                         .ffn_split_bytes = ffn_bytes / spec.ffn_splits(),
                         .vocab_chunk_bytes = head_bytes / chunks};
  const auto shards = PlanShards(parts, shape, balance);
  if (!shards.ok()) return shards.status();
  std::vector<ModelShard> result;
  for (const Shard& shard : *shards) {
    const auto scaled = [](IndexRange range, uint32_t width, uint32_t end) {
      return IndexRange{std::min(range.begin * width, end), std::min(range.end * width, end)};
    };
    result.push_back({.layers = shard.layers,
                      .kv_heads = shard.attention_splits,
                      .ffn = scaled(shard.ffn_splits, spec.ffn().split, spec.ffn().width),
                      .vocab = scaled(shard.vocab_chunks, kVocabChunk, spec.vocab)});
  }
  return result;
}

std::vector<IndexRange> SubtreesOf(IndexRange splits, std::uint32_t all) {
  if (splits.size() == all) return {splits};
  return CompleteSubtrees(splits);
}

IndexRange AttentionSplits(const ModelShard& shard) { return shard.kv_heads; }

IndexRange FfnSplits(const model::ModelSpec& spec, const ModelShard& shard) {
  return {shard.ffn.begin / spec.ffn().split,
          (shard.ffn.end + spec.ffn().split - 1) / spec.ffn().split};
}

absl::StatusOr<Weights> LoadWeights(const model::Checkpoint& file, const model::ModelSpec& spec,
                                    const ModelShard& shard, ThreadPool& pool) {
  return Loader(file, spec, shard).Load(pool);
}

}  // namespace flotilla::worker
