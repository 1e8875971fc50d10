#include "tests/gpu_check/op_times.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/types/weight_panel.h"
#include "kernels/packed_matrix.h"
#include "tests/support/random.h"

namespace flotilla::kernels::cuda {
namespace {

// Llama 3 8B.
constexpr int kHidden = 4096, kFfn = 14336, kHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int kVocabulary = 128'256, kTopN = 64, kContext = 1024;
constexpr int kRows[] = {1, 16, 64, 512};
constexpr int kMostRows = 512;
constexpr int kAttentionSequences =
    64;  // of attention: later rows share the sequences of the first ones

constexpr WeightEncoding kQ4{.numbers = WeightEncoding::Numbers::kCodes, .low = -8, .high = 7};
constexpr WeightEncoding kQ8{.numbers = WeightEncoding::Numbers::kCodes, .low = -128, .high = 127};
constexpr WeightEncoding kBf16{.numbers = WeightEncoding::Numbers::kBf16};

// Memory on the GPU, filled with numbers that any op may read.
class Arrays {
 public:
  explicit Arrays(DeviceMemory& memory) : memory_(memory) {
    numbers_ = Upload(testing::Random(1).Floats(size_t{kMostRows} * kVocabulary));
    ends_ = Upload(std::vector<int32_t>{kHidden});
  }

  bool ok() const { return ok_; }
  std::string Error() { return memory_.Error(); }
  const float* numbers() const { return numbers_; }   // [kMostRows * kVocabulary] in [-1, 1)
  const int32_t* split_end() const { return ends_; }  // of one split of kHidden

  template <class T>
  T* Make(int64_t count) {
    auto* const made = static_cast<T*>(memory_.Allocate(count * sizeof(T)));
    ok_ &= made != nullptr;
    return made;
  }
  template <class T>
  T* Upload(const std::vector<T>& values) {
    T* const made = Make<T>(static_cast<int64_t>(values.size()));
    ok_ &= made != nullptr && memory_.Upload(made, values.data(), values.size() * sizeof(T)) == 0;
    return made;
  }
  // A matrix of kHidden inputs. Its panels are whatever the memory begins with.
  Matrix MakeMatrix(WeightKind kind, const WeightEncoding& encoding, int columns) {
    const auto panel = PackedMatrix::Create(encoding, kPanelColumns, kHidden);
    ok_ &= panel.ok();
    if (!panel.ok()) return {};
    const int64_t bytes = panel->view().panel_bytes;
    return {.kind = kind,
            .columns = columns,
            .k = kHidden,
            .split_count = 1,
            .split_ends = ends_,
            .panels = Make<std::byte>(bytes * columns / kPanelColumns),
            .panel_bytes = bytes};
  }

 private:
  DeviceMemory& memory_;
  bool ok_ = true;
  const float* numbers_ = nullptr;
  const int32_t* ends_ = nullptr;
};

int64_t BytesOf(const Matrix& matrix) {
  return matrix.panel_bytes * matrix.columns / kPanelColumns;
}

std::vector<int32_t> Ascending(int count, int step) {
  std::vector<int32_t> values(count);
  for (int i = 0; i < count; ++i) values[i] = i * step;
  return values;
}

// All measurements, one function for each group of ops.
class OpTimes {
 public:
  explicit OpTimes(Gpu& gpu)
      : gpu_(gpu),
        ops_(*gpu.target().ops),
        stream_(gpu.target().memory->stream()),
        copy_rate_(gpu.CopyRate()),
        arrays_(*gpu.target().memory) {}

  nlohmann::json Measure() {
    if (copy_rate_ < 0) return Failed();
    positions_ = arrays_.Upload(std::vector<int32_t>(kMostRows, kContext - 1));
    out_ = arrays_.Make<float>(int64_t{kMostRows} * kFfn);
    Rows();
    Products();
    Attention();
    Vocabulary();
    gpu_.target().memory->FreeAll();
    if (!arrays_.ok() || failed_) return Failed();
    return {{"copy, GB/s", Rounded(copy_rate_ / 1e9)}, {"times", times_}};
  }

 private:
  nlohmann::json Failed() { return {{"error", arrays_.Error()}, {"times", times_}}; }

  static double Rounded(double value) { return static_cast<int64_t>(value * 10 + 0.5) / 10.0; }

  // `bytes`: that the op has to read or write; 0: unknown.
  void Time(std::string_view op, const std::string& shape, int64_t bytes,
            const std::function<int()>& launch) {
    if (!arrays_.ok() || failed_) return;
    const double us = gpu_.Microseconds(launch);
    failed_ = us < 0;
    if (failed_) return;
    nlohmann::json row = {{"op", op}, {"shape", shape}, {"microseconds", Rounded(us)}};
    if (bytes > 0) {
      const double rate = static_cast<double>(bytes) / (us * 1e-6);
      row["GB/s"] = Rounded(rate / 1e9);
      row["of copy"] = static_cast<int64_t>(rate / copy_rate_ * 1000 + 0.5) / 1000.0;
    }
    times_.push_back(std::move(row));
  }

