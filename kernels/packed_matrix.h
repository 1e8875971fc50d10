// PackedMatrix: the weights of one matrix product, rearranged once at load into
// the order in which the micro-kernels read them.
//
// Use: the worker creates the matrix and fills it with panels of the model's weights
// (common/types/weight_panel.h). Afterwards it is immutable, and any thread may read it. It knows
// no format of a file and no model.
//
// Columns are outputs: y[m, column] = sum over k of x[m, k] * W[column, k]. They
// are grouped in panels of 32, and K is cut into blocks of 32. Each (panel, block)
// has one record, arranged as the packed kind says (kernels/packing/). Records are 64-byte
// aligned, and blocks ascend inside a panel. Before its records a panel has what the kind keeps for
// whole windows of the file, if it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/weight_panel.h"
#include "kernels/packing/kind.h"

namespace flotilla::kernels {

// A row-parallel product adds the partial sums of at most this many splits (see MatrixView).
inline constexpr int kMaxSplits = 256;

// The kind that packs an encoding. InvalidArgument: none does.
absl::StatusOr<PackedKind> KindFor(const WeightEncoding& encoding);

// The bits that a weight of this encoding takes in memory in rows of `k`, padding of columns and
// rows apart. InvalidArgument: no kind packs it.
absl::StatusOr<double> PackedBits(const WeightEncoding& encoding, int64_t k);

// Whether matmul_i16 multiplies weights of this kind. Those that no integer product multiplies have
// fp32 products only.
bool HasIntegerProduct(PackedKind kind);
// Whether matmul_i8 does.
bool HasInt8Product(PackedKind kind);

// The outliers of a panel: in the order of blocks, of the halves of 16 columns, and of k, which is
// that of the sums of a column. An outlier is a word: its value in fp16 in the upper half, and in
// the lower one 32 times its k in the block, plus its column in the panel.
struct PanelOutliers {
  const uint32_t* begins = nullptr;  // [2 blocks + 1] of the halves of each block
  const uint32_t* words = nullptr;
};
FLOTILLA_INLINE int OutlierK(uint32_t word) { return static_cast<int>(word >> 5 & 31); }
FLOTILLA_INLINE int OutlierColumn(uint32_t word) { return static_cast<int>(word & 31); }
FLOTILLA_INLINE uint16_t OutlierValue(uint32_t word) { return static_cast<uint16_t>(word >> 16); }

// The view of a PackedMatrix that kernels use: plain data, valid while the matrix lives.
//
// Splits cut K into consecutive ranges. Each range is summed by itself with its own
// activation scale. The partial sums are then added in a fixed binary tree over the split
// index: (0,1), (2,3), and so on, level by level. A sum without a partner moves up unchanged.
struct MatrixView {
  PackedKind kind{};
  int columns = 0;                      // outputs, before padding to panels
  int k = 0;                            // inputs, a multiple of 32
  int split_count = 1;                  // >= 1
  const int32_t* split_ends = nullptr;  // [split_count] ascending multiples of 32, last == k
  const std::byte* panels_begin = nullptr;
  int64_t panel_bytes = 0;
  int64_t record_bytes = 0;
  int64_t super_bytes = 0;                  // of one window (kSuperBytesOf)
  int64_t first_record = 0;                 // bytes from a panel's begin
  const int32_t* block_supers = nullptr;    // [blocks] which of the panel's windows; null: none
  ActivationScheme activations;             // of the encoding
  const PanelOutliers* outliers = nullptr;  // [panels]; null: the kind has none
  int first_block = 0;                      // that of `outliers` which is the first one here

