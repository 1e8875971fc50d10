#include "worker/compute/cpu/weight_packer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

using kernels::PackedMatrix;
using kernels::WeightFormat;

// The number of rows that one work item packs. It is large enough to amortise the hand-over, and
// small enough to spread the embedding table over all threads.
constexpr int64_t kRowsPerItem = 2048;
static_assert(kRowsPerItem % kernels::kPanelColumns == 0);

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

}  // namespace

absl::StatusOr<const PackedMatrix*> WeightPacker::Add(std::vector<MatrixPart> parts, int64_t k,
                                                      int64_t first_k,
                                                      absl::Span<const int32_t> split_ends) {
  std::vector<Source> sources;
  std::optional<WeightFormat> format;
  int64_t columns = 0;
  for (const MatrixPart& part : parts) {
    sources.push_back({.tensor = part.tensor,
                       .row = part.rows.begin,
                       .count = part.rows.size(),
                       .first_k = first_k,
                       .column = columns,
                       .pairs_of = part.pairs_of});
    columns += part.rows.size();
    const auto own = PackedFormat(part.tensor->type).value_or(WeightFormat::kF32);
    format = format.value_or(own) == own ? own : WeightFormat::kF32;
  }
  auto created = PackedMatrix::Create(*format, columns, k, split_ends);
  if (!created.ok()) return created.status();
  PackedMatrix& matrix = matrices_.emplace_back(*std::move(created));
  bytes_ += matrix.bytes();

  if (sources.size() > 1) {  // parts may share a panel, so they are one item
    items_.push_back({&matrix, std::move(sources)});
    return &matrix;
  }
  for (int64_t row = 0; row < columns; row += kRowsPerItem) {
    Source part = sources[0];
    part.row += row;
    part.column = row;
    part.count = std::min(kRowsPerItem, columns - row);
    items_.push_back({&matrix, {part}});
  }
  return &matrix;
}

// Packs one row of `tensor` as a column of the matrix, through fp32 if the formats differ. `values`
// has room for a row.
absl::Status WeightPacker::PackRow(PackedMatrix& matrix, const Source& source, int64_t row,
                                   int64_t column, std::vector<float>& values) {
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

absl::Status WeightPacker::PackSource(PackedMatrix& matrix, const Source& source) {
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
    const int64_t row = model::IndexInFile(source.row + r, source.pairs_of);
    absl::Status status = PackRow(matrix, source, row, source.column + r, values);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status WeightPacker::Pack(ThreadPool& pool) {
  std::vector<absl::Status> results(items_.size());
  pool.ParallelItems(static_cast<int64_t>(items_.size()), [&](int64_t i) {
    for (const Source& source : items_[i].sources) {
      results[i].Update(PackSource(*items_[i].matrix, source));
    }
  });
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) continue;
    return absl::Status(
        results[i].code(),
        absl::StrCat(std::string(items_[i].sources[0].tensor->name), ": ", results[i].message()));
  }
  items_.clear();
  return absl::OkStatus();
}

}  // namespace flotilla::worker
