#include "worker/weights.h"

#include <algorithm>
#include <atomic>
#include <string>

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/kv_layout.h"

namespace flotilla {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;

// Rows packed by one work item: large enough to amortise the hand-over, small
// enough that the embedding table is spread over all threads.
constexpr int64_t kRowsPerItem = 2048;

std::optional<WeightFormat> PackedFormat(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return WeightFormat::kF32;
    case GgmlType::kF16:
      return WeightFormat::kF16;
    case GgmlType::kBF16:
      return WeightFormat::kBf16;
    case GgmlType::kQ4_0:
      return WeightFormat::kQ4_0;
    case GgmlType::kQ4_1:
      return WeightFormat::kQ4_1;
    case GgmlType::kQ8_0:
      return WeightFormat::kQ8_0;
    default:
      return std::nullopt;
  }
}

// Rows [row, row + count) of a tensor that become columns from `column` on.
struct Source {
  const GgufTensor* tensor;
  int64_t row;
  int64_t count;
  int64_t column;
};

// One unit of parallel work: it alone writes the panels of its columns.
struct PackItem {
  PackedMatrix* matrix;
  std::vector<Source> sources;
};

absl::Span<const std::byte> RowsOf(const Source& source) {
  const int64_t row_bytes = source.tensor->data.size() / source.tensor->dims[1];
  return {source.tensor->data.data() + source.row * row_bytes,
          static_cast<size_t>(source.count * row_bytes)};
}

