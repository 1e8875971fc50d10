#include "kernels/packed_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/base/macros.h"
#include "absl/strings/str_cat.h"
#include "kernels/packing/kinds.h"

namespace flotilla::kernels {
namespace {

// This limit is far above any model. It keeps every product of dimensions within 64 bits.
constexpr int64_t kMaxDimension = int64_t{1} << 28;
constexpr int64_t kMaxBytes = int64_t{1} << 40;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

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

// Returns the position of the first kind that packs the encoding; -1 if none does.
template <class... All>
int FindKind(const WeightEncoding& encoding, KindList<All...>) {
  int found = 0;
  return ((All::Packs(encoding) || (++found, false)) || ...) ? found : -1;
}

// For each block the number of its window, of `span` elements of the file's rows, among those that
// the blocks have.
absl::StatusOr<std::vector<int32_t>> NumberWindows(absl::Span<const int32_t> file_blocks,
                                                   int64_t blocks, int64_t span) {
  if (!file_blocks.empty() && static_cast<int64_t>(file_blocks.size()) != blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_blocks.size(), " numbers of ", blocks, " blocks"));
  }
  std::vector<int32_t> numbers(blocks);
  std::unordered_map<int64_t, int32_t> known;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t window =
        (file_blocks.empty() ? block : int64_t{file_blocks[block]}) * kBlockK / span;
    numbers[block] = known.try_emplace(window, static_cast<int32_t>(known.size())).first->second;
  }
  return numbers;
}

}  // namespace

absl::StatusOr<PackedKind> KindFor(const WeightEncoding& encoding) {
  const int kind = FindKind(encoding, Kinds{});
  if (kind < 0) return absl::InvalidArgumentError("no packed kind has weights of this encoding");
  return static_cast<PackedKind>(kind);
}

absl::StatusOr<double> PackedBits(const WeightEncoding& encoding, int64_t k) {
  const absl::StatusOr<PackedKind> kind = KindFor(encoding);
  if (!kind.ok()) return kind.status();
  double bits = 0;
  VisitKind(*kind, [&]<class Kind>() {
    const double supers = kHasTableOf<Kind> ? (1.0 + encoding.groups) / static_cast<double>(k)
                                            : 1.0 / kSuperSpanOf<Kind>;
    const int begins = kHasOutliersOf<Kind> ? 2 * static_cast<int>(sizeof(uint32_t)) : 0;
    bits = 8.0 * (Kind::kRecordBytes + begins) / (kPanelColumns * kBlockK) +
           8.0 * kSuperBytesOf<Kind> / kPanelColumns * supers;
  });
  return bits;
}

bool HasIntegerProduct(PackedKind kind) {
  bool has = false;
  VisitKind(kind, [&]<class Kind>() { has = Kind::kHasIntegerProduct; });
  return has;
}

bool HasInt8Product(PackedKind kind) {
  bool has = false;
  VisitKind(kind, [&]<class Kind>() { has = kHasInt8ProductOf<Kind>; });
  return has;
}

void PackedMatrix::Free::operator()(std::byte* p) const { std::free(p); }

