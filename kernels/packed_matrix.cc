#include "kernels/packed_matrix.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/base/macros.h"
#include "absl/strings/str_cat.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels {
namespace {

// This limit is far above any model. It keeps every product of dimensions within 64 bits.
constexpr int64_t kMaxDimension = int64_t{1} << 28;
constexpr int64_t kMaxBytes = int64_t{1} << 40;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

constexpr int kQ4_0Bytes = 18;  // d fp16, 16 bytes of nibbles
constexpr int kQ4_1Bytes = 20;  // d fp16, m fp16, 16 bytes of nibbles
constexpr int kQ8_0Bytes = 34;  // d fp16, 32 int8

PackedKind KindOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ4_1:
      return PackedKind::kNibbles;
    case WeightFormat::kQ8_0:
      return PackedKind::kBytes;
    case WeightFormat::kBf16:
      return PackedKind::kBf16;
    case WeightFormat::kF16:
      return PackedKind::kFp16;
    case WeightFormat::kF32:
      break;
  }
  return PackedKind::kFloats;
}

uint16_t Load16(const std::byte* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

void Store16(std::byte* p, uint16_t x) { std::memcpy(p, &x, sizeof x); }

// -8 d as fp16: exponent + 3 and the sign flipped; exact for every d whose result
// is finite. Returns false otherwise.
bool MinusEightTimes(uint16_t d, uint16_t* out) {
  const uint16_t sign = (d & 0x8000u) ^ 0x8000u;
  uint32_t exponent = (d >> 10) & 31u;
  uint32_t mantissa = d & 0x3FFu;
  if (exponent >= 28) return false;
  if (exponent == 0) {
    // Subnormal: eight times the mantissa, perhaps with a carry into the exponent.
    mantissa *= 8;
    while (mantissa >= 0x800u) {
      mantissa >>= 1;
      ++exponent;
    }
    if (mantissa >= 0x400u) {
      ++exponent;
      mantissa &= 0x3FFu;
    }
  } else {
    exponent += 3;
  }
  *out = static_cast<uint16_t>(sign | (exponent << 10) | mantissa);
  return true;
}

// Returns the four nibbles in bits 0-3, 16-19, 32-35, 48-51 side by side in bits 0-15.
uint32_t Gather4(uint64_t x) {
  x = (x | x >> 12) & 0x000000FF000000FFu;
  return static_cast<uint32_t>(x | x >> 24) & 0xFFFFu;
}

// Quant i (0..31) of a q4 block is in byte i mod 16, low nibble first; so z 0 and
// 1 (k < 16) take low nibbles, z 2 and 3 high ones.
void PackNibbles(const std::byte* quants, int column, std::byte* record) {
  constexpr uint64_t kEven = 0x000F000F000F000Fu;
  std::byte* half = record + column / 16 * 256 + column % 16 * 4;
  for (int z = 0; z < 4; ++z) {
    uint64_t eight;
    std::memcpy(&eight, quants + z % 2 * 8, sizeof eight);
    if (z >= 2) eight >>= 4;
    const uint32_t lanes = Gather4(eight & kEven) | Gather4((eight >> 8) & kEven) << 16;
    std::memcpy(half + z * 64, &lanes, sizeof lanes);
  }
}

void PackBytes(const std::byte* quants, int column, std::byte* record) {
  std::byte* half = record + column / 16 * 512 + column % 16 * 2;
  for (int pair = 0; pair < 16; ++pair) std::memcpy(half + pair * 32, quants + pair * 2, 2);
}

// Packs numbers of `size` bytes as they are.
void PackNumbers(const std::byte* source, int size, int column, std::byte* record) {
  for (int i = 0; i < kBlockK; ++i) {
    std::memcpy(record + (i * kPanelColumns + column) * size, source + i * size, size);
  }
}

// Packs one block of 32 weights into `column` of a record. Returns false if MinusEightTimes
// does.
bool PackBlock(WeightFormat format, const std::byte* block, int column, std::byte* record) {
  switch (format) {
    case WeightFormat::kF32:
      PackNumbers(block, 4, column, record);
      return true;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      PackNumbers(block, 2, column, record);
      return true;
    case WeightFormat::kQ4_0: {
      uint16_t min;
      if (!MinusEightTimes(Load16(block), &min)) return false;
      Store16(record + kNibbleScaleOffset + column * 2, Load16(block));
      Store16(record + kNibbleMinOffset + column * 2, min);
      PackNibbles(block + 2, column, record);
      return true;
    }
    case WeightFormat::kQ4_1:
      Store16(record + kNibbleScaleOffset + column * 2, Load16(block));
      Store16(record + kNibbleMinOffset + column * 2, Load16(block + 2));
      PackNibbles(block + 4, column, record);
      return true;
    case WeightFormat::kQ8_0:
      Store16(record + kByteScaleOffset + column * 2, Load16(block));
      PackBytes(block + 2, column, record);
      return true;
  }
  return false;
}

absl::Status CheckSplits(absl::Span<const int32_t> ends, int64_t k) {
  if (ends.size() > kMaxSplits) {
    return absl::InvalidArgumentError(
        absl::StrCat(ends.size(), " splits, at most ", kMaxSplits, " are possible"));
  }
  int64_t previous = 0;
  for (const int32_t end : ends) {
    if (end <= previous || end % kBlockK != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "split ends must be ascending multiples of 32, got ", end, " after ", previous));
    }
    previous = end;
  }
  if (previous != k) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last split ends at ", previous, ", the rows at ", k));
  }
  return absl::OkStatus();
}

}  // namespace

