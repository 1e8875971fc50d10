#include "tests/kernels/cuda/op_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/types/text.h"
#include "kernels/cuda/weight_kind.h"
#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "tests/support/random.h"

namespace flotilla::kernels::cuda {
namespace {

using testing::Random;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const kernels::Ops& Reference() { return GetOps(Isa::kReference); }

// Whether two values have the same bits; of a NaN the payload does not count.
template <typename T>
bool SameBits(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(a) && std::isnan(b)) return true;
  }
  if constexpr (std::is_same_v<T, TokenScore>) {
    return a.token == b.token && SameBits(a.score, b.score);
  }
  if constexpr (std::is_same_v<T, SoftmaxStats>) {
    return SameBits(a.max, b.max) && SameBits(a.sum, b.sum);
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
std::string Text(const T& value) {
  if constexpr (std::is_same_v<T, TokenScore>) {
    return Cat("(", value.token, ", ", Text(value.score), ")");
  } else if constexpr (std::is_same_v<T, SoftmaxStats>) {
    return Cat("(", Text(value.max), ", ", Text(value.sum), ")");
  } else if constexpr (std::is_same_v<T, float>) {
    return absl::StrFormat("%.9g (%08x)", value, FloatBits(value));
  } else if constexpr (std::is_same_v<T, std::byte>) {
    return Cat(std::to_integer<int>(value));
  } else {
    return Cat(value);
  }
}

// One case: its chance, the memory of the device, and the first thing that went wrong.
class Case {
 public:
  Case(uint64_t seed, bool is_small, const Ops& device_ops, DeviceMemory& device_memory)
      : random(seed), small(is_small), ops(device_ops), memory_(device_memory) {}
  ~Case() { memory_.FreeAll(); }

  template <typename T>
  T* Room(size_t count) {
    auto* const room = static_cast<T*>(memory_.Allocate(std::max<size_t>(count, 1) * sizeof(T)));
    if (room == nullptr) Fail(Cat("no memory for ", count * sizeof(T), " bytes"));
    return room;
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    T* const room = Room<T>(values.size());
    if (room != nullptr) Check(memory_.Upload(room, values.data(), values.size() * sizeof(T)));
    return room;
  }
  Stream stream() { return memory_.stream(); }
  // 0 or an error of the device.
  void Check(int status) {
    if (status != 0) Fail(Cat("error ", status, ": ", memory_.Error()));
  }
  bool ok() const { return difference_.empty(); }

  // Compares all numbers of the device's memory.
  template <typename T>
  void Compare(const std::vector<T>& expected, const T* actual) {
    if (!ok()) return;
    std::vector<T> got(expected.size());
    Check(memory_.Download(got.data(), actual, got.size() * sizeof(T)));
    for (size_t i = 0; ok() && i < got.size(); ++i) {
      if (SameBits(expected[i], got[i])) continue;
      Fail(Cat("element ", i, " of ", got.size(), ": expected ", Text(expected[i]), ", got ",
               Text(got[i])));
    }
  }

  // The shape as the result says it.
  template <typename... Parts>
  void Shape(const Parts&... parts) {
    shape_ = Cat(parts...);
  }
  OpResult result() const { return {ok(), shape_, difference_}; }

  // ---- Shapes and numbers.

  // Of one step: often few, sometimes more than a tile of any kernel.
  int Rows(int most) {
    static constexpr int kRows[] = {1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 513};
    return std::min(most, kRows[random.Int(0, 15)]);
  }
  // [rows, n] numbers within +-scale, in rows of `stride`; what lies between rows is NaN.
  std::vector<float> Matrix(int rows, int n, int64_t stride, float scale = 2) {
    std::vector<float> values(static_cast<size_t>(rows) * stride, kNan);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < n; ++i) values[row * stride + i] = random.Unit() * scale;
    }
    return values;
  }
  // Makes single numbers those that rounding and comparing treat in ways of their own.
  void AddExtremes(std::vector<float>& values, bool finite) {
    static constexpr float kExtremes[] = {
        0.0f, -0.0f, 1e-42f, -1e-38f, 1e30f, -3e38f, std::numeric_limits<float>::infinity(), kNan};
    for (int i = random.Int(0, 3); i > 0; --i) {
      values[random.Below(static_cast<uint32_t>(values.size()))] =
          kExtremes[random.Int(0, finite ? 3 : 7)];
    }
  }
  std::vector<int32_t> Splits(int k, int count) {
    const int blocks = k / kBlockK;
    count = std::min(count, blocks);
    std::vector<int32_t> ends;
    for (int i = 1; i < count; ++i) {
      const int previous = ends.empty() ? 0 : ends.back() / kBlockK;
      ends.push_back(random.Int(previous + 1, blocks - (count - i)) * kBlockK);
    }
    ends.push_back(k);
    return ends;
  }
  static std::string SplitsText(const std::vector<int32_t>& ends) {
    bool even = true;
    for (size_t i = 1; i < ends.size(); ++i) even &= ends[i] - ends[i - 1] == ends[0];
    return Cat(" splits ", ends.size(), even ? "" : " uneven");
  }