absl::StatusOr<PackedMatrix> PackedMatrix::Create(const WeightEncoding& encoding, int64_t columns,
                                                  int64_t k, absl::Span<const int32_t> split_ends,
                                                  absl::Span<const int32_t> file_blocks) {
  if (k <= 0 || k % kBlockK != 0 || k > kMaxDimension) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", k, " weights: not a positive multiple of 32 within limits"));
  }
  if (columns <= 0 || columns > kMaxDimension) {
    return absl::InvalidArgumentError(absl::StrCat("a matrix of ", columns, " columns"));
  }
  const absl::StatusOr<PackedKind> kind = KindFor(encoding);
  if (!kind.ok()) return kind.status();
  if (HasInt8Product(*kind) && k > MostInt8Inputs(encoding)) {
    return absl::InvalidArgumentError(absl::StrCat("rows of ", k, " weights of 8 bits: at most ",
                                                   MostInt8Inputs(encoding), " are possible"));
  }
  PackedMatrix matrix;
  matrix.split_ends_.assign(split_ends.begin(), split_ends.end());
  if (split_ends.empty()) matrix.split_ends_.push_back(static_cast<int32_t>(k));
  if (absl::Status status = CheckSplits(matrix.split_ends_, k); !status.ok()) return status;
  matrix.encoding_ = encoding;
  matrix.kind_ = *kind;
  int span = 0;
  bool has_outliers = false;
  VisitKind(*kind, [&]<class Kind>() {
    has_outliers = kHasOutliersOf<Kind>;
    matrix.record_bytes_ = Kind::kRecordBytes;
    matrix.super_bytes_ = kSuperBytesOf<Kind>;
    if (!kHasTableOf<Kind>) span = kSuperSpanOf<Kind>;
  });
  if (matrix.super_bytes_ > 0 && span == 0) {
    matrix.block_supers_.resize(k / kBlockK);
    matrix.first_record_ = (int64_t{1} + encoding.groups) * matrix.super_bytes_;
  } else if (matrix.super_bytes_ > 0) {
    auto numbers = NumberWindows(file_blocks, k / kBlockK, span);
    if (!numbers.ok()) return numbers.status();
    matrix.block_supers_ = *std::move(numbers);
    matrix.first_record_ =
        (1 + *std::max_element(matrix.block_supers_.begin(), matrix.block_supers_.end())) *
        matrix.super_bytes_;
  }
  matrix.panel_bytes_ = matrix.first_record_ + k / kBlockK * matrix.record_bytes_;
  matrix.columns_ = columns;
  matrix.k_ = k;
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  if (__builtin_mul_overflow(panels, matrix.panel_bytes_, &matrix.bytes_) ||
      matrix.bytes_ > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a matrix of ", columns, " x ", k));
  }
  if (has_outliers) {
    matrix.panel_words_.resize(panels);
    for (PanelWords& words : matrix.panel_words_) {
      words.begins.resize(2 * (k / kBlockK) + 1);
      matrix.outliers_.push_back({.begins = words.begins.data()});
    }
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
  if (huge) {
    // This is advice: a refusal changes nothing. The end of the matrix has small pages, because a
    // huge one would take memory that the matrix does not need.
    const int64_t whole = matrix.bytes_ / kHugePageBytes * kHugePageBytes;
    madvise(data, whole, MADV_HUGEPAGE);
    if (rounded > whole) madvise(data + whole, rounded - whole, MADV_NOHUGEPAGE);
  }
  // Panels beyond `columns` and columns never packed are zero weights.
  std::memset(data, 0, matrix.bytes_);
  return matrix;
}

absl::Status PackedMatrix::PackPanel(const WeightPanel& panel, int64_t column, int64_t k) {
  const int count = panel.end - panel.begin;
  if (panel.encoding != encoding_ || panel.outputs < 1 || panel.outputs > kPanelOutputs ||
      panel.begin < 0 || count <= 0 || panel.end > kPanelWindow || panel.begin % kBlockK != 0 ||
      count % kBlockK != 0) {
    return absl::InvalidArgumentError("a malformed panel, or one of another matrix");
  }
  if (column < 0 || column > columns_ - panel.outputs || k < 0 || k > k_ - count ||
      k % kBlockK != 0) {
    return absl::InvalidArgumentError(absl::StrCat("columns ", column, " + ", panel.outputs,
                                                   ", elements ", k, " + ", count,
                                                   " of a matrix of ", columns_, " x ", k_));
  }
  const MatrixView matrix = view();
  absl::Status status;
  if (encoding_.has_outliers) PackOutliers(panel, column, k);
  VisitKind(kind_, [&]<class Kind>() {
    for (int i = 0; i < panel.outputs; ++i) {
      const int in_panel = static_cast<int>((column + i) / kPanelColumns);
      const int lane = static_cast<int>((column + i) % kPanelColumns);
      for (int at = panel.begin; at < panel.end; at += kBlockK) {
        const int block = static_cast<int>((k + at - panel.begin) / kBlockK);
        auto* const record = const_cast<std::byte*>(matrix.record(in_panel, block));
        bool packed;
        if constexpr (kHasSuper<Kind>) {
          auto* const super = const_cast<std::byte*>(matrix.super(in_panel, block));
          packed = Kind::Pack(encoding_, panel.rows[i], at, lane, record, super);
        } else {
          packed = Kind::Pack(encoding_, panel.rows[i], at, lane, record);
        }
        if (!packed) {
          status = absl::InvalidArgumentError(
              absl::StrCat("scale or zero of column ", column + i, " is out of range"));
          return;
        }
      }
    }
  });
  return status;
}