absl::Status Pack(PackedMatrix& matrix, const Source& source) {
  const absl::Span<const std::byte> rows = RowsOf(source);
  if (PackedFormat(source.tensor->type) == matrix.format()) {
    return matrix.PackColumns(source.column, source.count, rows, rows.size() / source.count);
  }
  // Row by row through fp32, which holds every weight of every block type.
  const int64_t row_bytes = rows.size() / source.count;
  std::vector<float> values(matrix.k());
  for (int64_t r = 0; r < source.count; ++r) {
    absl::Status status = DequantizeRow(
        source.tensor->type, {rows.data() + r * row_bytes, static_cast<size_t>(row_bytes)}, values);
    if (!status.ok()) return status;
    status = matrix.PackColumns(
        source.column + r, 1,
        {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)},
        values.size() * sizeof(float));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

class Loader {
 public:
  Loader(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  absl::StatusOr<Weights> Load(ThreadPool& pool);

 private:
  absl::Status CheckLayout() const;
  absl::Status LoadLayer(int index, LayerWeights& layer);
  // Creates `matrix` from the rows of `names` below each other, and its items.
  absl::Status AddMatrix(const std::vector<std::string>& names, absl::Span<const int32_t> slot_ends,
                         PackedMatrix& matrix);
  absl::Status AddVector(const std::string& name, std::vector<float>& out) const;
  absl::StatusOr<const GgufTensor*> Find(const std::string& name) const;
  absl::Status PackAll(ThreadPool& pool);
  uint64_t ContentHash(ThreadPool& pool) const;

  const GgufFile& file_;
  const ModelConfig& config_;
  std::vector<PackItem> items_;
  int64_t bytes_ = 0;
};

absl::Status Loader::CheckLayout() const {
  if (config_.rope_style != RopeStyle::kInterleaved || config_.rope_dim != config_.head_dim) {
    return absl::UnimplementedError("only interleaved RoPE over the whole head is supported");
  }
  if (config_.head_dim % 16 != 0 || config_.head_dim > kernels::kMaxHeadDim) {
    return absl::UnimplementedError(absl::StrCat(
        "head size ", config_.head_dim, " is not a multiple of 16 up to ", kernels::kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<const GgufTensor*> Loader::Find(const std::string& name) const {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return absl::InvalidArgumentError(absl::StrCat("no tensor ", name));
  return tensor;
}

absl::Status Loader::AddVector(const std::string& name, std::vector<float>& out) const {
  const auto tensor = Find(name);
  if (!tensor.ok()) return tensor.status();
  out.resize((*tensor)->elements());
  return DequantizeRow((*tensor)->type, (*tensor)->data, out);
}

absl::Status Loader::AddMatrix(const std::vector<std::string>& names,
                               absl::Span<const int32_t> slot_ends, PackedMatrix& matrix) {
  std::vector<Source> sources;
  std::optional<WeightFormat> format;
  int64_t columns = 0, k = 0;
  for (const std::string& name : names) {
    const auto tensor = Find(name);
    if (!tensor.ok()) return tensor.status();
    const GgufTensor& t = **tensor;
    const auto own = PackedFormat(t.type).value_or(WeightFormat::kF32);
    format = format.value_or(own) == own ? own : WeightFormat::kF32;
    k = static_cast<int64_t>(t.dims[0]);
    sources.push_back({&t, 0, static_cast<int64_t>(t.dims[1]), columns});
    columns += sources.back().count;
  }
  auto created = PackedMatrix::Create(*format, columns, k, slot_ends);
  if (!created.ok()) return created.status();
  matrix = *std::move(created);
  bytes_ += matrix.bytes();

  if (sources.size() > 1) {  // parts may share a panel: one item
    items_.push_back({&matrix, std::move(sources)});
    return absl::OkStatus();
  }
  static_assert(kRowsPerItem % kernels::kPanelColumns == 0);
  for (int64_t row = 0; row < columns; row += kRowsPerItem) {
    const int64_t count = std::min(kRowsPerItem, columns - row);
    items_.push_back({&matrix, {{sources[0].tensor, row, count, row}}});
  }
  return absl::OkStatus();
}

absl::Status Loader::LoadLayer(int index, LayerWeights& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const auto name = [&](const char* part) { return absl::StrCat(prefix, part, ".weight"); };

  const int32_t head_group = config_.heads / config_.kv_heads * config_.head_dim;
  std::vector<int32_t> attention_slots, ffn_slots;
  for (uint32_t h = 0; h < config_.attention_slots(); ++h) {
    attention_slots.push_back((h + 1) * head_group);
  }
  for (uint32_t s = 0; s < config_.ffn_slots(); ++s) {
    ffn_slots.push_back(std::min((s + 1) * config_.ffn_slot, config_.ffn));
  }

  absl::Status status = AddVector(name("attn_norm"), layer.attention_norm);
  status.Update(AddVector(name("ffn_norm"), layer.ffn_norm));
  status.Update(AddMatrix({name("attn_q"), name("attn_k"), name("attn_v")}, {}, layer.qkv));
  status.Update(AddMatrix({name("attn_output")}, attention_slots, layer.attention_output));
  status.Update(AddMatrix({name("ffn_gate"), name("ffn_up")}, {}, layer.gate_up));
  status.Update(AddMatrix({name("ffn_down")}, ffn_slots, layer.down));
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
  hashes.back() = XXH3_64bits(file_.metadata().data(), file_.metadata().size());
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
}

absl::StatusOr<Weights> Loader::Load(ThreadPool& pool) {
  absl::Status status = CheckLayout();
  if (!status.ok()) return status;
  Weights weights;
  weights.layers.resize(config_.layers);
  status = AddMatrix({"token_embd.weight"}, {}, weights.embedding);
  status.Update(AddVector("output_norm.weight", weights.output_norm));
  if (!config_.tied_embedding) {
    status.Update(AddMatrix({"output.weight"}, {}, weights.output.emplace()));
  }
  for (uint32_t i = 0; status.ok() && i < config_.layers; ++i) {
    status = LoadLayer(i, weights.layers[i]);
  }
  if (status.ok()) status = PackAll(pool);
  if (!status.ok()) return status;
  weights.content_hash = ContentHash(pool);
  weights.bytes = bytes_;
  return weights;
}

}  // namespace

absl::StatusOr<Weights> LoadWeights(const GgufFile& file, const ModelConfig& config,
                                    ThreadPool& pool) {
  return Loader(file, config).Load(pool);
}

}  // namespace flotilla