int Quant(PackedKind kind, const std::byte* record, int lane, int k) {
  if (kind == PackedKind::kNibbles) {
    const int lane16 = (lane / 16 * 4 + k / 8) * 32 + lane % 16 * 2 + k % 2;
    return Load16(record + lane16 * 2) >> (k % 8 / 2 * 4) & 0xF;
  }
  return static_cast<int8_t>(record[((lane / 16 * 16 + k / 2) * 16 + lane % 16) * 2 + k % 2]);
}

BlockScale Scale(PackedKind kind, const std::byte* record, int lane) {
  if (kind == PackedKind::kNibbles) {
    return {HalfToFloat(Load16(record + kNibbleScaleOffset + lane * 2)),
            HalfToFloat(Load16(record + kNibbleMinOffset + lane * 2))};
  }
  return {HalfToFloat(Load16(record + kByteScaleOffset + lane * 2)), 0.0f};
}

void UnpackBlock(PackedKind kind, const std::byte* record, int lane, float* out) {
  if (kind == PackedKind::kFloats) {
    for (int i = 0; i < kBlockK; ++i) {
      std::memcpy(&out[i], record + (i * kPanelColumns + lane) * sizeof(float), sizeof(float));
    }
    return;
  }
  if (kind == PackedKind::kBf16 || kind == PackedKind::kFp16) {
    for (int i = 0; i < kBlockK; ++i) {
      const uint16_t bits = Load16(record + (i * kPanelColumns + lane) * 2);
      out[i] = kind == PackedKind::kBf16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
    }
    return;
  }
  const BlockScale scale = Scale(kind, record, lane);
  for (int i = 0; i < kBlockK; ++i) {
    const float product = scale.d * static_cast<float>(Quant(kind, record, lane, i));  // exact
    out[i] = kind == PackedKind::kNibbles ? product + scale.m : product;
  }
}

int64_t RowBytes(WeightFormat format, int64_t k) {
  switch (format) {
    case WeightFormat::kF32:
      return k * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return k * 2;
    case WeightFormat::kQ4_0:
      return k / kBlockK * kQ4_0Bytes;
    case WeightFormat::kQ4_1:
      return k / kBlockK * kQ4_1Bytes;
    case WeightFormat::kQ8_0:
      return k / kBlockK * kQ8_0Bytes;
  }
  return 0;
}

void PackedMatrix::Free::operator()(std::byte* p) const { std::free(p); }