  void Rows() {
    const float* const x = arrays_.numbers();
    const float* const table = x;
    float* const y = arrays_.Make<float>(int64_t{kMostRows} * kFfn);
    for (const int rows : kRows) {
      const std::string shape = absl::StrCat(rows, " rows of ", kHidden);
      const int64_t floats = int64_t{rows} * kHidden * 4;
      const RmsNormArgs norm{.x = x,
                             .x_stride = kHidden,
                             .x_head_stride = kHidden,
                             .rows = rows,
                             .heads = 1,
                             .weight = x,
                             .n = kHidden,
                             .eps = 1e-5f,
                             .out = out_,
                             .out_stride = kHidden,
                             .out_head_stride = kHidden};
      Time("rms_norm", shape, 2 * floats, [&] { return ops_.rms_norm(norm, stream_); });
      const AddArgs add{
          .x = x, .x_stride = kHidden, .y = out_, .y_stride = kHidden, .n = kHidden, .rows = rows};
      Time("add", shape, 3 * floats, [&] { return ops_.add(add, stream_); });
      const RopeArgs rope{.x = out_,
                          .row_stride = kHidden,
                          .rows = rows,
                          .heads = kHeads,
                          .head_stride = kDim,
                          .dim = kDim,
                          .positions = positions_,
                          .table = table};
      Time("rope", absl::StrCat(rows, " rows of ", kHeads, " heads of ", kDim), 2 * floats,
           [&] { return ops_.rope(rope, stream_); });
      const ActivateArgs activate{.activation = Activation::kSilu,
                                  .gate = x,
                                  .up = x + kFfn,
                                  .in_stride = kFfn,
                                  .n = kFfn,
                                  .rows = rows,
                                  .out = y,
                                  .out_stride = kFfn};
      Time("activate", absl::StrCat(rows, " rows of ", kFfn, ", silu"), int64_t{rows} * kFfn * 12,
           [&] { return ops_.activate(activate, stream_); });
    }
  }

  void Products() {
    const QuantizedRows quantized{
        .values = arrays_.Make<int16_t>(int64_t{kMostRows} * kHidden),
        .group_sums = arrays_.Make<float>(int64_t{kMostRows} * kHidden / kSumSpan),
        .scales = arrays_.Make<float>(kMostRows)};
    for (const int rows : kRows) {
      const QuantizeArgs args{.x = arrays_.numbers(),
                              .x_stride = kHidden,
                              .k = kHidden,
                              .rows = rows,
                              .split_count = 1,
                              .split_ends = arrays_.split_end(),
                              .out = quantized};
      Time("quantize_rows", absl::StrCat(rows, " rows of ", kHidden), int64_t{rows} * kHidden * 6,
           [&] { return ops_.quantize_rows(args, stream_); });
    }
    const struct {
      Matrix weights;
      const char* name;
    } kinds[] = {{arrays_.MakeMatrix(WeightKind::kNibbles, kQ4, kFfn), "q4_0"},
                 {arrays_.MakeMatrix(WeightKind::kBytes, kQ8, kFfn), "q8_0"},
                 {arrays_.MakeMatrix(WeightKind::kBf16, kBf16, kFfn), "bf16"}};
    for (const auto& [weights, name] : kinds) {
      for (const int rows : kRows) {
        const std::string shape = absl::StrCat(rows, " rows, ", kHidden, " to ", kFfn, ", ", name);
        // A product of many rows is bound by arithmetic.
        const int64_t bytes =
            rows > 16 ? 0 : BytesOf(weights) + int64_t{rows} * (kHidden + kFfn) * 4;
        if (HasIntegerProduct(weights.kind)) {
          const MatMulI16Args args{
              .weights = weights, .x = quantized, .rows = rows, .out = out_, .out_stride = kFfn};
          Time("matmul_i16", shape, bytes, [&] { return ops_.matmul_i16(args, stream_); });
        } else {
          const MatMulF32Args args{.weights = weights,
                                   .x = arrays_.numbers(),
                                   .x_stride = kHidden,
                                   .rows = rows,
                                   .out = out_,
                                   .out_stride = kFfn};
          Time("matmul_f32", shape, bytes, [&] { return ops_.matmul_f32(args, stream_); });
        }
      }
    }
  }