  Random random;
  const bool small;
  const Ops& ops;

 private:
  void Fail(std::string what) {
    if (difference_.empty()) difference_ = std::move(what);
  }

  DeviceMemory& memory_;
  std::string shape_;
  std::string difference_;
};

// ---- Weights.

uint16_t RandomHalf(Random& random) {  // 2^-10 to 2^-1, of either sign
  return static_cast<uint16_t>(random.Int(0, 1) << 15 | random.Int(5, 13) << 10 |
                               random.Int(0, 1023));
}

struct Format {
  std::string_view name;
  WeightEncoding encoding;
};

constexpr auto kCodes = WeightEncoding::Numbers::kCodes;
constexpr Format kFormats[] = {
    {"q4_0", {.numbers = kCodes, .low = -8, .high = 7}},
    {"q4_1", {.numbers = kCodes, .low = 0, .high = 15, .has_minimums = true}},
    {"q8_0", {.numbers = kCodes, .low = -128, .high = 127}},
    {"f32", {.numbers = WeightEncoding::Numbers::kFp32}},
    {"f16", {.numbers = WeightEncoding::Numbers::kFp16}},
    {"bf16", {.numbers = WeightEncoding::Numbers::kBf16}},
};

void Fill(Random& random, const WeightEncoding& encoding, WeightRow& row) {
  const auto put = [&](int i, auto number) {
    std::memcpy(row.numbers + i * sizeof number, &number, sizeof number);
  };
  for (int i = 0; i < kPanelWindow; ++i) {
    switch (encoding.numbers) {
      case WeightEncoding::Numbers::kFp32:
        put(i, random.Unit());
        break;
      case WeightEncoding::Numbers::kFp16:
        put(i, RandomHalf(random));
        break;
      case WeightEncoding::Numbers::kBf16:
        put(i, FloatToBf16(random.Unit()));
        break;
      case WeightEncoding::Numbers::kCodes:
        row.codes[i] = static_cast<int8_t>(random.Int(encoding.low, encoding.high));
        break;
    }
  }
  for (uint16_t& scale : row.scales) scale = RandomHalf(random);
  for (uint16_t& minimum : row.minimums) minimum = RandomHalf(random);
}

// A random matrix on the host and on the device.
struct TwoMatrices {
  TwoMatrices(Case& c, const Format& format, int columns, int k, const std::vector<int32_t>& splits)
      : host(*PackedMatrix::Create(format.encoding, columns, k, splits)) {
    auto panel = std::make_unique<WeightPanel>();
    panel->encoding = format.encoding;
    panel->begin = 0;
    for (int first = 0; first < columns; first += kPanelOutputs) {
      panel->outputs = std::min(kPanelOutputs, columns - first);
      for (int at = 0; at < k; at += kPanelWindow) {
        panel->end = std::min(kPanelWindow, k - at);
        for (int i = 0; i < panel->outputs; ++i) Fill(c.random, format.encoding, panel->rows[i]);
        if (!host.PackPanel(*panel, first, at).ok()) std::abort();
      }
    }
    const MatrixView view = host.view();
    std::vector<std::byte> panels(static_cast<size_t>(view.panels()) * view.panel_bytes);
    std::memcpy(panels.data(), view.panels_begin, panels.size());
    device = {.kind = *WeightKindOf(view.kind),
              .columns = columns,
              .k = k,
              .split_count = view.split_count,
              .split_ends = c.Put(std::vector<int32_t>(splits)),
              .panels = c.Put(panels),
              .panel_bytes = view.panel_bytes};
  }

  PackedMatrix host;
  Matrix device;
};

// ---- The ops.

void RunRmsNorm(Case& c) {
  const bool of_heads = c.random.OneIn(2);
  const int heads = of_heads ? c.random.Int(1, 9) : 1;
  const int n = of_heads ? c.random.Int(1, 16) * 16 : c.random.Int(1, c.small ? 700 : 8192);
  const int head_stride = n + c.random.Int(0, 3);
  const int rows = c.Rows(513), stride = heads * head_stride + c.random.Int(0, 7);
  const bool in_place = c.random.OneIn(2), chosen = !in_place && c.random.OneIn(2);
  c.Shape("rows ", rows, " heads ", heads, " n ", n, in_place ? " in place" : "",
          chosen ? " chosen rows" : "");
  std::vector<int32_t> x_rows(rows);
  for (int row = 0; row < rows; ++row) x_rows[row] = chosen ? c.random.Int(0, rows - 1) : row;
  std::vector<float> x = c.Matrix(rows, stride, stride, 3);
  c.AddExtremes(x, /*finite=*/false);
  const std::vector<float> weight = c.random.Floats(n, 2);
  std::vector<float> expected = in_place ? x : c.Matrix(rows, 0, stride);
  float* const device_x = c.Put(x);
  float* const out = in_place ? device_x : c.Put(expected);
  const float eps = c.random.OneIn(2) ? 1e-5f : 1e-6f;
  for (int i = 0; i < rows * heads; ++i) {
    const int row = i / heads, at = i % heads * head_stride;
    Reference().rms_norm({.x = x.data() + x_rows[row] * stride + at,
                          .x_stride = stride,
                          .weight = weight.data(),
                          .n = n,
                          .eps = eps,
                          .out = expected.data() + row * stride + at,
                          .out_stride = stride},
                         0, 1);
  }
  c.Check(c.ops.rms_norm({.x = device_x,
                          .x_stride = stride,
                          .x_head_stride = head_stride,
                          .x_rows = chosen ? c.Put(x_rows) : nullptr,
                          .rows = rows,
                          .heads = heads,
                          .weight = c.Put(weight),
                          .n = n,
                          .eps = eps,
                          .out = out,
                          .out_stride = stride,
                          .out_head_stride = head_stride},
                         c.stream()));
  c.Compare(expected, out);
}