  int panels() const { return (columns + kPanelColumns - 1) / kPanelColumns; }
  int blocks() const { return k / kBlockK; }
  const std::byte* record(int panel, int block) const {
    return panels_begin + panel * panel_bytes + first_record + block * record_bytes;
  }
  const std::byte* super(int panel, int block) const {
    return panels_begin + panel * panel_bytes + block_supers[block] * super_bytes;
  }
  // The part whose first block is this one. The caller sets what is less of the part.
  MatrixView From(int panel, int block) const {
    MatrixView part = *this;
    part.panels_begin += panel * panel_bytes;
    part.first_record += block * record_bytes;
    if (block_supers != nullptr) part.block_supers += block;
    if (outliers != nullptr) part.outliers += panel;
    part.first_block += block;
    return part;
  }
  // Calls visit(word) for the outliers in `halves` halves of a block, from `half` on, in their
  // order.
  template <class Visit>
  FLOTILLA_INLINE void ForEachOutlier(int panel, int block, int half, int halves,
                                      const Visit& visit) const {
    const PanelOutliers& of = outliers[panel];
    const uint32_t* const begin = of.begins + (first_block + block) * 2 + half;
    for (uint32_t i = *begin; i < begin[halves]; ++i) visit(of.words[i]);
  }
};

// The record of a block as the functions of a kind take it.
template <class Kind>
FLOTILLA_INLINE auto RecordOf(const MatrixView& matrix, int panel, int block) {
  if constexpr (kHasSuper<Kind>) {
    return SuperRecord{matrix.record(panel, block), matrix.super(panel, block)};
  } else {
    return matrix.record(panel, block);
  }
}

// The records of a panel one after the other. The next one is a constant number of bytes away, so
// that inner loops need no products of sizes.
template <class Kind>
class RecordCursor {
 public:
  FLOTILLA_INLINE RecordCursor(const MatrixView& matrix, int panel)
      : record_(matrix.record(panel, 0)),
        window_(matrix.block_supers),
        supers_(matrix.panels_begin + panel * matrix.panel_bytes) {}

  // Returns this block's record and goes on to the next one.
  FLOTILLA_INLINE auto Next() {
    const std::byte* record = record_;
    record_ += Kind::kRecordBytes;
    if constexpr (kHasSuper<Kind>) {
      return SuperRecord{record, supers_ + *window_++ * int64_t{kSuperBytesOf<Kind>}};
    } else {
      return record;
    }
  }

 private:
  const std::byte* record_;
  const int32_t* window_;
  const std::byte* supers_;  // of the panel
};

class PackedMatrix {
 public:
  PackedMatrix() = default;

  // Makes an all-zero matrix of `columns` x `k` for weights of `encoding`. `split_ends` is
  // as in MatrixView; empty means one split. `file_blocks` [k / 32] are the numbers that the blocks
  // have in the file's rows; empty: block b is number b. Memory is 64-byte aligned, and Create
  // asks for huge pages. InvalidArgument when no kind packs the encoding, k is not a positive
  // multiple of 32, columns is not positive, splits are malformed or the size is above 1 TiB;
  // ResourceExhausted when there is not enough memory.
  static absl::StatusOr<PackedMatrix> Create(const WeightEncoding& encoding, int64_t columns,
                                             int64_t k, absl::Span<const int32_t> split_ends = {},
                                             absl::Span<const int32_t> file_blocks = {});

  // Packs the outputs of a panel into the columns from `column` on, and its elements into those
  // from `k` on. Calls on disjoint panels of the matrix (32 columns) may run concurrently.
  // InvalidArgument when the panel has another encoding, its range is outside the matrix or not
  // in multiples of 32, or one of its scales is outside the range of the kind.
  absl::Status PackPanel(const WeightPanel& panel, int64_t column, int64_t k);

  // Writes the k weights of one column in fp32, exactly as weight_panel.h defines
  // them. The tests compare it with the file. `out` has room for k floats; `column` is
  // within range (checked).
  void DequantizeColumn(int64_t column, absl::Span<float> out) const;

  MatrixView view() const;
  const WeightEncoding& encoding() const { return encoding_; }
  PackedKind kind() const { return kind_; }
  bool quantized() const { return HasIntegerProduct(kind_); }
  int64_t columns() const { return columns_; }
  int64_t k() const { return k_; }
  absl::Span<const int32_t> split_ends() const { return split_ends_; }
  // Those of the outliers, too, of which there are none before they are packed.
  int64_t bytes() const;
  // Those of the panels, without outliers.
  int64_t panel_bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  // Keeps the outliers of a panel of weights, whose elements begin at `k`.
  void PackOutliers(const WeightPanel& panel, int64_t column, int64_t k);

  WeightEncoding encoding_;
  PackedKind kind_{};
  int64_t record_bytes_ = 0;
  int64_t super_bytes_ = 0;
  int64_t first_record_ = 0;
  int64_t panel_bytes_ = 0;
  std::vector<int32_t> block_supers_;
  int64_t columns_ = 0;
  int64_t k_ = 0;
  int64_t bytes_ = 0;
  std::vector<int32_t> split_ends_;
  std::unique_ptr<std::byte, Free> data_;
  // What `outliers_` shows.
  struct PanelWords {
    std::vector<uint32_t> begins, words;
  };
  std::vector<PanelWords> panel_words_;  // [panels], or empty
  std::vector<PanelOutliers> outliers_;  // the same
};

}  // namespace flotilla::kernels