void PackedMatrix::PackOutliers(const WeightPanel& panel, int64_t column, int64_t k) {
  // A word with the number of its half of a block, for each panel.
  using Place = std::pair<size_t, uint32_t>;
  std::map<int64_t, std::vector<Place>> added;
  for (int i = 0; i < panel.outputs; ++i) {
    const auto lane = static_cast<uint32_t>((column + i) % kPanelColumns);
    for (int at = panel.begin; at < panel.end; ++at) {
      const uint16_t value = panel.rows[i].outliers[at];
      if ((value & 0x7FFF) == 0) continue;
      const auto place = static_cast<uint32_t>(k + at - panel.begin);
      added[(column + i) / kPanelColumns].emplace_back(
          place / kBlockK * 2 + lane / 16,
          uint32_t{value} << 16 | place % kBlockK * kPanelColumns | lane);
    }
  }
  const auto before = [](uint32_t a, uint32_t b) { return (a & 0xFFFF) < (b & 0xFFFF); };
  for (auto& [number, places] : added) {
    std::ranges::sort(places, {}, &Place::first);
    PanelWords& kept = panel_words_[number];
    std::vector<uint32_t> words;
    words.reserve(kept.words.size() + places.size());
    auto next = places.begin();
    uint32_t begin = 0;
    for (size_t half = 0; half + 1 < kept.begins.size(); ++half) {
      const uint32_t end = kept.begins[half + 1];
      const size_t first = words.size();
      words.insert(words.end(), kept.words.begin() + begin, kept.words.begin() + end);
      for (; next != places.end() && next->first == half; ++next) words.push_back(next->second);
      std::sort(words.begin() + static_cast<int64_t>(first), words.end(), before);
      kept.begins[half + 1] = static_cast<uint32_t>(words.size());
      begin = end;
    }
    kept.words = std::move(words);
    outliers_[number].words = kept.words.data();
  }
}

int64_t PackedMatrix::bytes() const {
  int64_t bytes = bytes_;
  for (const PanelWords& words : panel_words_) {
    bytes += static_cast<int64_t>((words.begins.size() + words.words.size()) * sizeof(uint32_t));
  }
  return bytes;
}

void PackedMatrix::DequantizeColumn(int64_t column, absl::Span<float> out) const {
  ABSL_ASSERT(column >= 0 && column < columns_ && static_cast<int64_t>(out.size()) >= k_);
  const MatrixView matrix = view();
  const int panel = static_cast<int>(column / kPanelColumns);
  const int lane = static_cast<int>(column % kPanelColumns);
  VisitKind(kind_, [&]<class Kind>() {
    for (int b = 0; b < matrix.blocks(); ++b) {
      float* const weights = out.data() + b * kBlockK;
      Kind::Decode(RecordOf<Kind>(matrix, panel, b), lane, weights);
      if constexpr (kHasOutliersOf<Kind>) {
        matrix.ForEachOutlier(panel, b, lane / 16, 1, [&](uint32_t word) {
          if (OutlierColumn(word) != lane) return;
          weights[OutlierK(word)] += HalfToFloat(OutlierValue(word));
        });
      }
    }
  });
}

MatrixView PackedMatrix::view() const {
  return {.kind = kind_,
          .columns = static_cast<int>(columns_),
          .k = static_cast<int>(k_),
          .split_count = static_cast<int>(split_ends_.size()),
          .split_ends = split_ends_.data(),
          .panels_begin = data_.get(),
          .panel_bytes = panel_bytes_,
          .record_bytes = record_bytes_,
          .super_bytes = super_bytes_,
          .first_record = first_record_,
          .block_supers = block_supers_.empty() ? nullptr : block_supers_.data(),
          .activations = encoding_.activations,
          .outliers = outliers_.empty() ? nullptr : outliers_.data()};
}

}  // namespace flotilla::kernels
