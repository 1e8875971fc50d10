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
constexpr char kTokens[] = "token_embd.weight";

std::string HeadName(const model::ModelConfig& config) {
  return config.tied_embedding ? kTokens : "output.weight";
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
};

// One unit of parallel work. No other unit writes the panels of its columns.
struct PackItem {
  PackedMatrix* matrix;
  std::vector<Source> sources;
};

absl::Status Pack(PackedMatrix& matrix, const Source& source) {
  const model::Tensor& tensor = *source.tensor;
  const int64_t row_bytes = tensor.data.size() / tensor.dims[1];
  const std::byte* rows = tensor.data.data() + source.row * row_bytes;
  if (const auto format = PackedFormat(tensor.type); format == matrix.format()) {
    const int64_t skip = source.first_k == 0 ? 0 : kernels::RowBytes(*format, source.first_k);
    return matrix.PackColumns(source.column, source.count,
                              {rows + skip, static_cast<size_t>(source.count * row_bytes - skip)},
                              row_bytes);
  }
  // Converts row by row through fp32, which holds every weight of every block type.
  std::vector<float> values(tensor.dims[0]);
  for (int64_t r = 0; r < source.count; ++r) {
    absl::Status status = model::DequantizeRow(
        tensor.type, {rows + r * row_bytes, static_cast<size_t>(row_bytes)}, values);
    if (!status.ok()) return status;
    const auto* begin = reinterpret_cast<const std::byte*>(values.data() + source.first_k);
    const size_t bytes = matrix.k() * sizeof(float);
    status = matrix.PackColumns(source.column + r, 1, {begin, bytes}, bytes);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A part of a tensor: its rows, and the first element that is used of each row.
struct Piece {
  std::string name;
  int64_t row;
  int64_t count;
  int64_t first_k = 0;
};

class Loader {
 public:
  Loader(const model::Checkpoint& file, const model::ModelConfig& config, const ModelShard& shard)
      : file_(file), config_(config), shard_(shard) {}

  absl::StatusOr<Weights> Load(ThreadPool& pool);

 private:
  absl::Status CheckLayout() const;
  absl::Status LoadLayer(uint32_t index, LayerWeights& layer);
  // Creates `matrix` from `pieces`, in their order, with k elements of each row. Adds the work
  // items that pack it.
  absl::Status AddMatrix(const std::vector<Piece>& pieces, int64_t k,
                         absl::Span<const int32_t> split_ends, PackedMatrix& matrix);
  // Adds the products of a row-parallel matrix. `ends` says where each split of the model ends;
  // `splits` are the splits of this rank.
  absl::Status AddSplitProducts(const std::string& name, absl::Span<const int32_t> ends,
                                IndexRange splits, std::vector<SplitProduct>& products);
  absl::Status AddVector(const std::string& name, std::vector<float>& out) const;
  absl::StatusOr<const model::Tensor*> Find(const std::string& name) const;
  absl::Status PackAll(ThreadPool& pool);
  uint64_t ContentHash(ThreadPool& pool) const;

  const model::Checkpoint& file_;
  const model::ModelConfig& config_;
  const ModelShard& shard_;
  std::vector<PackItem> items_;
  int64_t bytes_ = 0;
};

absl::Status Loader::CheckLayout() const {
  if (config_.rope_style != model::RopeStyle::kInterleaved ||
      config_.rope_dim != config_.head_dim) {
    return absl::UnimplementedError("only interleaved RoPE over the whole head is supported");
  }
  if (config_.head_dim % 16 != 0 || config_.head_dim > kernels::kMaxHeadDim) {
    return absl::UnimplementedError(absl::StrCat(
        "head size ", config_.head_dim, " is not a multiple of 16 up to ", kernels::kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<const model::Tensor*> Loader::Find(const std::string& name) const {
  const model::Tensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat("no tensor ", name));
  return tensor;
}

absl::Status Loader::AddVector(const std::string& name, std::vector<float>& out) const {
  const auto tensor = Find(name);
  if (!tensor.ok()) return tensor.status();
  out.resize((*tensor)->elements());
  return model::DequantizeRow((*tensor)->type, (*tensor)->data, out);
}

absl::Status Loader::AddMatrix(const std::vector<Piece>& pieces, int64_t k,
                               absl::Span<const int32_t> split_ends, PackedMatrix& matrix) {
  std::vector<Source> sources;
  std::optional<WeightFormat> format;
  int64_t columns = 0;
  for (const Piece& piece : pieces) {
    const auto tensor = Find(piece.name);
    if (!tensor.ok()) return tensor.status();
    const auto own = PackedFormat((*tensor)->type).value_or(WeightFormat::kF32);
    format = format.value_or(own) == own ? own : WeightFormat::kF32;
    sources.push_back({*tensor, piece.row, piece.count, piece.first_k, columns});
    columns += piece.count;
  }
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

absl::Status Loader::AddSplitProducts(const std::string& name, absl::Span<const int32_t> ends,
                                      IndexRange splits, std::vector<SplitProduct>& products) {
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
    absl::Status status = AddMatrix({{name, 0, config_.hidden, first}}, own_ends.back(), own_ends,
                                    products[i].matrix);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Loader::LoadLayer(uint32_t index, LayerWeights& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const auto name = [&](const char* part) { return absl::StrCat(prefix, part, ".weight"); };

  const int32_t head_group = config_.heads / config_.kv_heads * config_.head_dim;
  std::vector<int32_t> attention_ends, ffn_ends;
  for (uint32_t h = 0; h < config_.attention_splits(); ++h) {
    attention_ends.push_back((h + 1) * head_group);
  }
  for (uint32_t s = 0; s < config_.ffn_splits(); ++s) {
    ffn_ends.push_back(std::min((s + 1) * config_.ffn_split, config_.ffn));
  }
  const int64_t hidden = config_.hidden;
  const IndexRange heads = shard_.kv_heads, ffn = shard_.ffn;
  const Piece q{name("attn_q"), int64_t{heads.begin} * head_group,
                int64_t{heads.size()} * head_group};
  const Piece k{name("attn_k"), int64_t{heads.begin} * config_.head_dim,
                int64_t{heads.size()} * config_.head_dim};
  const Piece v{name("attn_v"), k.row, k.count};

  absl::Status status = AddVector(name("attn_norm"), layer.attention_norm);
  status.Update(AddVector(name("ffn_norm"), layer.ffn_norm));
  status.Update(AddMatrix({q, k, v}, hidden, {}, layer.qkv));
  status.Update(AddSplitProducts(name("attn_output"), attention_ends, AttentionSplits(shard_),
                                 layer.attention_output));
  status.Update(AddMatrix(
      {{name("ffn_gate"), ffn.begin, ffn.size()}, {name("ffn_up"), ffn.begin, ffn.size()}}, hidden,
      {}, layer.gate_up));
  status.Update(
      AddSplitProducts(name("ffn_down"), ffn_ends, FfnSplits(config_, shard_), layer.down));
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
  const auto tokens = Find(kTokens);
  if (!tokens.ok()) return tokens.status();
  weights.tokens = **tokens;
  status = AddVector("output_norm.weight", weights.output_norm);
  if (shard_.vocab.size() > 0) {
    status.Update(AddMatrix({{HeadName(config_), shard_.vocab.begin, shard_.vocab.size()}},
                            config_.hidden, {}, weights.head));
  }
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

ModelShard WholeModel(const model::ModelConfig& config) {
  return {.layers = {0, config.layers},
          .kv_heads = {0, config.kv_heads},
          .ffn = {0, config.ffn},
          .vocab = {0, config.vocab}};
}

absl::StatusOr<std::vector<ModelShard>> ShardModel(const model::Checkpoint& file,
                                                   const model::ModelConfig& config,
                                                   ParallelShape shape, ShardBalance balance) {
  // A tensor's bytes in the file are close enough to its packed bytes.
  const auto bytes = [&](const std::string& name) {
    const model::Tensor* tensor = file.FindTensor(name);
    return tensor == nullptr ? uint64_t{0} : uint64_t{tensor->data.size()};
  };
  const auto layer_bytes = [&](std::initializer_list<const char*> parts) {
    uint64_t sum = 0;
    for (const char* part : parts) sum += bytes(absl::StrCat("blk.0.", part, ".weight"));
    return sum;
  };
  const ModelParts parts{
      .layers = config.layers,
      .attention_splits = config.attention_splits(),
      .ffn_splits = config.ffn_splits(),
      .vocab_chunks = (config.vocab + kVocabChunk - 1) / kVocabChunk,
      .attention_split_bytes =
          layer_bytes({"attn_q", "attn_k", "attn_v", "attn_output"}) / config.attention_splits(),
      .ffn_split_bytes = layer_bytes({"ffn_gate", "ffn_up", "ffn_down"}) / config.ffn_splits(),
      .vocab_chunk_bytes =
          bytes(HeadName(config)) / ((config.vocab + kVocabChunk - 1) / kVocabChunk)};
  const auto shards = PlanShards(parts, shape, balance);
  if (!shards.ok()) return shards.status();
  std::vector<ModelShard> result;
  for (const Shard& shard : *shards) {
    const auto scaled = [](IndexRange range, uint32_t width, uint32_t end) {
      return IndexRange{std::min(range.begin * width, end), std::min(range.end * width, end)};
    };
    result.push_back({.layers = shard.layers,
                      .kv_heads = shard.attention_splits,
                      .ffn = scaled(shard.ffn_splits, config.ffn_split, config.ffn),
                      .vocab = scaled(shard.vocab_chunks, kVocabChunk, config.vocab)});
  }
  return result;
}

std::vector<IndexRange> SubtreesOf(IndexRange splits, std::uint32_t all) {
  if (splits.size() == all) return {splits};
  return CompleteSubtrees(splits);
}

IndexRange AttentionSplits(const ModelShard& shard) { return shard.kv_heads; }

IndexRange FfnSplits(const model::ModelConfig& config, const ModelShard& shard) {
  return {shard.ffn.begin / config.ffn_split,
          (shard.ffn.end + config.ffn_split - 1) / config.ffn_split};
}

absl::StatusOr<Weights> LoadWeights(const model::Checkpoint& file, const model::ModelConfig& config,
                                    const ModelShard& shard, ThreadPool& pool) {
  return Loader(file, config, shard).Load(pool);
}

}  // namespace flotilla::worker
