// PackedMatrix: the weights of one matrix product, rearranged once at load into
// the order in which the micro-kernels read them.
//
// Use: the worker creates the matrix and fills it from the model file's raw GGML blocks.
// Afterwards it is immutable, and any thread may read it. It knows block formats but no
// file format and no model.
//
// Columns are outputs: y[m, column] = sum over k of x[m, k] * W[column, k]. They
// are grouped in panels of 32, and K is cut into blocks of 32. Each (panel, block)
// has one record. Records are 64-byte aligned, and blocks ascend inside a panel:
//
//   kNibbles  (q4_0, q4_1)  [2 halves][4 z][16 columns][2 j] 16-bit lanes, then
//             d [32] fp16, m [32] fp16. Nibble n of a lane (bits 4n..4n+3) is
//             the quant of k = 8 z + 2 n + j, so one 64-byte load gives four
//             operands of 16 columns x 2 k by shift and mask. weight = d q + m;
//             q4_0 (weight = d (q - 8)) is stored with m = -8 d, exact in fp16.
//             640 bytes: 5 bits per weight.
//   kBytes    (q8_0)  [2 halves][16 pairs][16 columns][2 j] int8, k = 2 pair + j,
//             then d [32] fp16. 1,088 bytes.
//   kFloats   (f32)  [32 k][32 columns] fp32. 4,096 bytes.
//   kBf16     (bf16) [32 k][32 columns] bf16. 2,048 bytes.
//   kFp16     (f16)  [32 k][32 columns] fp16. 2,048 bytes.
//
// Scales are fp16, because single-row decode is bound by the bytes read: in kNibbles they
// cost 1 bit per weight, and fp32 would cost 2. One instruction converts them to fp32 exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace flotilla::kernels {

inline constexpr int kPanelColumns = 32;
inline constexpr int kBlockK = 32;
// A row-parallel product adds the partial sums of at most this many splits (see MatrixView).
inline constexpr int kMaxSplits = 256;

// Encoding of one weight row in the model file (GGML's names and layouts).
enum class WeightFormat : uint8_t { kF32, kF16, kBf16, kQ4_0, kQ4_1, kQ8_0 };

// Arrangement of packed weights; see the top of this file.
enum class PackedKind : uint8_t { kNibbles, kBytes, kFloats, kBf16, kFp16 };

// Whether matmul_i16 multiplies weights of this kind. The others have fp32 products only.
constexpr bool HasIntegerProduct(PackedKind kind) {
  return kind == PackedKind::kNibbles || kind == PackedKind::kBytes;
}

// Bytes of one (panel, block) record.
constexpr int64_t RecordBytes(PackedKind kind) {
  switch (kind) {
    case PackedKind::kNibbles:
      return 640;
    case PackedKind::kBytes:
      return 1088;
    case PackedKind::kFloats:
      return 4096;
    case PackedKind::kBf16:
    case PackedKind::kFp16:
      return 2048;
  }
  return 0;
}

// Byte offsets of the fp16 scales and mins inside a record.
inline constexpr int kNibbleScaleOffset = 512;
inline constexpr int kNibbleMinOffset = 576;
inline constexpr int kByteScaleOffset = 1024;

// These functions read one record at column `lane` (0..31), one value at a time; the
// reference kernels use them. Quant returns the stored integer of `k` (0..31), and Scale
// returns the scales; both are for kNibbles and kBytes only. UnpackBlock writes the 32
// weights of the column in fp32.
struct BlockScale {
  float d;
  float m;  // 0 for kBytes
};
int Quant(PackedKind kind, const std::byte* record, int lane, int k);
BlockScale Scale(PackedKind kind, const std::byte* record, int lane);
void UnpackBlock(PackedKind kind, const std::byte* record, int lane, float* out);

// Bytes of one row of `k` weights in the model file; k is a multiple of 32.
int64_t RowBytes(WeightFormat format, int64_t k);

// The view of a PackedMatrix that kernels use: plain data, valid while the matrix lives.
//
// Splits cut K into consecutive ranges. Each range is summed by itself with its own
// activation scale. The partial sums are then added in a fixed binary tree over the split
// index: (0,1), (2,3), and so on, level by level. A sum without a partner moves up unchanged.
struct MatrixView {
  PackedKind kind = PackedKind::kFloats;
  int columns = 0;                      // outputs, before padding to panels
  int k = 0;                            // inputs, a multiple of 32
  int split_count = 1;                  // >= 1
  const int32_t* split_ends = nullptr;  // [split_count] ascending multiples of 32, last == k
  const std::byte* records = nullptr;   // [panels, k / 32] records

  int panels() const { return (columns + kPanelColumns - 1) / kPanelColumns; }
  int blocks() const { return k / kBlockK; }
  const std::byte* record(int panel, int block) const {
    return records + (static_cast<int64_t>(panel) * blocks() + block) * RecordBytes(kind);
  }
};

class PackedMatrix {
 public:
  PackedMatrix() = default;

  // Makes an all-zero matrix of `columns` x `k` for weights of `format`. `split_ends` is
  // as in MatrixView; empty means one split. Memory is 64-byte aligned, and Create asks
  // for huge pages. InvalidArgument when k is not a positive multiple of 32, columns is
  // not positive, splits are malformed or the size is above 1 TiB; ResourceExhausted when
  // there is not enough memory.
  static absl::StatusOr<PackedMatrix> Create(WeightFormat format, int64_t columns, int64_t k,
                                             absl::Span<const int32_t> split_ends = {});

  // Packs `count` rows of the file's format into columns [column, column +
  // count). Row i starts at rows[i * row_stride_bytes] and holds k weights; a
  // stride above RowBytes(format, k) takes a range of K out of longer rows.
  // Calls on disjoint panels (32 columns) may run concurrently. InvalidArgument
  // when a range is outside the matrix or `rows` is too short, or when a q4_0
  // scale is too large for -8 d to be an fp16.
  absl::Status PackColumns(int64_t column, int64_t count, absl::Span<const std::byte> rows,
                           int64_t row_stride_bytes);

  // Writes the k weights of one column in fp32, exactly as the format defines
  // them. The tests compare it with the file. `out` has room for k floats; `column` is
  // within range (checked).
  void DequantizeColumn(int64_t column, absl::Span<float> out) const;

  MatrixView view() const;
  WeightFormat format() const { return format_; }
  PackedKind kind() const { return kind_; }
  bool quantized() const { return HasIntegerProduct(kind_); }
  int64_t columns() const { return columns_; }
  int64_t k() const { return k_; }
  absl::Span<const int32_t> split_ends() const { return split_ends_; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  WeightFormat format_ = WeightFormat::kF32;
  PackedKind kind_ = PackedKind::kFloats;
  int64_t columns_ = 0;
  int64_t k_ = 0;
  int64_t bytes_ = 0;
  std::vector<int32_t> split_ends_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace flotilla::kernels