// Rows of 16 bits on the host, and where the device has room for the same.
struct TwoQuantized {
  TwoQuantized(Case& c, int rows, int k, int splits)
      : values(static_cast<size_t>(rows) * k),
        sums(static_cast<size_t>(rows) * (k / kSumSpan)),
        scales(static_cast<size_t>(rows) * splits),
        device{c.Room<int16_t>(values.size()), c.Room<float>(sums.size()),
               c.Room<float>(scales.size())} {}

  kernels::QuantizedRows view() { return {values.data(), sums.data(), scales.data()}; }

  std::vector<int16_t> values;
  std::vector<float> sums, scales;
  QuantizedRows device;
};

void RunQuantizeRows(Case& c) {
  const int rows = c.Rows(513);
  const int k = c.random.Int(1, !c.small ? 448 : rows > 100 ? 6 : 24) * kBlockK;
  const std::vector<int32_t> splits = c.Splits(k, c.random.OneIn(2) ? 1 : c.random.Int(2, 12));
  const int stride = k + c.random.Int(0, 5);
  const auto count = static_cast<int>(splits.size());
  c.Shape("rows ", rows, " k ", k, c.SplitsText(splits));
  std::vector<float> x = c.Matrix(rows, k, stride, c.random.OneIn(4) ? 1e-31f : 5);
  c.AddExtremes(x, /*finite=*/false);
  TwoQuantized out(c, rows, k, count);
  Reference().quantize_rows({.x = x.data(),
                             .x_stride = stride,
                             .k = k,
                             .split_count = count,
                             .split_ends = splits.data(),
                             .out = out.view()},
                            0, rows);
  c.Check(c.ops.quantize_rows({.x = c.Put(x),
                               .x_stride = stride,
                               .k = k,
                               .rows = rows,
                               .split_count = count,
                               .split_ends = c.Put(splits),
                               .out = out.device},
                              c.stream()));
  c.Compare(out.values, out.device.values);
  c.Compare(out.sums, out.device.group_sums);
  c.Compare(out.scales, out.device.scales);
}

// What the two products share: shapes whose work the simulation bears.
struct Product {
  Product(Case& c, int formats)
      : format(kFormats[c.random.Int(0, formats - 1)]),
        rows(c.Rows(513)),
        k(c.random.OneIn(8) ? kBlockK : c.random.Int(1, c.small ? 40 : 200) * kBlockK),
        columns(c.random.Int(1, c.small ? 70 : 700)) {
    if (c.small && rows > 100) {
      k = std::min(k, 2 * kBlockK);
      columns = std::min(columns, 40);
    }
    if (c.random.OneIn(16)) {  // as many splits as there may be
      rows = std::min(rows, 33);
      columns = std::min(columns, 40);
      k = (kMaxSplits + c.random.Int(0, 9)) * kBlockK;
      splits = c.Splits(k, kMaxSplits - c.random.Int(0, 1));
    } else {
      splits = c.Splits(k, c.random.OneIn(2) ? 1 : c.random.Int(2, c.random.OneIn(4) ? 40 : 9));
    }
    stride = columns + c.random.Int(0, 5);
    accumulate = c.random.OneIn(2);
    out = accumulate ? c.Matrix(rows, columns, stride, 9) : c.Matrix(rows, 0, stride);
    c.Shape(format.name, " rows ", rows, " columns ", columns, " k ", k, c.SplitsText(splits),
            accumulate ? " accumulate" : "");
  }

  const Format& format;
  int rows, k, columns, stride = 0;
  std::vector<int32_t> splits;
  bool accumulate = false;
  std::vector<float> out;
};