  void Attention() {
    // The blocks of a sequence lie one after the other, which no kernel knows.
    constexpr int kBlocks = kContext / kKvRecordTokens, kSegments = SegmentsOf(kContext - 1);
    const int64_t record = KvRecordBytes(KvType::kBf16, kDim);
    std::vector<int64_t> begins(kAttentionSequences);
    for (int i = 0; i < kAttentionSequences; ++i) begins[i] = int64_t{i} * kBlocks;
    const KvView cache{
        .type = KvType::kBf16,
        .dim = kDim,
        .base = arrays_.Make<std::byte>(record * kKvHeads * kBlocks * kAttentionSequences),
        .block_stride = record * kKvHeads,
        .head_stride = record,
        .blocks = arrays_.Upload(Ascending(kBlocks * kAttentionSequences, 1)),
        .begins = arrays_.Upload(begins)};
    std::vector<int32_t> sequence_of(kMostRows);
    for (int i = 0; i < kMostRows; ++i) sequence_of[i] = i % kAttentionSequences;
    const int32_t* const sequences = arrays_.Upload(sequence_of);
    const int32_t* const first_segments = arrays_.Upload(Ascending(kMostRows + 1, kSegments));
    std::vector<int32_t> rows_of_segments(kMostRows * kSegments);
    for (int i = 0; i < kMostRows * kSegments; ++i) rows_of_segments[i] = i / kSegments;
    const int32_t* const segment_rows = arrays_.Upload(rows_of_segments);
    const int32_t* const head_places = arrays_.Upload(Ascending(kHeads, kDim));
    float* const scratch =
        arrays_.Make<float>(int64_t{kMostRows} * kSegments * kHeads * (kDim + 2));
    for (const int rows : kRows) {
      // Rows of one sequence would write to one place.
      if (rows <= kAttentionSequences) {
        const KvWriteArgs args{.cache = cache,
                               .rows = rows,
                               .heads = kKvHeads,
                               .sequences = sequences,
                               .positions = positions_,
                               .k = arrays_.numbers(),
                               .v = arrays_.numbers() + kDim * kKvHeads,
                               .row_stride = 2 * kDim * kKvHeads};
        Time("kv_write", absl::StrCat(rows, " rows of ", kKvHeads, " heads of ", kDim, ", bf16"),
             int64_t{rows} * kKvHeads * kDim * 2 * 6, [&] { return ops_.kv_write(args, stream_); });
      }
      const AttentionArgs args{.cache = cache,
                               .rows = rows,
                               .segments = rows * kSegments,
                               .kv_heads = kKvHeads,
                               .group = kHeads / kKvHeads,
                               .sequences = sequences,
                               .positions = positions_,
                               .first_segments = first_segments,
                               .segment_rows = segment_rows,
                               .q = arrays_.numbers(),
                               .q_stride = kHidden,
                               .scale = 0.088388346f,  // 1 / sqrt(kDim)
                               .scratch = scratch,
                               .head_places = head_places,
                               .out_dim = kDim,
                               .out = out_,
                               .out_stride = kHidden};
      Time("paged_attention",
           absl::StrCat(rows, " rows of ", std::min(rows, kAttentionSequences), " sequences, ",
                        kContext, " tokens each, bf16"),
           rows > kAttentionSequences ? 0 : record * kKvHeads * kBlocks * rows,
           [&] { return ops_.paged_attention(args, stream_); });
    }
  }

  void Vocabulary() {
    TokenScore* const scores = arrays_.Make<TokenScore>(int64_t{kMostRows} * kTopN);
    SoftmaxStats* const stats = arrays_.Make<SoftmaxStats>(kMostRows);
    const int32_t* const tokens = arrays_.Upload(Ascending(kMostRows, 100));
    float* const logits = arrays_.Make<float>(kMostRows);
    const Gumbel* const draws = arrays_.Upload(std::vector<Gumbel>(
        kMostRows, {.inverse_temperature = 1, .key = {1, 2}, .cutoff = {.token = 0, .score = -2}}));
    for (const int rows : kRows) {
      const LogitRows in{
          .logits = arrays_.numbers(), .stride = kVocabulary, .n = kVocabulary, .rows = rows};
      const std::string shape = absl::StrCat(rows, " rows of ", kVocabulary);
      const int64_t bytes = int64_t{rows} * kVocabulary * 4;
      Time("argmax", shape, bytes, [&] { return ops_.argmax({.in = in, .out = scores}, stream_); });
      Time("top_n", absl::StrCat(shape, ", ", kTopN, " of each"), bytes,
           [&] { return ops_.top_n({.in = in, .count = kTopN, .out = scores}, stream_); });
      Time("gumbel_argmax", shape, bytes,
           [&] { return ops_.gumbel_argmax({.in = in, .draws = draws, .out = scores}, stream_); });
      Time("softmax_stats", shape, bytes,
           [&] { return ops_.softmax_stats({.in = in, .out = stats}, stream_); });
      Time("logits_of", shape, 0,
           [&] { return ops_.logits_of({.in = in, .tokens = tokens, .out = logits}, stream_); });
    }
  }

  Gpu& gpu_;
  const Ops& ops_;
  Stream stream_;
  double copy_rate_;
  Arrays arrays_;
  const int32_t* positions_ = nullptr;
  float* out_ = nullptr;
  bool failed_ = false;
  nlohmann::json times_ = nlohmann::json::array();
};

}  // namespace

nlohmann::json MeasureOps(Gpu& gpu) { return OpTimes(gpu).Measure(); }

}  // namespace flotilla::kernels::cuda
