// WeightPacker: brings weights of the model file into the arrangement that the kernels read, once
// at start. Matrices are listed first and packed together, so that all threads share the work.
//
// Matrices keep the file's quantisation exactly. Where the parts of a matrix have different
// encodings they are stored as the exact fp32 values.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/load_progress.h"
#include "kernels/packed_matrix.h"
#include "worker/compute/backend.h"
#include "worker/compute/host/thread_pool.h"

namespace flotilla::worker {

class WeightPacker {
 public:
  // Elements of the rows of a tensor, and where they begin in those of the matrix.
  struct Segment {
    std::int64_t first = 0;  // a multiple of 32
    std::int64_t count = 0;
    std::int64_t at = 0;  // a multiple of 32
  };

  // Lists a matrix of rows of `k` whose outputs are those of the parts, one after the other, of
  // which each row has the elements of the segments; the rest is zero. `split_ends` is as for
  // PackedMatrix. The matrix lives as long as the packer, and is zero until Pack. Errors as for
  // PackedMatrix::Create.
  absl::StatusOr<const kernels::PackedMatrix*> Add(std::vector<MatrixPart> parts, std::int64_t k,
                                                   std::vector<Segment> segments,
                                                   absl::Span<const std::int32_t> split_ends = {});
  // The same of whole rows of `k`, filled up to a multiple of 32.
  absl::StatusOr<const kernels::PackedMatrix*> Add(std::vector<MatrixPart> parts, std::int64_t k);

  // Packs all matrices of the list with the threads of `pool`. An error names the tensor.
  // `progress` and `pages`, which may be null, get the bytes of the file that are read.
  absl::Status Pack(ThreadPool& pool, LoadProgress* progress = nullptr,
                    model::PageReleaser* pages = nullptr);

  std::int64_t bytes() const;  // of all matrices
  // Those of the file that Pack will read.
  std::uint64_t file_bytes() const;

 private:
  // A part of a tensor that goes into a matrix. The `count` rows from `row` on become the matrix
  // columns from `column` on.
  struct Source {
    MatrixPart part;
    std::int64_t row;
    std::int64_t count;
    std::int64_t column;
  };
  // One unit of parallel work. No other unit writes the panels of its columns.
  struct Item {
    kernels::PackedMatrix* matrix;
    std::vector<Source> sources;
    std::vector<Segment> segments;
  };

  static absl::Status PackSource(const Item& item, const Source& source, LoadProgress* progress,
                                 model::PageReleaser* pages);
  // The bytes of the file that `rows` of the source have.
  static std::uint64_t FileBytes(const Item& item, const Source& source, std::int64_t rows);

  std::deque<kernels::PackedMatrix> matrices_;
  std::vector<Item> items_;
};

}  // namespace flotilla::worker
