#include "worker/compute/cpu/weight_packer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

using kernels::PackedMatrix;

// The number of rows that one work item packs. It is large enough to amortise the hand-over, and
// small enough to spread the embedding table over all threads.
constexpr int64_t kRowsPerItem = 2048;
static_assert(kRowsPerItem % kernels::kPanelColumns == 0);

}  // namespace

absl::StatusOr<const PackedMatrix*> WeightPacker::Add(std::vector<MatrixPart> parts, int64_t k,
                                                      int64_t first_k,
                                                      absl::Span<const int32_t> split_ends) {
  std::vector<Source> sources;
  WeightEncoding encoding = model::EncodingOf(parts[0].tensor->type);
  int64_t columns = 0;
  for (const MatrixPart& part : parts) {
    sources.push_back({.tensor = part.tensor,
                       .row = part.rows.begin,
                       .count = part.rows.size(),
                       .first_k = first_k,
                       .column = columns,
                       .pairs_of = part.pairs_of});
    columns += part.rows.size();
    if (model::EncodingOf(part.tensor->type) != encoding) encoding = {};
  }
  auto created = PackedMatrix::Create(encoding, columns, k, split_ends);
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

// Reads the source's rows panel by panel, in the encoding of the matrix, and packs them.
absl::Status WeightPacker::PackSource(PackedMatrix& matrix, const Source& source,
                                      LoadProgress* progress) {
  const auto panel = std::make_unique<WeightPanel>();
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < source.count; row += static_cast<int64_t>(rows.size())) {
    rows.clear();
    const int64_t last = std::min(row + kPanelOutputs, source.count);
    for (int64_t r = row; r < last; ++r) {
      rows.push_back(model::IndexInFile(source.row + r, source.pairs_of));
    }
    int64_t count;
    for (int64_t k = 0; k < matrix.k(); k += count) {
      const int64_t first = source.first_k + k;
      count = std::min(kPanelWindow - first % kPanelWindow, matrix.k() - k);
      absl::Status status =
          model::ReadPanel(*source.tensor, rows, first, first + count, matrix.encoding(), *panel);
      if (status.ok()) status = matrix.PackPanel(*panel, source.column + row, k);
      if (!status.ok()) return status;
    }
    if (progress != nullptr) progress->Move(FileBytes(source, matrix.k(), last - row));
  }
  return absl::OkStatus();
}

uint64_t WeightPacker::FileBytes(const Source& source, int64_t k, int64_t rows) {
  const auto& tensor = *source.tensor;
  const uint64_t whole_row = tensor.data.size() / std::max<uint64_t>(1, tensor.dims[1]);
  return whole_row * static_cast<uint64_t>(rows) * static_cast<uint64_t>(k) /
         std::max<uint64_t>(1, tensor.dims[0]);
}

absl::Status WeightPacker::Pack(ThreadPool& pool, LoadProgress* progress) {
  uint64_t bytes = 0;
  for (const Item& item : items_) {
    for (const Source& source : item.sources) {
      bytes += FileBytes(source, item.matrix->k(), source.count);
    }
  }
  if (progress != nullptr) progress->Begin(LoadPhase::kWeights, bytes);
  std::vector<absl::Status> results(items_.size());
  pool.ParallelItems(static_cast<int64_t>(items_.size()), [&](int64_t i) {
    for (const Source& source : items_[i].sources) {
      results[i].Update(PackSource(*items_[i].matrix, source, progress));
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