absl::StatusOr<PackedMatrix> PackedMatrix::Create(WeightFormat format, int64_t columns, int64_t k,
                                                  absl::Span<const int32_t> split_ends) {
  if (k <= 0 || k % kBlockK != 0 || k > kMaxDimension) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", k, " weights: not a positive multiple of 32 within limits"));
  }
  if (columns <= 0 || columns > kMaxDimension) {
    return absl::InvalidArgumentError(absl::StrCat("a matrix of ", columns, " columns"));
  }
  PackedMatrix matrix;
  matrix.split_ends_.assign(split_ends.begin(), split_ends.end());
  if (split_ends.empty()) matrix.split_ends_.push_back(static_cast<int32_t>(k));
  if (absl::Status status = CheckSplits(matrix.split_ends_, k); !status.ok()) return status;
  matrix.format_ = format;
  matrix.kind_ = KindOf(format);
  matrix.columns_ = columns;
  matrix.k_ = k;
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  if (__builtin_mul_overflow(panels * (k / kBlockK), RecordBytes(matrix.kind_), &matrix.bytes_) ||
      matrix.bytes_ > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a matrix of ", columns, " x ", k));
  }
  // Large matrices start on a huge page, so that the operating system can back them with
  // huge pages. A walk over a panel then costs few TLB misses.
  const bool huge = matrix.bytes_ >= kHugePageBytes;
  const int64_t alignment = huge ? kHugePageBytes : 64;
  const int64_t rounded = (matrix.bytes_ + alignment - 1) / alignment * alignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", rounded, " bytes of packed weights"));
  }
  matrix.data_.reset(data);
  if (huge) madvise(data, rounded, MADV_HUGEPAGE);  // advice: a refusal changes nothing
  // Panels beyond `columns` and columns never packed are zero weights.
  std::memset(data, 0, matrix.bytes_);
  return matrix;
}

absl::Status PackedMatrix::PackColumns(int64_t column, int64_t count,
                                       absl::Span<const std::byte> rows, int64_t row_stride_bytes) {
  const int64_t row_bytes = RowBytes(format_, k_);
  if (column < 0 || count < 0 || column > columns_ || count > columns_ - column) {
    return absl::InvalidArgumentError(
        absl::StrCat("columns ", column, " + ", count, " of a matrix of ", columns_));
  }
  if (count == 0) return absl::OkStatus();
  int64_t needed;
  if (row_stride_bytes < row_bytes ||
      __builtin_mul_overflow(count - 1, row_stride_bytes, &needed) ||
      __builtin_add_overflow(needed, row_bytes, &needed) ||
      static_cast<uint64_t>(needed) > rows.size()) {
    return absl::InvalidArgumentError(absl::StrCat(count, " rows of ", row_bytes, " bytes, ",
                                                   row_stride_bytes, " apart, do not fit into ",
                                                   rows.size(), " bytes"));
  }
  const int64_t blocks = k_ / kBlockK;
  const int64_t block_bytes = row_bytes / blocks;
  const int64_t record_bytes = RecordBytes(kind_);
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* source = rows.data() + i * row_stride_bytes;
    const int64_t panel = (column + i) / kPanelColumns;
    const int lane = static_cast<int>((column + i) % kPanelColumns);
    std::byte* record = data_.get() + panel * blocks * record_bytes;
    for (int64_t b = 0; b < blocks; ++b) {
      if (!PackBlock(format_, source, lane, record)) {
        return absl::InvalidArgumentError(
            absl::StrCat("scale of column ", column + i, " is out of range"));
      }
      source += block_bytes;
      record += record_bytes;
    }
  }
  return absl::OkStatus();
}

void PackedMatrix::DequantizeColumn(int64_t column, absl::Span<float> out) const {
  ABSL_ASSERT(column >= 0 && column < columns_ && static_cast<int64_t>(out.size()) >= k_);
  const MatrixView matrix = view();
  const int panel = static_cast<int>(column / kPanelColumns);
  const int lane = static_cast<int>(column % kPanelColumns);
  for (int b = 0; b < matrix.blocks(); ++b) {
    UnpackBlock(kind_, matrix.record(panel, b), lane, out.data() + b * kBlockK);
  }
}

MatrixView PackedMatrix::view() const {
  return {.kind = kind_,
          .columns = static_cast<int>(columns_),
          .k = static_cast<int>(k_),
          .split_count = static_cast<int>(split_ends_.size()),
          .split_ends = split_ends_.data(),
          .records = data_.get()};
}

}  // namespace flotilla::kernels