void RunMatMulI16(Case& c) {
  Product p(c, 3);
  TwoMatrices weights(c, p.format, p.columns, p.k, p.splits);
  std::vector<float> x = c.random.Floats(static_cast<size_t>(p.rows) * p.k, 3);
  c.AddExtremes(x, /*finite=*/false);
  TwoQuantized quantized(c, p.rows, p.k, static_cast<int>(p.splits.size()));
  Reference().quantize_rows({.x = x.data(),
                             .x_stride = p.k,
                             .k = p.k,
                             .split_count = static_cast<int>(p.splits.size()),
                             .split_ends = p.splits.data(),
                             .out = quantized.view()},
                            0, p.rows);
  // Activations at the ends of their range, so that both bytes are.
  for (int i = c.random.Int(0, 40); i > 0; --i) {
    quantized.values[c.random.Below(static_cast<uint32_t>(quantized.values.size()))] =
        static_cast<int16_t>(c.random.OneIn(2) ? 32767 : -32767);
  }
  float* const out = c.Put(p.out);
  Reference().matmul_i16({.weights = weights.host.view(),
                          .x = quantized.view(),
                          .rows = p.rows,
                          .out = p.out.data(),
                          .out_stride = p.stride,
                          .accumulate = p.accumulate},
                         0, weights.host.view().panels());
  c.Check(c.ops.matmul_i16(
      {.weights = weights.device,
       .x = {c.Put(quantized.values), c.Put(quantized.sums), c.Put(quantized.scales)},
       .rows = p.rows,
       .out = out,
       .out_stride = p.stride,
       .accumulate = p.accumulate},
      c.stream()));
  c.Compare(p.out, out);
}

void RunMatMulF32(Case& c) {
  Product p(c, 6);
  TwoMatrices weights(c, p.format, p.columns, p.k, p.splits);
  const int x_stride = p.k + c.random.Int(0, 5);
  std::vector<float> x = c.Matrix(p.rows, p.k, x_stride, 3);
  c.AddExtremes(x, /*finite=*/false);
  float* const out = c.Put(p.out);
  Reference().matmul_f32({.weights = weights.host.view(),
                          .x = x.data(),
                          .x_stride = x_stride,
                          .rows = p.rows,
                          .out = p.out.data(),
                          .out_stride = p.stride,
                          .accumulate = p.accumulate},
                         0, weights.host.view().panels());
  c.Check(c.ops.matmul_f32({.weights = weights.device,
                            .x = c.Put(x),
                            .x_stride = x_stride,
                            .rows = p.rows,
                            .out = out,
                            .out_stride = p.stride,
                            .accumulate = p.accumulate},
                           c.stream()));
  c.Compare(p.out, out);
}

void RunRope(Case& c) {
  const int dim = c.random.Int(1, 16) * 16, head_stride = dim + c.random.Int(0, 2) * 16;
  const int heads = c.random.Int(1, 9), rows = c.Rows(513), positions = c.random.Int(1, 300);
  const int stride = heads * head_stride + c.random.Int(0, 5);
  c.Shape("rows ", rows, " heads ", heads, " dim ", dim);
  std::vector<float> x = c.Matrix(rows, stride, stride);
  c.AddExtremes(x, /*finite=*/false);
  const std::vector<float> table = c.random.Floats(static_cast<size_t>(positions) * dim);
  std::vector<int32_t> at(rows);
  for (int32_t& position : at) position = c.random.Int(0, positions - 1);
  float* const device_x = c.Put(x);
  Reference().rope({.x = x.data(),
                    .token_stride = stride,
                    .heads = heads,
                    .head_stride = head_stride,
                    .dim = dim,
                    .positions = at.data(),
                    .table = table.data()},
                   0, rows);
  c.Check(c.ops.rope({.x = device_x,
                      .row_stride = stride,
                      .rows = rows,
                      .heads = heads,
                      .head_stride = head_stride,
                      .dim = dim,
                      .positions = c.Put(at),
                      .table = c.Put(table)},
                     c.stream()));
  c.Compare(x, device_x);
}

