#include "worker/compute/host/weight_packer.h"

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

absl::StatusOr<const PackedMatrix*> WeightPacker::Add(std::vector<MatrixPart> parts, int64_t k) {
  const int64_t whole = (k + kernels::kBlockK - 1) / kernels::kBlockK * kernels::kBlockK;
  return Add(std::move(parts), whole, {{.first = 0, .count = k, .at = 0}});
}

absl::StatusOr<const PackedMatrix*> WeightPacker::Add(std::vector<MatrixPart> parts, int64_t k,
                                                      std::vector<Segment> segments,
                                                      absl::Span<const int32_t> split_ends) {
  std::vector<Source> sources;
  WeightEncoding encoding = parts[0].encoding();
  int64_t columns = 0;
  for (const MatrixPart& part : parts) {
    sources.push_back(
        {.part = part, .row = part.rows.begin, .count = part.rows.size(), .column = columns});
    columns += part.count();
    if (part.encoding() != encoding) encoding = {};
  }
  // What no segment has is zero, wherever it is.
  std::vector<int32_t> file_blocks(k / kernels::kBlockK);
  for (const Segment& segment : segments) {
    for (int64_t at = 0; at < segment.count; at += kernels::kBlockK) {
      file_blocks[(segment.at + at) / kernels::kBlockK] =
          static_cast<int32_t>((segment.first + at) / kernels::kBlockK);
    }
  }
  auto created = PackedMatrix::Create(encoding, columns, k, split_ends, file_blocks);
  if (!created.ok()) return created.status();
  PackedMatrix& matrix = matrices_.emplace_back(*std::move(created));

  if (sources.size() > 1) {  // parts may share a panel, so they are one item
    items_.push_back({&matrix, std::move(sources), std::move(segments)});
    return &matrix;
  }
  const int64_t count = sources[0].count;
  for (int64_t row = 0; row < count; row += kRowsPerItem) {
    Source part = sources[0];
    part.row += row;
    part.column = row;
    part.count = std::min(kRowsPerItem, count - row);
    items_.push_back({&matrix, {part}, segments});
  }
  return &matrix;
}

// Reads the source's rows panel by panel, in the encoding of the matrix, and packs them.
absl::Status WeightPacker::PackSource(const Item& item, const Source& source,
                                      LoadProgress* progress, model::PageReleaser* pages) {
  PackedMatrix& matrix = *item.matrix;
  const auto read = source.part.transposed ? model::ReadTransposedPanel : model::ReadPanel;
  const auto panel = std::make_unique<WeightPanel>();
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < source.count; row += static_cast<int64_t>(rows.size())) {
    rows.clear();
    const int64_t last = std::min(row + kPanelOutputs, source.count);
    for (int64_t r = row; r < last; ++r) rows.push_back(source.part.map.At(source.row + r));
    for (const Segment& segment : item.segments) {
      int64_t count;
      for (int64_t k = 0; k < segment.count; k += count) {
        const int64_t first = segment.first + k;
        count = std::min(kPanelWindow - first % kPanelWindow, segment.count - k);
        absl::Status status =
            read(*source.part.tensor, rows, first, first + count, matrix.encoding(), *panel);
        if (status.ok()) {
          status = matrix.PackPanel(*panel, source.column + row, segment.at + k);
        }
        if (!status.ok()) return status;
      }
    }
    if (progress != nullptr) progress->Move(FileBytes(item, source, last - row));
    // A part of a row takes about as many pages as all of it.
    if (pages != nullptr) {
      const model::Tensor& tensor = *source.part.tensor;
      pages->Read(tensor.bytes() / tensor.dims[source.part.transposed ? 0 : 1] *
                  static_cast<uint64_t>(last - row));
    }
  }
  return absl::OkStatus();
}

uint64_t WeightPacker::FileBytes(const Item& item, const Source& source, int64_t rows) {
  const model::Tensor& tensor = *source.part.tensor;
  uint64_t elements = 0;
  for (const Segment& segment : item.segments) elements += static_cast<uint64_t>(segment.count);
  // In units of a row of the file, or of a column.
  const uint64_t outputs = tensor.dims[source.part.transposed ? 0 : 1];
  const uint64_t inputs = tensor.dims[source.part.transposed ? 1 : 0];
  return tensor.bytes() / std::max<uint64_t>(1, outputs) * static_cast<uint64_t>(rows) * elements /
         std::max<uint64_t>(1, inputs);
}

int64_t WeightPacker::bytes() const {
  int64_t bytes = 0;
  for (const PackedMatrix& matrix : matrices_) bytes += matrix.bytes();
  return bytes;
}

uint64_t WeightPacker::file_bytes() const {
  uint64_t bytes = 0;
  for (const Item& item : items_) {
    for (const Source& source : item.sources) bytes += FileBytes(item, source, source.count);
  }
  return bytes;
}

absl::Status WeightPacker::Pack(ThreadPool& pool, LoadProgress* progress,
                                model::PageReleaser* pages) {
  std::vector<absl::Status> results(items_.size());
  pool.ParallelItems(static_cast<int64_t>(items_.size()), [&](int64_t i) {
    for (const Source& source : items_[i].sources) {
      const absl::Status status = PackSource(items_[i], source, progress, pages);
      if (status.ok()) continue;
      const std::string name(source.part.tensor->name);
      results[i] = absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
      return;
    }
  });
  for (absl::Status& result : results) {
    if (!result.ok()) return std::move(result);
  }
  items_.clear();
  return absl::OkStatus();
}

}  // namespace flotilla::worker