void RunActivate(Case& c) {
  const auto activation = static_cast<Activation>(c.random.Int(0, 4));
  const bool gated = activation == Activation::kClippedSwiglu || c.random.OneIn(2);
  const int rows = c.Rows(513);
  const int n = c.random.Int(1, !c.small ? 15'000 : rows > 100 ? 300 : 600);
  const int in_stride = n + c.random.Int(0, 5), out_stride = n + c.random.Int(0, 5);
  c.Shape("activation ", static_cast<int>(activation), gated ? " gated" : "", " rows ", rows, " n ",
          n);
  std::vector<float> gate = c.Matrix(rows, n, in_stride, c.random.OneIn(2) ? 5 : 100);
  c.AddExtremes(gate, /*finite=*/false);
  const std::vector<float> up = c.Matrix(rows, n, in_stride, 9);
  std::vector<float> expected = c.Matrix(rows, 0, out_stride);
  float* const out = c.Put(expected);
  Reference().activate({.activation = activation,
                        .gate = gate.data(),
                        .up = gated ? up.data() : nullptr,
                        .in_stride = in_stride,
                        .n = n,
                        .out = expected.data(),
                        .out_stride = out_stride},
                       0, rows);
  c.Check(c.ops.activate({.activation = activation,
                          .gate = c.Put(gate),
                          .up = gated ? c.Put(up) : nullptr,
                          .in_stride = in_stride,
                          .n = n,
                          .rows = rows,
                          .out = out,
                          .out_stride = out_stride},
                         c.stream()));
  c.Compare(expected, out);
}

void RunAdd(Case& c) {
  const int rows = c.Rows(513);
  const int n = c.random.Int(1, !c.small ? 9'000 : rows > 100 ? 300 : 600);
  const int x_stride = c.random.OneIn(2) ? 0 : n + c.random.Int(0, 5);
  const int y_stride = n + c.random.Int(0, 5);
  c.Shape("rows ", rows, " n ", n, x_stride == 0 ? ", one row for all" : "");
  std::vector<float> x = c.Matrix(x_stride == 0 ? 1 : rows, n, std::max(x_stride, n));
  std::vector<float> y = c.Matrix(rows, n, y_stride);
  c.AddExtremes(x, /*finite=*/false);
  c.AddExtremes(y, /*finite=*/false);
  float* const device_y = c.Put(y);
  for (int row = 0; row < rows; ++row) {
    Reference().add(x.data() + int64_t{row} * x_stride, y.data() + int64_t{row} * y_stride, n);
  }
  c.Check(c.ops.add({.x = c.Put(x),
                     .x_stride = x_stride,
                     .y = device_y,
                     .y_stride = y_stride,
                     .n = n,
                     .rows = rows},
                    c.stream()));
  c.Compare(y, device_y);
}

// ---- K and V. A step of several sequences with tables in random order, and two caches: that of
// kv_layout.h, which the reference has, and that of GPUs.
struct Sequences {
  // `contexts` are the positions of each sequence before its rows of this step, which are often
  // `least_rows`.
  Sequences(Case& c, int count, int most_context, int most_rows, int least_rows = 1) {
    for (int i = 0; i < count; ++i) {
      contexts.push_back(c.random.Int(0, most_context));
      row_counts.push_back(c.random.OneIn(2) ? least_rows : c.random.Int(least_rows, most_rows));
      shortest = std::min(shortest, contexts.back() + 1);
      longest = std::max(longest, contexts.back() + row_counts.back());
    }
    table_stride = (longest + kKvRecordTokens - 1) / kKvRecordTokens + c.random.Int(0, 3);
    // Blocks in random order, of which some are nobody's. Tables end with ids that do not exist.
    int needed = 0;
    for (int i = 0; i < count; ++i) needed += BlocksOf(i);
    blocks = needed + c.random.Int(1, 4);
    std::vector<int32_t> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0);
    for (int i = blocks - 1; i > 0; --i) std::swap(ids[i], ids[c.random.Int(0, i)]);
    tables.assign(static_cast<size_t>(count) * table_stride, INT32_MAX);
    size_t next = 0;
    for (int i = 0; i < count; ++i) {
      for (int b = 0; b < BlocksOf(i); ++b) tables[i * table_stride + b] = ids[next++];
    }
    for (int i = 0; i < count; ++i) {
      for (int r = 0; r < row_counts[i]; ++r) {
        sequences.push_back(i);
        positions.push_back(contexts[i] + r);
      }
    }
  }

  // 513 rows: of one sequence, or of as many.
  static Sequences Many(Case& c) {
    return c.random.OneIn(4) ? Sequences(c, 1, 20, 513, 513) : Sequences(c, 513, 20, 1);
  }

  int count() const { return static_cast<int>(contexts.size()); }
  int rows() const { return static_cast<int>(sequences.size()); }
  int BlocksOf(int sequence) const {
    return (contexts[sequence] + row_counts[sequence] + kKvRecordTokens - 1) / kKvRecordTokens;
  }
  int first_row(int sequence) const {
    return std::accumulate(row_counts.begin(), row_counts.begin() + sequence, 0);
  }

  std::vector<int> contexts, row_counts;
  int shortest = INT32_MAX, longest = 0;  // what a row sees
  int blocks = 0, table_stride = 0;
  std::vector<int32_t> tables, sequences, positions;
};

struct TwoCaches {
  TwoCaches(Case& c, const Sequences& steps, KvType kv_type, int kv_dim, int kv_heads)
      : type(kv_type),
        dim(kv_dim),
        heads(kv_heads),
        layout(
            KvFormat::Both(type == KvType::kF32 ? kernels::KvType::kF32 : kernels::KvType::kBf16)),
        dims(KvDims::Equal(dim)),
        host_head(kernels::KvRecordBytes(layout, dims)),
        device_head(KvRecordBytes(type, dim) + c.random.Int(0, 2) * 64),
        host(static_cast<size_t>(steps.blocks) * heads * host_head + 64, std::byte{0xFF}),
        device(static_cast<size_t>(steps.blocks) * heads * device_head, std::byte{0xFF}) {}

  kernels::KvView HostView(const Sequences& steps, int sequence) {
    void* base = host.data();
    size_t room = host.size();
    std::align(64, 1, base, room);
    return {.format = layout,
            .dims = dims,
            .base = static_cast<std::byte*>(base),
            .block_stride = heads * host_head,
            .head_stride = host_head,
            .block_table = steps.tables.data() + sequence * steps.table_stride};
  }
  // As with several KV groups.
  static constexpr int kBeginStride = 3;
  KvView DeviceView(Case& c, const Sequences& steps) {
    base = c.Put(device);
    std::vector<int64_t> begins(static_cast<size_t>(steps.count()) * kBeginStride, INT64_MAX);
    for (int i = 0; i < steps.count(); ++i) begins[i * kBeginStride] = i * steps.table_stride;
    return {.type = type,
            .dim = dim,
            .base = base,
            .block_stride = heads * device_head,
            .head_stride = device_head,
            .blocks = c.Put(steps.tables),
            .begins = c.Put(begins),
            .begin_stride = kBeginStride};
  }
  // Stores K and V of a token on both sides, as the device's layout says.
  void Write(const Sequences& steps, int sequence, int position, const float* k, const float* v) {
    Reference().kv_write({.cache = HostView(steps, sequence),
                          .first_position = position,
                          .heads = heads,
                          .k = k,
                          .v = v,
                          .token_stride = int64_t{heads} * dim},
                         0, 1);
    const int64_t block = steps.tables[sequence * steps.table_stride + position / kKvRecordTokens];
    for (int head = 0; head < heads; ++head) {
      std::byte* const record = device.data() + (block * heads + head) * device_head;
      for (int part = 0; part < 2; ++part) {
        for (int d = 0; d < dim; ++d) {
          const float x = (part == 0 ? k : v)[head * dim + d];
          const int64_t at =
              (int64_t{part} * kKvRecordTokens + position % kKvRecordTokens) * dim + d;
          const uint16_t bf16 = FloatToBf16(x);
          if (type == KvType::kF32) std::memcpy(record + at * 4, &x, 4);
          if (type == KvType::kBf16) std::memcpy(record + at * 2, &bf16, 2);
        }
      }
    }
  }

  KvType type;
  int dim, heads;
  KvFormat layout;
  KvDims dims;
  int64_t host_head, device_head;
  std::vector<std::byte> host, device;
  std::byte* base = nullptr;
};

void RunKvWrite(Case& c) {
  const int dim = c.random.Int(2, 16) * 16, heads = c.random.Int(1, 5);
  const Sequences steps = c.random.OneIn(12)
                              ? Sequences::Many(c)
                              : Sequences(c, c.random.Int(1, 6), c.random.OneIn(3) ? 300 : 40, 20);
  TwoCaches caches(c, steps, static_cast<KvType>(c.random.Int(0, 1)), dim, heads);
  const int width = heads * dim, stride = width + c.random.Int(0, 5);
  c.Shape(caches.type == KvType::kF32 ? "fp32" : "bf16", " rows ", steps.rows(), " heads ", heads,
          " dim ", dim);
  std::vector<float> k = c.Matrix(steps.rows(), width, stride),
                     v = c.Matrix(steps.rows(), width, stride);
  c.AddExtremes(k, /*finite=*/false);
  c.AddExtremes(v, /*finite=*/false);
  const KvView view = caches.DeviceView(c, steps);
  for (int row = 0; row < steps.rows(); ++row) {
    caches.Write(steps, steps.sequences[row], steps.positions[row], k.data() + row * stride,
                 v.data() + row * stride);
  }
  c.Check(c.ops.kv_write({.cache = view,
                          .rows = steps.rows(),
                          .heads = heads,
                          .sequences = c.Put(steps.sequences),
                          .positions = c.Put(steps.positions),
                          .k = c.Put(k),
                          .v = c.Put(v),
                          .row_stride = stride},
                         c.stream()));
  // Numbers rather than bytes, since the payload of a NaN does not count.
  if (caches.type == KvType::kF32) {
    std::vector<float> numbers(caches.device.size() / 4);
    std::memcpy(numbers.data(), caches.device.data(), numbers.size() * 4);
    c.Compare(numbers, reinterpret_cast<const float*>(caches.base));
  } else {
    std::vector<uint16_t> numbers(caches.device.size() / 2);
    std::memcpy(numbers.data(), caches.device.data(), numbers.size() * 2);
    c.Compare(numbers, reinterpret_cast<const uint16_t*>(caches.base));
  }
}

void RunPagedAttention(Case& c) {
  static constexpr int kDims[] = {32, 64, 80, 96, 128, 192, 256};
  // Contexts of up to 3,000 tokens, fewer at a time where they are long; or many rows.
  const bool many = c.random.OneIn(16), longer = c.random.OneIn(6), less = many && c.small;
  const int dim = kDims[c.random.Int(0, less ? 1 : 6)];
  const int group = c.random.Int(1, less ? 3 : kMaxGroup);
  const int heads = c.random.Int(1, less ? 1 : 3), width = heads * dim;
  const int most = longer ? 2'999 : c.random.OneIn(2) ? 300 : 20;
  const Sequences steps =
      many ? Sequences::Many(c)
           : Sequences(c, longer ? 1 : c.random.Int(1, 4), most, longer && c.small ? 1 : 9);
  TwoCaches caches(c, steps, static_cast<KvType>(c.random.Int(0, 1)), dim, heads);
  c.Shape(caches.type == KvType::kF32 ? "fp32" : "bf16", " rows ", steps.rows(), " sequences ",
          steps.count(), " contexts ", steps.shortest, " to ", steps.longest, " KV heads ", heads,
          " group ", group, " dim ", dim);
  for (int i = 0; i < steps.count(); ++i) {
    for (int at = 0; at < steps.contexts[i] + steps.row_counts[i]; ++at) {
      const std::vector<float> k = c.random.Floats(width, 2), v = c.random.Floats(width, 2);
      caches.Write(steps, i, at, k.data(), v.data());
    }
  }
  const int q_width = width * group, stride = q_width + c.random.Int(0, 5);
  // Results lie apart from each other, in an order of their own, and may be shorter than a head.
  const int out_dim = c.random.OneIn(2) ? dim : c.random.Int(1, dim);
  const int out_head = out_dim + c.random.Int(0, 3);
  const int out_stride = heads * group * out_head;
  std::vector<int32_t> places(heads * group);
  for (int i = 0; i < heads * group; ++i) places[i] = (heads * group - 1 - i) * out_head;
  std::vector<float> q = c.Matrix(steps.rows(), q_width, stride, c.random.OneIn(2) ? 1 : 12);
  if (c.random.OneIn(4)) c.AddExtremes(q, /*finite=*/false);
  std::vector<float> expected = c.Matrix(steps.rows(), 0, out_stride);
  float* const out = c.Put(expected);
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  for (int i = 0; i < steps.count(); ++i) {
    const int64_t first = steps.first_row(i);
    for (int head = 0; head < heads * group; ++head) {
      Reference().paged_attention({.cache = caches.HostView(steps, i),
                                   .kv_head = head / group,
                                   .first_position = steps.contexts[i],
                                   .heads = 1,
                                   .q = q.data() + first * stride + head * dim,
                                   .q_stride = stride,
                                   .scale = scale,
                                   .out_dim = out_dim,
                                   .out = expected.data() + first * out_stride + places[head],
                                   .out_stride = out_stride},
                                  0, steps.row_counts[i]);
    }
  }
  std::vector<int32_t> first_segments, segment_rows;
  for (int row = 0; row < steps.rows(); ++row) {
    first_segments.push_back(static_cast<int32_t>(segment_rows.size()));
    segment_rows.insert(segment_rows.end(), SegmentsOf(steps.positions[row]), row);
  }
  first_segments.push_back(static_cast<int32_t>(segment_rows.size()));
  AttentionArgs args{.cache = caches.DeviceView(c, steps),
                     .kv_heads = heads,
                     .group = group,
                     .sequences = c.Put(steps.sequences),
                     .positions = c.Put(steps.positions),
                     .first_segments = c.Put(first_segments),
                     .segment_rows = c.Put(segment_rows),
                     .q = c.Put(q),
                     .q_stride = stride,
                     .scale = scale,
                     .scratch = c.Room<float>(segment_rows.size() * heads * group * (dim + 2)),
                     .head_places = c.Put(places),
                     .out_dim = out_dim,
                     .out = out,
                     .out_stride = out_stride};
  // In one call, or in two.
  const int middle = c.random.OneIn(2) ? steps.rows() : c.random.Int(0, steps.rows());
  for (const auto& [begin, end] : {std::pair{0, middle}, {middle, steps.rows()}}) {
    args.first_row = begin;
    args.rows = end - begin;
    args.first_segment = first_segments[begin];
    args.segments = first_segments[end] - first_segments[begin];
    c.Check(c.ops.paged_attention(args, c.stream()));
  }
  c.Compare(expected, out);
}

// ---- The vocabulary.

struct Logits {
  // More rows than `most_rows` only with few logits.
  Logits(Case& c, int most_rows)
      : rows(c.Rows(c.random.OneIn(2) ? 513 : most_rows)),
        n(rows > most_rows || c.random.OneIn(4) ? c.random.Int(1, 40)
                                                : c.random.Int(1, c.small ? 4'000 : 40'000)),
        stride(n + c.random.Int(0, 5)),
        values(c.Matrix(rows, n, stride, 20)) {
    // Equal scores, rows without a number, and what is not finite.
    if (c.random.OneIn(2)) {
      for (float& x : values) x = std::nearbyint(x);
    }
    if (c.random.OneIn(4)) {
      const float all = c.random.OneIn(2) ? kNan : -std::numeric_limits<float>::infinity();
      std::fill_n(values.begin() + int64_t{c.random.Int(0, rows - 1)} * stride, n, all);
    }
    c.AddExtremes(values, /*finite=*/false);
    c.Shape("rows ", rows, " n ", n);
  }

  const float* row(int i) const { return values.data() + int64_t{i} * stride; }
  LogitRows Device(Case& c) const {
    return {.logits = c.Put(values), .stride = stride, .n = n, .rows = rows};
  }

  int rows, n, stride;
  std::vector<float> values;
};

void RunArgMax(Case& c) {
  const Logits logits(c, 33);
  std::vector<TokenScore> expected;
  for (int i = 0; i < logits.rows; ++i) {
    expected.push_back(Reference().argmax(logits.row(i), logits.n));
  }
  auto* const out = c.Room<TokenScore>(logits.rows);
  c.Check(c.ops.argmax({.in = logits.Device(c), .out = out}, c.stream()));
  c.Compare(expected, out);
}

void RunTopN(Case& c) {
  const Logits logits(c, c.small ? 3 : 33);
  const bool few = c.small && logits.rows > 3;
  const int count = std::min(logits.n, few                 ? c.random.Int(1, 2)
                                       : c.random.OneIn(8) ? 64
                                                           : c.random.Int(1, 5));
  c.Shape("rows ", logits.rows, " n ", logits.n, " count ", count);
  std::vector<TokenScore> expected(static_cast<size_t>(logits.rows) * count);
  for (int i = 0; i < logits.rows; ++i) {
    Reference().top_n(logits.row(i), logits.n, count, expected.data() + i * count);
  }
  auto* const out = c.Room<TokenScore>(expected.size());
  c.Check(c.ops.top_n({.in = logits.Device(c), .count = count, .out = out}, c.stream()));
  c.Compare(expected, out);
}

void RunGumbelArgMax(Case& c) {
  const Logits logits(c, 33);
  std::vector<Gumbel> draws;
  std::vector<TokenScore> expected;
  for (int i = 0; i < logits.rows; ++i) {
    GumbelArgs args{.inverse_temperature = c.random.OneIn(2) ? 1 : c.random.Unit() + 1.1f,
                    .key = MakeNoiseKey(c.random.Next(), c.random.Below(1000)),
                    .first_token = c.random.OneIn(2) ? 0 : c.random.Int(1, 100'000)};
    if (c.random.OneIn(2)) {
      args.cutoff = {args.first_token + c.random.Int(0, logits.n - 1),
                     std::nearbyint(c.random.Unit() * 20)};
    }
    draws.push_back({args.inverse_temperature, args.key, args.cutoff, args.first_token});
    expected.push_back(Reference().gumbel_argmax(logits.row(i), logits.n, args));
  }
  auto* const out = c.Room<TokenScore>(logits.rows);
  c.Check(
      c.ops.gumbel_argmax({.in = logits.Device(c), .draws = c.Put(draws), .out = out}, c.stream()));
  c.Compare(expected, out);
}

void RunSoftmaxStats(Case& c) {
  const Logits logits(c, 33);
  std::vector<SoftmaxStats> expected;
  for (int i = 0; i < logits.rows; ++i) {
    expected.push_back(Reference().softmax_stats(logits.row(i), logits.n));
  }
  auto* const out = c.Room<SoftmaxStats>(logits.rows);
  c.Check(c.ops.softmax_stats({.in = logits.Device(c), .out = out}, c.stream()));
  c.Compare(expected, out);
}

void RunLogitsOf(Case& c) {
  const Logits logits(c, 100);
  const int stride = c.random.Int(1, 3);
  const int32_t first = c.random.OneIn(2) ? 0 : c.random.Int(1, 100'000);
  std::vector<int32_t> tokens(static_cast<size_t>(logits.rows) * stride, INT32_MAX);
  std::vector<float> expected;
  for (int i = 0; i < logits.rows; ++i) {
    const int at = c.random.Int(0, logits.n - 1);
    tokens[i * stride] = first + at;
    expected.push_back(logits.row(i)[at]);
  }
  auto* const out = c.Room<float>(logits.rows);
  c.Check(c.ops.logits_of({.in = logits.Device(c),
                           .tokens = c.Put(tokens),
                           .token_stride = stride,
                           .first_token = first,
                           .out = out},
                          c.stream()));
  c.Compare(expected, out);
}

struct Op {
  std::string_view name;
  void (*run)(Case&);
};
constexpr Op kOps[] = {
    {"rms_norm", RunRmsNorm},
    {"quantize_rows", RunQuantizeRows},
    {"matmul_i16", RunMatMulI16},
    {"matmul_f32", RunMatMulF32},
    {"rope", RunRope},
    {"activate", RunActivate},
    {"add", RunAdd},
    {"kv_write", RunKvWrite},
    {"paged_attention", RunPagedAttention},
    {"argmax", RunArgMax},
    {"top_n", RunTopN},
    {"gumbel_argmax", RunGumbelArgMax},
    {"softmax_stats", RunSoftmaxStats},
    {"logits_of", RunLogitsOf},
};

}  // namespace

absl::Span<const std::string_view> OpNames() {
  static const std::vector<std::string_view>& names = *[] {
    auto* const all = new std::vector<std::string_view>;
    for (const Op& op : kOps) all->push_back(op.name);
    return all;
  }();
  return names;
}

OpResult RunOpCase(std::string_view op, uint64_t seed, bool small, const Ops& ops,
                   DeviceMemory& memory) {
  for (const Op& known : kOps) {
    if (known.name != op) continue;
    Case c(seed, small, ops, memory);
    known.run(c);
    return c.result();
  }
  return {.difference = Cat("there is no op ", op)};
}

}  // namespace flotilla::kernels::cuda
