#include "tests/support/deferred_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "kernels/rope_table.h"
#include "kernels/scalar_math.h"
#include "model/ggml_type.h"
#include "model/tensor_table.h"
#include "worker/compute/model_shard.h"
#include "worker/core/split_layout.h"

namespace flotilla::testing {
namespace {

using kernels::kKvBlockTokens;
using worker::AttentionOp;
using worker::BufferHandle;
using worker::EmbeddingHandle;
using worker::ExpertsHandle;
using worker::HeadHandle;
using worker::HeadMatricesHandle;
using worker::MatrixHandle;
using worker::NormOp;
using worker::ProjectionHandle;
using worker::RopeHandle;
using worker::RowPartial;
using worker::RowRequest;
using worker::StepInputs;
using worker::StepSequence;
using worker::VectorHandle;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Floats behind each row that no operation may need.
constexpr std::int64_t kRowPadding = 5;
// The longest time from Start to the step's first operation. Most steps' operations are enqueued
// by then.
constexpr std::uint32_t kMaxDelayUs = 300;
// A background copy lets at most this many calls pass.
constexpr std::uint32_t kMaxCopyCalls = 3;
constexpr std::int64_t kNeverFails = std::numeric_limits<std::int64_t>::max();

const kernels::Ops& Reference() { return kernels::GetOps(kernels::Isa::kReference); }

absl::Status Misfit(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the sizes do not fit: ", std::string(what)));
}

// ---- Formats of weights: all that this file knows about them is in the functions and the class
// of this section.

std::span<const std::byte> BytesOfRow(const model::Tensor& tensor, std::int64_t row) {
  const std::size_t bytes = tensor.data.size() / tensor.dims[1];
  return tensor.data.subspan(static_cast<std::size_t>(row) * bytes, bytes);
}

// Decodes a row of the tensor. `out` has room for it.
absl::Status DecodeRow(const model::Tensor& tensor, std::int64_t row, float* out) {
  return model::DequantizeRow(tensor.type, BytesOfRow(tensor, row),
                              {out, static_cast<std::size_t>(tensor.dims[0])});
}

// One row of activations as a product reads it: as it is, or quantised.
struct Operand {
  std::vector<float> values;
  std::vector<std::int16_t> quants;  // empty: not quantised
  std::vector<float> group_sums, scales;
};

// Weights of one product with the reference kernels.
class Weights {
 public:
  // The outputs are those of the parts. A row of inputs has the places one after the other, each a
  // split; without places it is the whole row, in one. INVALID_ARGUMENT: the sizes do not fit;
  // RESOURCE_EXHAUSTED: there is not enough memory.
  static absl::StatusOr<Weights> Create(std::vector<worker::MatrixPart> parts,
                                        std::vector<worker::SplitPlace> places = {});
  // Reads them from the file.
  absl::Status Load();

  Operand OperandOf(worker::Recipe recipe, const float* x) const;
  // Writes the `columns` outputs for one row.
  void Multiply(Operand& x, float* out) const;

  std::int64_t k() const { return matrix_.k(); }
  std::int64_t columns() const { return matrix_.columns(); }
  std::int64_t bytes() const { return matrix_.bytes(); }

 private:
  absl::Status LoadRow(const worker::MatrixPart& part, std::int64_t row, std::int64_t column);

  std::vector<worker::MatrixPart> parts_;
  std::vector<worker::SplitPlace> places_;
  kernels::PackedMatrix matrix_;
};

// Weights of one product whose parts may have several formats, each of which is multiplied as it
// is.
class MixedWeights {
 public:
  // As Weights::Create.
  static absl::StatusOr<MixedWeights> Create(std::vector<worker::MatrixPart> parts);
  absl::Status Load();

  Operand OperandOf(worker::Recipe recipe, const float* x) const;
  void Multiply(Operand& x, float* out) const;

  std::int64_t k() const { return weights_.front().k(); }
  std::int64_t columns() const;
  std::int64_t bytes() const;

 private:
  std::vector<Weights> weights_;  // of consecutive outputs
};

// A number of inputs, filled up to whole blocks.
std::int32_t Whole(std::int64_t inputs) {
  return static_cast<std::int32_t>((inputs + worker::kSplitBlock - 1) / worker::kSplitBlock *
                                   worker::kSplitBlock);
}

std::int64_t InputsOf(const worker::MatrixPart& part) {
  return static_cast<std::int64_t>(part.tensor->dims[part.transposed ? 1 : 0]);
}

// Whether all rows of the part are in the tensor.
bool HasRows(const worker::MatrixPart& part) {
  const auto rows = static_cast<std::int64_t>(part.tensor->dims[part.transposed ? 0 : 1]);
  for (std::int64_t row = part.rows.begin; row < part.rows.end; ++row) {
    if (part.map.At(row) < 0 || part.map.At(row) >= rows) return false;
  }
  return part.rows.begin <= part.rows.end && part.count() >= part.rows.size();
}

absl::StatusOr<Weights> Weights::Create(std::vector<worker::MatrixPart> parts,
                                        std::vector<worker::SplitPlace> places) {
  if (parts.empty()) return Misfit("a matrix has no parts");
  const std::int64_t inputs = InputsOf(parts.front());
  if (places.empty()) {
    const auto end = static_cast<std::int32_t>(inputs);
    places.push_back({.begin = 0, .end = end, .at = 0, .width = Whole(end)});
  }
  WeightEncoding encoding = model::EncodingOf(parts.front().tensor->type);
  std::int64_t columns = 0;
  for (const worker::MatrixPart& part : parts) {
    const auto name = std::string(part.tensor->name);
    if (InputsOf(part) != inputs) {
      return Misfit(absl::StrCat("the rows of ", name, " are not as long as those beside it"));
    }
    if (!HasRows(part)) return Misfit(absl::StrCat(name, " has not all the rows"));
    // Parts of several encodings become fp32.
    if (model::EncodingOf(part.tensor->type) != encoding) encoding = {};
    columns += part.count();
  }
  std::vector<std::int32_t> ends;
  for (worker::SplitPlace& place : places) {
    if (place.end > inputs) return Misfit(absl::StrCat("inputs to ", place.end, " of ", inputs));
    place.at = ends.empty() ? 0 : ends.back();
    ends.push_back(place.at + place.width);
  }
  std::vector<std::int32_t> windows;
  for (const worker::SplitPlace& place : places) {
    for (std::int32_t at = 0; at < place.width; at += kernels::kBlockK) {
      windows.push_back((place.first() + at) / kPanelWindow);
    }
  }
  auto matrix = kernels::PackedMatrix::Create(encoding, columns, ends.back(), ends, windows);
  if (!matrix.ok()) return matrix.status();
  Weights weights;
  weights.parts_ = std::move(parts);
  weights.places_ = std::move(places);
  weights.matrix_ = *std::move(matrix);
  return weights;
}

absl::Status Weights::Load() {
  std::int64_t column = 0;
  for (const worker::MatrixPart& part : parts_) {
    for (std::uint32_t row = 0; row < part.rows.size(); ++row) {
      const absl::Status loaded = LoadRow(part, part.map.At(part.rows.begin + row), column + row);
      if (loaded.ok()) continue;
      return absl::Status(loaded.code(),
                          absl::StrCat(std::string(part.tensor->name), ": ", loaded.message()));
    }
    column += part.count();
  }
  parts_.clear();
  return absl::OkStatus();
}

absl::Status Weights::LoadRow(const worker::MatrixPart& part, std::int64_t row,
                              std::int64_t column) {
  const auto read = part.transposed ? model::ReadTransposedPanel : model::ReadPanel;
  const auto panel = std::make_unique<WeightPanel>();
  for (const worker::SplitPlace& place : places_) {
    const std::int64_t end = std::min<std::int64_t>(place.first() + place.width, InputsOf(part));
    std::int64_t next;
    for (std::int64_t first = place.first(); first < end; first = next) {
      next = std::min(first / kPanelWindow * kPanelWindow + kPanelWindow, end);
      absl::Status status = read(*part.tensor, {&row, 1}, first, next, matrix_.encoding(), *panel);
      if (status.ok()) status = matrix_.PackPanel(*panel, column, place.at + first - place.first());
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

Operand Weights::OperandOf(worker::Recipe recipe, const float* x) const {
  Operand operand{
      .values = std::vector<float>(x, x + k()), .quants = {}, .group_sums = {}, .scales = {}};
  if (recipe != worker::Recipe::kAccurate || !matrix_.quantized()) return operand;
  const kernels::MatrixView view = matrix_.view();
  operand.quants.resize(static_cast<std::size_t>(view.k));
  operand.group_sums.resize(static_cast<std::size_t>(view.k / kernels::kSumSpan));
  operand.scales.resize(static_cast<std::size_t>(view.split_count));
  Reference().quantize_rows({.x = operand.values.data(),
                             .x_stride = view.k,
                             .k = view.k,
                             .split_count = view.split_count,
                             .split_ends = view.split_ends,
                             .out = {.values = operand.quants.data(),
                                     .group_sums = operand.group_sums.data(),
                                     .scales = operand.scales.data()}},
                            0, 1);
  return operand;
}

void Weights::Multiply(Operand& x, float* out) const {
  const kernels::MatrixView view = matrix_.view();
  if (x.quants.empty() || !matrix_.quantized()) {
    Reference().matmul_f32({.weights = view,
                            .x = x.values.data(),
                            .x_stride = view.k,
                            .rows = 1,
                            .out = out,
                            .out_stride = view.columns},
                           0, view.panels());
    return;
  }
  Reference().matmul_i16({.weights = view,
                          .x = {.values = x.quants.data(),
                                .group_sums = x.group_sums.data(),
                                .scales = x.scales.data()},
                          .rows = 1,
                          .out = out,
                          .out_stride = view.columns},
                         0, view.panels());
}

absl::StatusOr<MixedWeights> MixedWeights::Create(std::vector<worker::MatrixPart> parts) {
  if (parts.empty()) return Misfit("a matrix has no parts");
  const auto encoding = [](const worker::MatrixPart& part) {
    return model::EncodingOf(part.tensor->type);
  };
  MixedWeights mixed;
  for (auto begin = parts.begin(); begin != parts.end();) {
    const auto end = std::find_if(begin, parts.end(), [&](const worker::MatrixPart& part) {
      return encoding(part) != encoding(*begin);
    });
    auto weights = Weights::Create({begin, end});
    if (!weights.ok()) return weights.status();
    if (!mixed.weights_.empty() && weights->k() != mixed.k()) {
      return Misfit("rows of a matrix are not equally long");
    }
    mixed.weights_.push_back(*std::move(weights));
    begin = end;
  }
  return mixed;
}

absl::Status MixedWeights::Load() {
  absl::Status status;
  for (Weights& weights : weights_) status.Update(weights.Load());
  return status;
}

Operand MixedWeights::OperandOf(worker::Recipe recipe, const float* x) const {
  Operand operand;
  for (const Weights& weights : weights_) {
    operand = weights.OperandOf(recipe, x);
    if (!operand.quants.empty()) break;
  }
  return operand;
}

void MixedWeights::Multiply(Operand& x, float* out) const {
  for (const Weights& weights : weights_) {
    weights.Multiply(x, out);
    out += weights.columns();
  }
}

std::int64_t MixedWeights::columns() const {
  std::int64_t columns = 0;
  for (const Weights& weights : weights_) columns += weights.columns();
  return columns;
}

std::int64_t MixedWeights::bytes() const {
  std::int64_t bytes = 0;
  for (const Weights& weights : weights_) bytes += weights.bytes();
  return bytes;
}

// ---- What a device has.

struct Buffer {
  std::int64_t width = 0;
  std::vector<std::vector<float>> rows;  // [rows of the step][width + kRowPadding]

  void Poison() {
    for (std::vector<float>& row : rows) std::fill(row.begin(), row.end(), kNaN);
  }
};

// A product over one subtree of the splits.
struct SubtreeProduct {
  std::int64_t first_k = 0;  // of the rank's own inputs
  Weights weights;
};

struct Matrix {
  MixedWeights weights;
  std::vector<float> bias;  // may be empty
};

using HeadMatrices = std::vector<Weights>;

struct Projection {
  std::int64_t inputs = 0;   // of this rank
  std::vector<float> bias;   // may be empty
  std::int64_t columns = 0;  // outputs
  std::vector<SubtreeProduct> products;
  worker::SumTree tree;  // over the products of all ranks
};

struct Experts {
  struct Expert {
    Weights gate_up;
    std::vector<float> bias;       // may be empty
    std::vector<Weights> down;     // of each of this rank's splits
    std::vector<float> down_bias;  // may be empty
  };
  model::MoeSpec spec;
  std::vector<float> router_bias, choice_bias;  // may be empty
  Weights router;
  std::optional<Weights> shared_router;
  std::vector<Expert> experts;
  std::int64_t hidden = 0;
  std::vector<worker::SplitPlace> splits;     // of this rank, from its first input on
  std::vector<worker::TreeProgram> products;  // whose loads are of this rank's splits
  worker::SumTree tree;                       // over the products of all ranks

  std::int64_t inputs() const { return splits.back().at + splits.back().width; }
};

// The experts of a row, ascending, and the logit of the shared one.
struct Route {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  float shared_logit = kNaN;
};

struct HeadWeights {
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  worker::VocabularyShard shard;
  std::optional<Weights> weights;  // none: the shard is empty
  std::vector<float> bias;         // may be empty
  float factor = 1, softcap = 0;

  std::int64_t tokens() const { return weights.has_value() ? weights->columns() : 0; }
};

// K and V of 16 tokens of one layer and head: [16 tokens][dim] each. V has nothing where it is a
// prefix of K.
struct Plane {
  std::vector<float> keys, values;
};
using Block = std::vector<Plane>;  // [layers, heads]
// Blocks by block id or slot. What is not there is all NaN.
using Blocks = std::unordered_map<std::uint32_t, Block>;

template <class Value>
using ByHandle = std::unordered_map<std::int32_t, Value>;

// `value` as K and V are stored.
float Rounded(kernels::KvFormat format, float value) {
  if (format == kernels::KvFormat::kF32) return value;
  return kernels::Bf16ToFloat(kernels::FloatToBf16(value));
}

// Stores a rounded value as element `index` of the K or V that starts at `base`.
void StoreElement(kernels::KvFormat format, std::byte* base, std::int64_t index, float value) {
  if (format == kernels::KvFormat::kF32) {
    std::memcpy(base + index * 4, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = kernels::FloatToBf16(value);
  std::memcpy(base + index * 2, &bits, sizeof bits);
}

// Makes the block `place` of `to` a copy of the block `at` of `from`, which may be the same memory.
void Copy(Blocks& from, std::uint32_t at, Blocks& to, std::uint32_t place) {
  const auto found = from.find(at);
  if (found == from.end()) {
    to.erase(place);
    return;
  }
  Block copy = found->second;
  to[place] = std::move(copy);
}

// RESOURCE_EXHAUSTED: this machine could not hold so many blocks.
absl::Status CheckMemory(const worker::KvShape& shape, std::uint32_t blocks) {
  std::int64_t bytes;
  if (__builtin_mul_overflow(shape.bytes_per_block(), std::int64_t{blocks}, &bytes) ||
      bytes > std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(blocks, " blocks of KV are more than the machine's memory"));
  }
  return absl::OkStatus();
}

// The partial of one shard of a row, as row_partials.h defines it.
RowPartial Reduce(const worker::VocabularyShard& shard, const std::vector<float>& logits,
                  const RowRequest& request, absl::Span<const worker::LogitEdit> edits) {
  const int size = shard.tokens;
  RowPartial partial;
  int begin = 0;
  for (const std::int32_t subtree : shard.subtrees) {
    partial.stats.push_back(Reference().softmax_stats(logits.data() + begin, subtree));
    begin += subtree;
  }
  if (size == 0) return partial;
  if (request.top > 0) {
    partial.best.resize(static_cast<std::size_t>(std::min(request.top, size)));
    Reference().top_n(logits.data(), size, static_cast<int>(partial.best.size()),
                      partial.best.data());
    for (kernels::TokenScore& token : partial.best) token.token += shard.first_token;
  }
  std::vector<float> changed = logits;
  for (const worker::LogitEdit& edit : edits) {
    const std::int64_t at = std::int64_t{edit.token} - shard.first_token;
    if (at < 0 || at >= size) continue;
    float& logit = changed[static_cast<std::size_t>(at)];
    if (edit.kind == worker::LogitEdit::Kind::kSet) logit = edit.value;
    if (edit.kind == worker::LogitEdit::Kind::kAdd) logit = logit + edit.value;
    if (edit.kind != worker::LogitEdit::Kind::kRepetition) continue;
    logit = logit > 0 ? logit / edit.value : logit * edit.value;
  }
  std::int64_t winner = -1;  // index into the shard
  switch (request.pick) {
    case RowRequest::Pick::kNone:
      return partial;
    case RowRequest::Pick::kGreedy:
      partial.winner = Reference().argmax(changed.data(), size);
      partial.winner.token += shard.first_token;
      winner = partial.winner.token - shard.first_token;
      break;
    case RowRequest::Pick::kGumbel:
      partial.winner =
          Reference().gumbel_argmax(changed.data(), size,
                                    {.inverse_temperature = request.inverse_temperature,
                                     .key = request.noise,
                                     .first_token = shard.first_token});
      winner = partial.winner.token - shard.first_token;
      break;
    case RowRequest::Pick::kKnown:
      winner = std::int64_t{request.token} - shard.first_token;
      if (winner < 0 || winner >= size) return partial;
      partial.winner = {request.token, 0};
      break;
  }
  partial.logit = logits[static_cast<std::size_t>(winner)];
  return partial;
}

}  // namespace

// From Start to Finish. The caller makes and ends it; in between the worker thread has it.
struct DeferredBackend::Step {
  int rows = 0;  // of `inputs`, for the caller's thread
  StepInputs inputs;
  worker::RowReceiver* receiver = nullptr;
  std::vector<RowPartial> partials;  // [requests]
  bool done = false;                 // guarded by DeferredBackend::mu_
};

// The worker thread calls all methods but those that add, which come before the first step.
class DeferredBackend::Device {
 public:
  explicit Device(const worker::BackendOptions& options) : options_(options) {}

  BufferHandle AddBuffer(std::int64_t width) {
    return Keep<BufferHandle>(buffers_, Buffer{.width = width, .rows = {}});
  }
  VectorHandle AddVector(std::vector<float> values) {
    return Keep<VectorHandle>(vectors_, std::move(values));
  }
  RopeHandle AddRope(const model::RopeSpec& rope) {
    return Keep<RopeHandle>(
        ropes_, kernels::RopeTable(options_.max_positions, rope.frequencies, rope.magnitude));
  }
  EmbeddingHandle AddEmbedding(const worker::EmbeddingSource& source) {
    return Keep<EmbeddingHandle>(embeddings_, worker::EmbeddingSource(source));
  }
  absl::StatusOr<MatrixHandle> AddMatrix(std::vector<worker::MatrixPart> parts,
                                         std::vector<float> bias);
  absl::StatusOr<HeadMatricesHandle> AddHeadMatrices(std::vector<worker::MatrixPart> parts);
  absl::StatusOr<ProjectionHandle> AddProjection(const worker::ProjectionSource& source);
  absl::StatusOr<ExpertsHandle> AddExperts(const worker::ExpertsSource& source);
  absl::StatusOr<HeadHandle> AddHead(const worker::HeadSource& source);
  absl::Status Load();
  absl::Status CreateKv(const worker::KvShape& shape, std::uint32_t blocks, std::size_t tiers);

  bool Has(BufferHandle handle) const { return buffers_.contains(handle.index()); }
  bool Has(VectorHandle handle) const { return vectors_.contains(handle.index()); }
  bool Has(RopeHandle handle) const { return ropes_.contains(handle.index()); }
  bool Has(EmbeddingHandle handle) const { return embeddings_.contains(handle.index()); }
  bool Has(MatrixHandle handle) const { return matrices_.contains(handle.index()); }
  bool Has(HeadMatricesHandle handle) const { return head_matrices_.contains(handle.index()); }
  bool Has(ProjectionHandle handle) const { return projections_.contains(handle.index()); }
  bool Has(ExpertsHandle handle) const { return experts_.contains(handle.index()); }
  bool Has(HeadHandle handle) const { return heads_.contains(handle.index()); }
  bool Has(const worker::NormOp& norm) const {
    return Has(norm.weight) && (!norm.bias.valid() || Has(norm.bias));
  }
  bool Has(const AttentionOp& attention) const {
    const auto absent_or_there = [&](auto handle) { return !handle.valid() || Has(handle); };
    return absent_or_there(attention.rope) && absent_or_there(attention.slopes) &&
           absent_or_there(attention.sinks) &&
           (attention.head_norms == model::HeadNorms::kNone ||
            (Has(attention.query_norm) && Has(attention.key_norm)));
  }

  std::int64_t weight_bytes() const;
  std::int64_t buffer_bytes() const;

  absl::Status Begin(Step& step);
  void End();
  absl::Status MakeCopy(const BackgroundCopy& copy);

  absl::Status Embed(EmbeddingHandle table, BufferHandle out);
  absl::Status ReceiveResidual(BufferHandle x);
  absl::Status SendResidual(BufferHandle x);
  absl::Status NormInPlace(BufferHandle x, const NormOp& norm);
  absl::Status NormFor(BufferHandle x, const std::optional<NormOp>& norm, MatrixHandle next,
                       BufferHandle out);
  absl::Status Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out);
  absl::Status GateUp(BufferHandle x, MatrixHandle gate_up, const worker::FfnOp& ffn,
                      BufferHandle out);
  // Adds to `out`, or not.
  absl::Status RunProjection(BufferHandle x, ProjectionHandle projection, bool accumulate,
                             BufferHandle out);
  absl::Status RouteRows(BufferHandle x, const std::optional<NormOp>& norm, ExpertsHandle experts,
                         BufferHandle out);
  absl::Status GateUpExperts(BufferHandle x, ExpertsHandle experts, const worker::FfnOp& ffn,
                             BufferHandle out);
  // Adds to `out`, or not.
  absl::Status RunMixture(BufferHandle x, ExpertsHandle experts, bool accumulate, BufferHandle out);
  absl::Status ScaleShared(ExpertsHandle experts, BufferHandle x);
  absl::Status AddScaled(BufferHandle x, float factor, BufferHandle residual);
  absl::Status Absorb(const worker::LatentOp& op, BufferHandle queries, BufferHandle latent,
                      BufferHandle qkv);
  absl::Status MultiplyHeads(BufferHandle x, HeadMatricesHandle matrices,
                             const std::vector<std::int32_t>& places, BufferHandle out);
  absl::Status RopeAndStore(const AttentionOp& attention, BufferHandle qkv);
  absl::Status Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out);
  absl::Status Head(BufferHandle x, const NormOp& norm, HeadHandle head);

 private:
  // What Norm leaves to the product that follows.
  struct Form {
    BufferHandle buffer;
    MatrixHandle matrix;
    std::vector<Operand> rows;
  };
  // Blocks in the layout of the kernels.
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  template <class Handle, class Value>
  Handle Keep(ByHandle<Value>& values, Value value) {
    values.emplace(++last_handle_, std::move(value));
    return Handle(last_handle_);
  }
  bool alone() const { return options_.tensor_ranks == 1; }
  const StepInputs& inputs() const { return step_->inputs; }
  std::size_t rows() const { return static_cast<std::size_t>(inputs().rows()); }

  absl::Status CheckInputs() const;
  absl::Status CheckSequence(std::size_t index) const;
  absl::Status CheckRequests() const;
  absl::Status CheckAttention(const AttentionOp& attention, const Buffer& qkv) const;
  bool HasBlock(BlockId block) const { return block.value() < block_count_; }
  std::size_t PlaneOf(const AttentionOp& attention, int kv_head) const {
    return static_cast<std::size_t>(attention.layer * kv_shape_.kv_heads + kv_head);
  }
  // The n floats from x on, normed with the weights from `first_weight` on.
  std::vector<float> Normed(const NormOp& norm, const float* x, std::int64_t n,
                            std::int64_t first_weight = 0) const;
  std::int64_t SizeOf(const NormOp& norm) const {
    return static_cast<std::int64_t>(vectors_.at(norm.weight.index()).size());
  }
  const float* DataOf(VectorHandle handle) const {
    return handle.valid() ? vectors_.at(handle.index()).data() : nullptr;
  }
  absl::StatusOr<std::vector<Operand>> TakeForm(BufferHandle x, MatrixHandle matrix);
  // out = the sum of all ranks' parts, [places][rows][columns] each, or += it.
  void AddParts(const worker::SumTree& tree, std::int64_t columns,
                absl::Span<const float* const> parts, bool accumulate, Buffer& out) const;
  // The same of this rank's `sums`, after the exchange.
  absl::Status ShareSums(const worker::SumTree& tree, std::int64_t columns,
                         const std::vector<float>& sums, bool accumulate, Buffer& out);
  // One product of a row's mixture, from the row's activations.
  std::vector<float> MixRow(const Experts& experts, const worker::TreeProgram& program,
                            const Route& route, const float* x, std::int64_t x_stride) const;
  // x * the matrix, for one row of one head.
  std::vector<float> MultiplyHead(const Weights& matrix, const float* x) const;
  void NormHeads(const AttentionOp& attention, float* heads, int count, const NormOp& norm) const;
  void WriteKv(std::uint32_t block, std::size_t plane, int slot, const float* k, const float* v);
  std::vector<Line> GatherKv(const std::int32_t* table, int count, std::size_t plane) const;
  // Fills this rank's columns of the tile that begins with request `first`. Returns the tile, which
  // is complete in the rows that this rank gets.
  const float* ShareTile(const HeadWeights& head, std::size_t first,
                         const std::vector<std::vector<float>>& rows);
  absl::Status GiveRow(std::size_t request, absl::Span<const float> logits);

  const worker::BackendOptions options_;

  std::int32_t last_handle_ = 0;  // of any kind
  ByHandle<Buffer> buffers_;
  ByHandle<std::vector<float>> vectors_;
  ByHandle<kernels::RopeTable> ropes_;
  ByHandle<worker::EmbeddingSource> embeddings_;
  ByHandle<Matrix> matrices_;
  ByHandle<HeadMatrices> head_matrices_;
  ByHandle<Projection> projections_;
  ByHandle<Experts> experts_;
  ByHandle<HeadWeights> heads_;

  worker::KvShape kv_shape_;
  std::uint32_t block_count_ = 0;
  Blocks kv_;                  // by block id
  std::vector<Blocks> slots_;  // of each tier

  Step* step_ = nullptr;  // in work
  Form form_;
  ExpertsHandle routed_;  // what `routes_` is for
  std::vector<Route> routes_;
};

// ---- Loading.

absl::StatusOr<MatrixHandle> DeferredBackend::Device::AddMatrix(
    std::vector<worker::MatrixPart> parts, std::vector<float> bias) {
  auto weights = MixedWeights::Create(std::move(parts));
  if (!weights.ok()) return weights.status();
  if (!bias.empty() && static_cast<std::int64_t>(bias.size()) != weights->columns()) {
    return Misfit("the bias of a matrix");
  }
  return Keep<MatrixHandle>(matrices_,
                            Matrix{.weights = *std::move(weights), .bias = std::move(bias)});
}

absl::StatusOr<HeadMatricesHandle> DeferredBackend::Device::AddHeadMatrices(
    std::vector<worker::MatrixPart> parts) {
  HeadMatrices matrices;
  for (worker::MatrixPart& part : parts) {
    auto weights = Weights::Create({part});
    if (!weights.ok()) return weights.status();
    matrices.push_back(*std::move(weights));
    if (matrices.back().k() != matrices.front().k() ||
        matrices.back().columns() != matrices.front().columns()) {
      return Misfit("the matrices of heads");
    }
  }
  if (matrices.empty()) return Misfit("the matrices of no heads");
  return Keep<HeadMatricesHandle>(head_matrices_, std::move(matrices));
}

absl::StatusOr<ProjectionHandle> DeferredBackend::Device::AddProjection(
    const worker::ProjectionSource& source) {
  const auto all = static_cast<std::uint32_t>(source.split_ends.size());
  if (source.splits.size() != options_.tensor_ranks) return Misfit("splits are not those of ranks");
  const worker::IndexRange own = source.splits[options_.tensor_rank];
  if (own.begin >= own.end || own.end > all) return Misfit("this rank has no splits");
  const std::vector<worker::SplitPlace> places = worker::PlaceSplits(source.split_ends);
  const std::int32_t own_at = places[own.begin].at;
  Projection projection;
  projection.inputs = places[own.end - 1].at + places[own.end - 1].width - own_at;
  projection.columns = static_cast<std::int64_t>(source.tensor->dims[source.transposed ? 0 : 1]);
  projection.bias = source.bias;
  projection.tree = worker::MakeSumTree(source.splits, all);
  if (!source.bias.empty() && static_cast<std::int64_t>(source.bias.size()) != projection.columns) {
    return Misfit("the bias of a projection");
  }
  for (const worker::IndexRange& subtree : worker::SubtreesOf(own, all)) {
    auto weights = Weights::Create({{.tensor = source.tensor,
                                     .rows = {0, static_cast<std::uint32_t>(projection.columns)},
                                     .map = {},
                                     .transposed = source.transposed}},
                                   {places.begin() + subtree.begin, places.begin() + subtree.end});
    if (!weights.ok()) return weights.status();
    projection.products.push_back(
        {.first_k = places[subtree.begin].at - own_at, .weights = *std::move(weights)});
  }
  return Keep<ProjectionHandle>(projections_, std::move(projection));
}

absl::StatusOr<ExpertsHandle> DeferredBackend::Device::AddExperts(
    const worker::ExpertsSource& source) {
  Experts experts;
  experts.spec = source.spec;
  experts.router_bias = source.router_bias;
  experts.choice_bias = source.choice_bias;
  auto router = Weights::Create({source.router});
  if (!router.ok()) return router.status();
  experts.router = *std::move(router);
  experts.hidden = experts.router.k();
  if (source.shared_router.has_value()) {
    auto shared = Weights::Create({*source.shared_router});
    if (!shared.ok()) return shared.status();
    experts.shared_router = *std::move(shared);
  }
  if (source.experts.size() != source.spec.experts ||
      experts.router.columns() != static_cast<std::int64_t>(source.experts.size())) {
    return Misfit("the number of experts");
  }
  const worker::ProjectionSource& first = source.experts.front().down;
  if (first.splits.size() != options_.tensor_ranks) return Misfit("splits are not those of ranks");
  const auto all = static_cast<std::uint32_t>(first.split_ends.size());
  const worker::IndexRange own = first.splits[options_.tensor_rank];
  if (own.begin >= own.end || own.end > all) return Misfit("this rank has no splits");
  const std::vector<worker::SplitPlace> places = worker::PlaceSplits(first.split_ends);
  for (std::uint32_t split = own.begin; split < own.end; ++split) {
    experts.splits.push_back(places[split]);
    experts.splits.back().at -= places[own.begin].at;
  }
  experts.tree = worker::MakeSumTree(first.splits, all);
  experts.products = worker::MakeSplitPrograms(own, all);
  for (const worker::ExpertsSource::Expert& each : source.experts) {
    auto gate_up = Weights::Create(each.gate_up);
    if (!gate_up.ok()) return gate_up.status();
    if (!each.bias.empty() && static_cast<std::int64_t>(each.bias.size()) != gate_up->columns()) {
      return Misfit("the bias of an expert");
    }
    Experts::Expert& expert =
        experts.experts.emplace_back(Experts::Expert{.gate_up = *std::move(gate_up),
                                                     .bias = each.bias,
                                                     .down = {},
                                                     .down_bias = each.down.bias});
    const std::uint64_t outputs = each.down.tensor->dims[each.down.transposed ? 0 : 1];
    for (std::uint32_t split = own.begin; split < own.end; ++split) {
      auto down = Weights::Create({{.tensor = each.down.tensor,
                                    .rows = {0, static_cast<std::uint32_t>(outputs)},
                                    .map = {},
                                    .transposed = each.down.transposed}},
                                  {places[split]});
      if (!down.ok()) return down.status();
      expert.down.push_back(*std::move(down));
    }
  }
  return Keep<ExpertsHandle>(experts_, std::move(experts));
}

absl::StatusOr<HeadHandle> DeferredBackend::Device::AddHead(const worker::HeadSource& source) {
  HeadWeights head{.hidden = static_cast<std::int64_t>(source.part.tensor->dims[0]),
                   .vocabulary = source.vocabulary,
                   .shard = source.shard,
                   .weights = std::nullopt,
                   .bias = source.bias,
                   .factor = source.factor,
                   .softcap = source.softcap};
  if (source.part.rows.size() > 0) {
    auto weights = Weights::Create({source.part});
    if (!weights.ok()) return weights.status();
    head.weights = *std::move(weights);
  }
  const std::int64_t end = source.shard.first_token + head.tokens();
  const std::int64_t sum =
      std::accumulate(source.shard.subtrees.begin(), source.shard.subtrees.end(), std::int64_t{0});
  if (sum != head.tokens() || end > head.vocabulary || (alone() && sum != head.vocabulary)) {
    return Misfit("the head's rows are not the tokens of its shard");
  }
  return Keep<HeadHandle>(heads_, std::move(head));
}

absl::Status DeferredBackend::Device::Load() {
  absl::Status status;
  for (auto& [handle, matrix] : matrices_) status.Update(matrix.weights.Load());
  for (auto& [handle, matrices] : head_matrices_) {
    for (Weights& matrix : matrices) status.Update(matrix.Load());
  }
  for (auto& [handle, projection] : projections_) {
    for (SubtreeProduct& product : projection.products) status.Update(product.weights.Load());
  }
  for (auto& [handle, experts] : experts_) {
    status.Update(experts.router.Load());
    if (experts.shared_router.has_value()) status.Update(experts.shared_router->Load());
    for (Experts::Expert& expert : experts.experts) {
      status.Update(expert.gate_up.Load());
      for (Weights& down : expert.down) status.Update(down.Load());
    }
  }
  for (auto& [handle, head] : heads_) {
    if (head.weights.has_value()) status.Update(head.weights->Load());
  }
  return status;
}

absl::Status DeferredBackend::Device::CreateKv(const worker::KvShape& shape, std::uint32_t blocks,
                                               std::size_t tiers) {
  if (absl::Status s = CheckMemory(shape, blocks); !s.ok()) return s;
  kv_shape_ = shape;
  block_count_ = blocks;
  slots_.resize(tiers);
  return absl::OkStatus();
}

std::int64_t DeferredBackend::Device::weight_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [handle, matrix] : matrices_) bytes += matrix.weights.bytes();
  for (const auto& [handle, matrices] : head_matrices_) {
    for (const Weights& matrix : matrices) bytes += matrix.bytes();
  }
  for (const auto& [handle, projection] : projections_) {
    for (const SubtreeProduct& product : projection.products) bytes += product.weights.bytes();
  }
  for (const auto& [handle, experts] : experts_) {
    bytes += experts.router.bytes();
    for (const Experts::Expert& expert : experts.experts) {
      bytes += expert.gate_up.bytes();
      for (const Weights& down : expert.down) bytes += down.bytes();
    }
  }
  for (const auto& [handle, head] : heads_) {
    if (head.weights.has_value()) bytes += head.weights->bytes();
  }
  return bytes;
}

std::int64_t DeferredBackend::Device::buffer_bytes() const {
  std::int64_t floats = 0;
  for (const auto& [handle, buffer] : buffers_) {
    floats += (buffer.width + kRowPadding) * options_.max_rows;
  }
  return floats * static_cast<std::int64_t>(sizeof(float));
}

// ---- A step.

absl::Status DeferredBackend::Device::Begin(Step& step) {
  step_ = &step;
  if (absl::Status s = CheckInputs(); !s.ok()) return s;
  for (auto& [handle, buffer] : buffers_) {
    const auto width = static_cast<std::size_t>(buffer.width + kRowPadding);
    buffer.rows.assign(rows(), std::vector<float>(width, kNaN));
  }
  for (const BlockId block : inputs().granted) kv_.erase(block.value());
  for (const BlockCopy& copy : inputs().copies) {
    Copy(kv_, copy.from.value(), kv_, copy.to.value());
  }
  return absl::OkStatus();
}

void DeferredBackend::Device::End() {
  for (auto& [handle, buffer] : buffers_) buffer.Poison();
  form_ = {};
  routed_ = {};
  routes_.clear();
  step_ = nullptr;
}

absl::Status DeferredBackend::Device::CheckInputs() const {
  const StepInputs& in = inputs();
  if (in.rows() > options_.max_rows || in.positions.size() != in.tokens.size()) {
    return Misfit(absl::StrCat("a step of ", in.rows(), " rows"));
  }
  for (const BlockId block : in.granted) {
    if (!HasBlock(block)) return Misfit("a granted block");
  }
  for (const BlockCopy& copy : in.copies) {
    if (!HasBlock(copy.from) || !HasBlock(copy.to)) return Misfit("a block to copy");
  }
  if (in.table_begins.size() != in.sequences.size() * in.group_count) return Misfit("block tables");
  std::int32_t row = 0;
  for (std::size_t i = 0; i < in.sequences.size(); ++i) {
    if (in.sequences[i].row_begin != row || in.sequences[i].row_count < 1) {
      return Misfit("the rows of a sequence");
    }
    row += in.sequences[i].row_count;
    if (row > in.rows()) return Misfit("sequences have more rows than the step");
    if (absl::Status s = CheckSequence(i); !s.ok()) return s;
  }
  if (row != in.rows()) return Misfit("the step has more rows than its sequences");
  return CheckRequests();
}

absl::Status DeferredBackend::Device::CheckSequence(std::size_t index) const {
  const StepInputs& in = inputs();
  const StepSequence& sequence = in.sequences[index];
  const std::int64_t length = std::int64_t{sequence.first_position} + sequence.row_count;
  if (sequence.first_position < 0 || length > options_.max_positions) {
    return Misfit(absl::StrCat("a sequence of ", length, " positions"));
  }
  for (std::int32_t i = 0; i < sequence.row_count; ++i) {
    if (in.positions[static_cast<std::size_t>(sequence.row_begin + i)] !=
        sequence.first_position + i) {
      return Misfit("the positions of a sequence");
    }
  }
  const std::int64_t blocks = (length + kKvBlockTokens - 1) / kKvBlockTokens;
  for (std::size_t group = 0; group < in.group_count; ++group) {
    const std::int64_t begin = in.table_begins[index * in.group_count + group];
    if (begin < 0 || begin + blocks > static_cast<std::int64_t>(in.block_ids.size())) {
      return Misfit("a block table");
    }
    for (std::int64_t i = begin; i < begin + blocks; ++i) {
      const std::int32_t block = in.block_ids[static_cast<std::size_t>(i)];
      if (block < 0 || !HasBlock(BlockId(static_cast<std::uint32_t>(block)))) {
        return Misfit("a block of a table");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::CheckRequests() const {
  std::int32_t row = 0;
  for (const RowRequest& request : inputs().requests) {
    if (request.row < row || request.row >= inputs().rows()) return Misfit("the row of a request");
    row = request.row;
    if (request.edits_begin < 0 || request.edits_begin > request.edits_end ||
        request.edits_end > static_cast<std::int64_t>(inputs().edits.size())) {
      return Misfit("the edits of a request");
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::MakeCopy(const BackgroundCopy& copy) {
  if (copy.tier >= slots_.size()) return Misfit("the tier of a background copy");
  Blocks& slots = slots_[copy.tier];
  for (const BackgroundCopy::Move& move : copy.moves) {
    if (!HasBlock(move.block)) return Misfit("the block of a background copy");
    if (copy.kind == BackgroundCopy::Kind::kOut) {
      Copy(kv_, move.block.value(), slots, move.slot);
    } else {
      Copy(slots, move.slot, kv_, move.block.value());
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::Embed(EmbeddingHandle table_handle, BufferHandle out_handle) {
  const worker::EmbeddingSource& source = embeddings_.at(table_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const auto fits = [&](const model::Tensor* table, std::int64_t row) {
    return row >= 0 && static_cast<std::uint64_t>(row) < table->dims[1] &&
           static_cast<std::int64_t>(table->dims[0]) == out.width;
  };
  out.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    const TokenId token = inputs().tokens[row].id;
    if (!fits(source.table, token)) return Misfit("token vectors");
    float* const to = out.rows[row].data();
    if (absl::Status s = DecodeRow(*source.table, token, to); !s.ok()) return s;
    if (source.factor != 1) Reference().scale(to, source.factor, out.width);
    if (source.positions == nullptr) continue;
    const std::int64_t position = std::int64_t{inputs().positions[row]} + source.position_offset;
    if (!fits(source.positions, position)) return Misfit("vectors of positions");
    std::vector<float> vector(static_cast<std::size_t>(out.width));
    if (absl::Status s = DecodeRow(*source.positions, position, vector.data()); !s.ok()) return s;
    Reference().add(vector.data(), to, out.width);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::ReceiveResidual(BufferHandle handle) {
  if (options_.exchange == nullptr) return Misfit("a rank without an exchange receives");
  Buffer& x = buffers_.at(handle.index());
  std::vector<float> all(rows() * static_cast<std::size_t>(x.width), kNaN);
  options_.exchange->ReceiveResidual(all.data(), static_cast<std::int64_t>(all.size()));
  x.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    std::copy_n(all.data() + static_cast<std::int64_t>(row) * x.width, x.width, x.rows[row].data());
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::SendResidual(BufferHandle handle) {
  if (options_.exchange == nullptr) return Misfit("a rank without an exchange sends");
  const Buffer& x = buffers_.at(handle.index());
  std::vector<float> all;
  for (const std::vector<float>& row : x.rows) {
    all.insert(all.end(), row.begin(), row.begin() + x.width);
  }
  options_.exchange->SendResidual(all.data(), static_cast<std::int64_t>(all.size()));
  return absl::OkStatus();
}

std::vector<float> DeferredBackend::Device::Normed(const NormOp& norm, const float* x,
                                                   std::int64_t n,
                                                   std::int64_t first_weight) const {
  std::vector<float> out(static_cast<std::size_t>(n), kNaN);
  const float* const weight = DataOf(norm.weight) + first_weight;
  if (norm.spec.kind == model::NormKind::kRms) {
    Reference().rms_norm({.x = x,
                          .x_stride = n,
                          .weight = weight,
                          .n = static_cast<int>(n),
                          .eps = norm.spec.eps,
                          .out = out.data(),
                          .out_stride = n},
                         0, 1);
  } else {
    Reference().layer_norm({.x = x,
                            .x_stride = n,
                            .weight = weight,
                            .bias = DataOf(norm.bias),
                            .n = static_cast<int>(n),
                            .eps = norm.spec.eps,
                            .out = out.data(),
                            .out_stride = n},
                           0, 1);
  }
  return out;
}

absl::Status DeferredBackend::Device::NormInPlace(BufferHandle handle, const NormOp& norm) {
  Buffer& x = buffers_.at(handle.index());
  if (x.width != SizeOf(norm)) return Misfit("NormInPlace");
  for (std::vector<float>& row : x.rows) {
    const std::vector<float> normed = Normed(norm, row.data(), x.width);
    std::copy(normed.begin(), normed.end(), row.begin());
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::NormFor(BufferHandle x_handle,
                                              const std::optional<NormOp>& norm, MatrixHandle next,
                                              BufferHandle out) {
  const Buffer& x = buffers_.at(x_handle.index());
  const MixedWeights& matrix = matrices_.at(next.index()).weights;
  if ((norm.has_value() && x.width != SizeOf(*norm)) || matrix.k() != Whole(x.width) ||
      buffers_.at(out.index()).width < matrix.k()) {
    return Misfit("Norm");
  }
  form_ = {.buffer = out, .matrix = next, .rows = {}};
  for (const std::vector<float>& row : x.rows) {
    std::vector<float> normed = norm.has_value() ? Normed(*norm, row.data(), x.width) : row;
    normed.resize(static_cast<std::size_t>(x.width));
    normed.resize(static_cast<std::size_t>(matrix.k()), 0.0f);
    form_.rows.push_back(matrix.OperandOf(options_.recipe, normed.data()));
  }
  buffers_.at(out.index()).Poison();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Operand>> DeferredBackend::Device::TakeForm(BufferHandle x,
                                                                       MatrixHandle matrix) {
  Form form = std::exchange(form_, {});
  if (form.buffer.index() != x.index() || form.matrix.index() != matrix.index()) {
    return absl::FailedPreconditionError("the last Norm was not for this product");
  }
  return std::move(form.rows);
}

absl::Status DeferredBackend::Device::Multiply(BufferHandle x, MatrixHandle handle,
                                               BufferHandle out_handle) {
  const Matrix& matrix = matrices_.at(handle.index());
  const std::int64_t columns = matrix.weights.columns();
  Buffer& out = buffers_.at(out_handle.index());
  if (out.width < columns) return Misfit("Multiply");
  auto operands = TakeForm(x, handle);
  if (!operands.ok()) return operands.status();
  out.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    matrix.weights.Multiply((*operands)[row], out.rows[row].data());
    if (!matrix.bias.empty()) {
      Reference().add(matrix.bias.data(), out.rows[row].data(), columns);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::GateUp(BufferHandle x, MatrixHandle handle,
                                             const worker::FfnOp& ffn, BufferHandle out_handle) {
  const Matrix& matrix = matrices_.at(handle.index());
  const std::int64_t columns = matrix.weights.columns();
  Buffer& out = buffers_.at(out_handle.index());
  if (out.width < columns || (ffn.gated && columns % 2 != 0)) return Misfit("GateUp");
  auto operands = TakeForm(x, handle);
  if (!operands.ok()) return operands.status();
  out.Poison();
  const std::int64_t width = ffn.gated ? columns / 2 : columns;
  std::vector<float> gate_up(static_cast<std::size_t>(columns));
  for (std::size_t row = 0; row < rows(); ++row) {
    matrix.weights.Multiply((*operands)[row], gate_up.data());
    if (!matrix.bias.empty()) Reference().add(matrix.bias.data(), gate_up.data(), columns);
    Reference().activate({.activation = ffn.activation,
                          .gate = gate_up.data(),
                          .up = ffn.gated ? gate_up.data() + width : nullptr,
                          .in_stride = columns,
                          .n = static_cast<int>(width),
                          .out = out.rows[row].data(),
                          .out_stride = width},
                         0, 1);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::RunProjection(BufferHandle x_handle, ProjectionHandle handle,
                                                    bool accumulate, BufferHandle out_handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  const Projection& projection = projections_.at(handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t columns = projection.columns;
  if (x.width < projection.inputs || out.width != columns) return Misfit("AddProjection");
  form_ = {};
  const auto part = static_cast<std::size_t>(columns) * rows();
  std::vector<float> sums(projection.products.size() * part, kNaN);
  float* sum = sums.data();
  for (const SubtreeProduct& product : projection.products) {
    for (const std::vector<float>& row : x.rows) {
      Operand operand = product.weights.OperandOf(options_.recipe, row.data() + product.first_k);
      product.weights.Multiply(operand, sum);
      sum += columns;
    }
  }
  absl::Status status = ShareSums(projection.tree, columns, sums, accumulate, out);
  if (!status.ok() || projection.bias.empty()) return status;
  for (std::size_t row = 0; row < rows(); ++row) {
    Reference().add(projection.bias.data(), out.rows[row].data(), columns);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::ShareSums(const worker::SumTree& tree, std::int64_t columns,
                                                const std::vector<float>& sums, bool accumulate,
                                                Buffer& out) {
  if (alone()) {
    const float* own = sums.data();
    AddParts(tree, columns, absl::MakeConstSpan(&own, 1), accumulate, out);
    return absl::OkStatus();
  }
  if (options_.exchange == nullptr) return Misfit("a rank of several without an exchange");
  std::copy(sums.begin(), sums.end(), options_.exchange->Partials());
  AddParts(tree, columns, options_.exchange->SharePartials(static_cast<std::int64_t>(sums.size())),
           accumulate, out);
  return absl::OkStatus();
}

void DeferredBackend::Device::AddParts(const worker::SumTree& tree, std::int64_t columns,
                                       absl::Span<const float* const> parts, bool accumulate,
                                       Buffer& out) const {
  const auto size = static_cast<std::size_t>(columns);
  std::vector<std::vector<float>> registers(tree.program.depth);
  for (std::size_t row = 0; row < rows(); ++row) {
    for (const worker::TreeStep& step : tree.program.steps) {
      if (step.load) {
        const worker::SumTree::Part& from = tree.parts[step.from];
        const float* sums = parts[from.rank] + (from.place * rows() + row) * size;
        registers[step.to].assign(sums, sums + size);
      } else {
        Reference().add(registers[step.to + 1].data(), registers[step.to].data(), columns);
      }
    }
    float* const to = out.rows[row].data();
    if (accumulate) {
      Reference().add(registers[0].data(), to, columns);
    } else {
      std::copy(registers[0].begin(), registers[0].end(), to);
    }
  }
}

// ---- A mixture of experts.

absl::Status DeferredBackend::Device::RouteRows(BufferHandle x_handle,
                                                const std::optional<NormOp>& norm,
                                                ExpertsHandle handle, BufferHandle out_handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  const Experts& experts = experts_.at(handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  if ((norm.has_value() && x.width != SizeOf(*norm)) || experts.hidden != x.width ||
      out.width != x.width || x_handle.index() == out_handle.index()) {
    return Misfit("RouteRows");
  }
  routed_ = handle;
  routes_.assign(rows(), {});
  const auto chosen = static_cast<std::size_t>(experts.spec.chosen);
  for (std::size_t row = 0; row < rows(); ++row) {
    std::vector<float>& to = out.rows[row];
    const float* const from = x.rows[row].data();
    const std::vector<float> normed =
        norm.has_value() ? Normed(*norm, from, x.width) : std::vector<float>(from, from + x.width);
    std::copy(normed.begin(), normed.end(), to.begin());
    Operand operand = experts.router.OperandOf(worker::Recipe::kFp32, to.data());
    std::vector<float> logits(static_cast<std::size_t>(experts.spec.experts), kNaN);
    experts.router.Multiply(operand, logits.data());
    if (!experts.router_bias.empty()) {
      Reference().add(experts.router_bias.data(), logits.data(), experts.spec.experts);
    }
    Route& route = routes_[row];
    route.ids.resize(chosen);
    route.weights.resize(chosen);
    Reference().choose_experts(
        {.logits = logits.data(),
         .stride = experts.spec.experts,
         .experts = static_cast<int>(experts.spec.experts),
         .chosen = static_cast<int>(chosen),
         .scores = experts.spec.scores,
         .bias = experts.choice_bias.empty() ? nullptr : experts.choice_bias.data(),
         .groups = static_cast<int>(experts.spec.groups),
         .kept_groups = static_cast<int>(experts.spec.kept_groups),
         .group_pairs = experts.spec.group_pairs,
         .normalised = experts.spec.normalised,
         .factor = experts.spec.factor,
         .ids = route.ids.data(),
         .weights = route.weights.data()},
        0, 1);
    if (experts.shared_router.has_value()) {
      experts.shared_router->Multiply(operand, &route.shared_logit);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::GateUpExperts(BufferHandle x_handle, ExpertsHandle handle,
                                                    const worker::FfnOp& ffn,
                                                    BufferHandle out_handle) {
  const Experts& experts = experts_.at(handle.index());
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t columns = experts.experts.front().gate_up.columns();
  const std::int64_t width = ffn.gated ? columns / 2 : columns;
  if (routed_.index() != handle.index()) return Misfit("the rows are not routed");
  if (x.width != experts.hidden || out.width < columns * experts.spec.chosen) {
    return Misfit("GateUpExperts");
  }
  out.Poison();
  std::vector<float> gate_up(static_cast<std::size_t>(columns));
  for (std::size_t row = 0; row < rows(); ++row) {
    for (std::size_t i = 0; i < routes_[row].ids.size(); ++i) {
      const Experts::Expert& expert =
          experts.experts[static_cast<std::size_t>(routes_[row].ids[i])];
      Operand operand = expert.gate_up.OperandOf(options_.recipe, x.rows[row].data());
      expert.gate_up.Multiply(operand, gate_up.data());
      if (!expert.bias.empty()) Reference().add(expert.bias.data(), gate_up.data(), columns);
      Reference().activate({.activation = ffn.activation,
                            .gate = gate_up.data(),
                            .up = ffn.gated ? gate_up.data() + width : nullptr,
                            .in_stride = columns,
                            .n = static_cast<int>(width),
                            .out = out.rows[row].data() + static_cast<std::int64_t>(i) * columns,
                            .out_stride = width},
                           0, 1);
    }
  }
  return absl::OkStatus();
}

std::vector<float> DeferredBackend::Device::MixRow(const Experts& experts,
                                                   const worker::TreeProgram& program,
                                                   const Route& route, const float* x,
                                                   std::int64_t x_stride) const {
  std::vector<std::vector<float>> registers(program.depth);
  std::vector<float> partial(static_cast<std::size_t>(experts.hidden));
  for (const worker::TreeStep& step : program.steps) {
    std::vector<float>& sum = registers[step.to];
    if (!step.load) {
      Reference().add(registers[step.to + 1].data(), sum.data(), experts.hidden);
      continue;
    }
    sum.assign(partial.size(), 0.0f);
    for (std::size_t i = 0; i < route.ids.size(); ++i) {
      const Weights& down = experts.experts[static_cast<std::size_t>(route.ids[i])].down[step.from];
      Operand operand =
          down.OperandOf(options_.recipe, x + static_cast<std::int64_t>(i) * x_stride +
                                              experts.splits[step.from].at);
      down.Multiply(operand, partial.data());
      Reference().add_scaled(partial.data(), route.weights[i], sum.data(), experts.hidden);
    }
  }
  return std::move(registers.front());
}

absl::Status DeferredBackend::Device::RunMixture(BufferHandle x_handle, ExpertsHandle handle,
                                                 bool accumulate, BufferHandle out_handle) {
  const Experts& experts = experts_.at(handle.index());
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t x_stride = experts.experts.front().gate_up.columns();
  if (routed_.index() != handle.index()) return Misfit("the rows are not routed");
  if (out.width != experts.hidden || x.width < x_stride * experts.spec.chosen ||
      x_stride < experts.inputs()) {
    return Misfit("the mixture");
  }
  form_ = {};
  std::vector<float> sums;
  for (const worker::TreeProgram& program : experts.products) {
    for (std::size_t row = 0; row < rows(); ++row) {
      const std::vector<float> sum =
          MixRow(experts, program, routes_[row], x.rows[row].data(), x_stride);
      sums.insert(sums.end(), sum.begin(), sum.end());
    }
  }
  absl::Status status = ShareSums(experts.tree, experts.hidden, sums, accumulate, out);
  if (!status.ok() || experts.experts.front().down_bias.empty()) return status;
  for (std::size_t row = 0; row < rows(); ++row) {
    for (std::size_t i = 0; i < routes_[row].ids.size(); ++i) {
      const auto expert = static_cast<std::size_t>(routes_[row].ids[i]);
      Reference().add_scaled(experts.experts[expert].down_bias.data(), routes_[row].weights[i],
                             out.rows[row].data(), experts.hidden);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::ScaleShared(ExpertsHandle handle, BufferHandle x_handle) {
  Buffer& x = buffers_.at(x_handle.index());
  if (routed_.index() != handle.index()) return Misfit("the rows are not routed");
  for (std::size_t row = 0; row < rows(); ++row) {
    const float factor = 1.0f / (1.0f + kernels::Exp(-routes_[row].shared_logit));
    Reference().scale(x.rows[row].data(), factor, x.width);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::AddScaled(BufferHandle x_handle, float factor,
                                                BufferHandle residual_handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& residual = buffers_.at(residual_handle.index());
  if (x.width != residual.width) return Misfit("AddScaled");
  for (std::size_t row = 0; row < rows(); ++row) {
    Reference().add_scaled(x.rows[row].data(), factor, residual.rows[row].data(), x.width);
  }
  return absl::OkStatus();
}

// ---- Attention.

absl::Status DeferredBackend::Device::CheckAttention(const AttentionOp& attention,
                                                     const Buffer& qkv) const {
  const std::int64_t keys = std::int64_t{attention.projected_heads} + attention.projected_kv_heads;
  const std::int64_t values = attention.dims.prefix ? 0 : attention.kv_heads;
  const bool rotates = attention.rope.valid();
  const bool fits = attention.kv_heads == kv_shape_.kv_heads && attention.kv_heads > 0 &&
                    attention.heads % attention.kv_heads == 0 && attention.dims == kv_shape_.dims &&
                    attention.head_dim <= attention.dims.key &&
                    attention.result_dim <= attention.dims.value && attention.layer >= 0 &&
                    attention.layer < kv_shape_.layers &&
                    attention.first_head + attention.heads <= attention.projected_heads &&
                    attention.first_kv_head + attention.kv_heads <= attention.projected_kv_heads &&
                    attention.head_places.size() == static_cast<std::size_t>(attention.heads) &&
                    attention.group.value() < inputs().group_count &&
                    (!rotates || attention.rope_at + ropes_.at(attention.rope.index()).dim() <=
                                     attention.dims.key) &&
                    qkv.width >= keys * attention.dims.key + values * attention.dims.value;
  return fits ? absl::OkStatus() : Misfit("attention");
}

void DeferredBackend::Device::NormHeads(const AttentionOp& attention, float* heads, int count,
                                        const NormOp& norm) const {
  const bool all = attention.head_norms == model::HeadNorms::kAllHeads;
  const int n = attention.head_dim * (all ? count : 1);
  for (int i = 0; i < (all ? 1 : count); ++i) {
    const int own = attention.head_norms == model::HeadNorms::kOwn ? i * n : 0;
    float* const head = heads + i * (all ? n : attention.dims.key);
    const std::vector<float> normed = Normed(norm, head, n, own);
    std::copy(normed.begin(), normed.end(), head);
  }
}

std::vector<float> DeferredBackend::Device::MultiplyHead(const Weights& matrix,
                                                         const float* x) const {
  Operand operand = matrix.OperandOf(options_.recipe, x);
  std::vector<float> out(static_cast<std::size_t>(matrix.columns()), kNaN);
  matrix.Multiply(operand, out.data());
  return out;
}

absl::Status DeferredBackend::Device::Absorb(const worker::LatentOp& op, BufferHandle queries,
                                             BufferHandle latent, BufferHandle out_handle) {
  const HeadMatrices& keys = head_matrices_.at(op.keys.index());
  const Buffer &q = buffers_.at(queries.index()), &c = buffers_.at(latent.index());
  Buffer& out = buffers_.at(out_handle.index());
  const auto heads = static_cast<std::int64_t>(keys.size());
  const std::int64_t rank = keys.front().columns(), nope = keys.front().k(), rope = op.rope_dim;
  if (q.width < heads * (nope + rope) || c.width < rank + rope || SizeOf(op.norm) != rank ||
      out.width < (heads + 1) * (rank + rope)) {
    return Misfit("Absorb");
  }
  out.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    const float* query = q.rows[row].data();
    float* to = out.rows[row].data();
    for (const Weights& matrix : keys) {
      const std::vector<float> absorbed = MultiplyHead(matrix, query);
      to = std::copy(absorbed.begin(), absorbed.end(), to);
      to = std::copy_n(query + nope, rope, to);
      query += nope + rope;
    }
    const float* const own = c.rows[row].data();
    const std::vector<float> normed = Normed(op.norm, own, rank);
    to = std::copy(normed.begin(), normed.end(), to);
    std::copy_n(own + rank, rope, to);
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::MultiplyHeads(BufferHandle x_handle,
                                                    HeadMatricesHandle handle,
                                                    const std::vector<std::int32_t>& places,
                                                    BufferHandle out_handle) {
  const HeadMatrices& matrices = head_matrices_.at(handle.index());
  const Buffer& x = buffers_.at(x_handle.index());
  Buffer& out = buffers_.at(out_handle.index());
  const std::int64_t k = matrices.front().k(), columns = matrices.front().columns();
  const bool outside = std::any_of(places.begin(), places.end(), [&](std::int32_t place) {
    return place < 0 || place + columns > out.width;
  });
  if (outside || places.size() != matrices.size() || x_handle.index() == out_handle.index() ||
      x.width < static_cast<std::int64_t>(matrices.size()) * k) {
    return Misfit("MultiplyHeads");
  }
  out.Poison();
  for (std::size_t row = 0; row < rows(); ++row) {
    std::fill_n(out.rows[row].begin(), out.width, 0.0f);
    for (std::size_t head = 0; head < matrices.size(); ++head) {
      const std::vector<float> sums =
          MultiplyHead(matrices[head], x.rows[row].data() + static_cast<std::int64_t>(head) * k);
      std::copy(sums.begin(), sums.end(), out.rows[row].begin() + places[head]);
    }
  }
  return absl::OkStatus();
}

absl::Status DeferredBackend::Device::RopeAndStore(const AttentionOp& attention,
                                                   BufferHandle handle) {
  Buffer& qkv = buffers_.at(handle.index());
  if (absl::Status s = CheckAttention(attention, qkv); !s.ok()) return s;
  const int dim = attention.dims.key;
  const bool norms = attention.head_norms != model::HeadNorms::kNone;
  const auto size = [&](int heads) {
    if (attention.head_norms == model::HeadNorms::kShared) {
      return std::int64_t{attention.head_dim};
    }
    return std::int64_t{heads} * attention.head_dim;
  };
  if (norms && (SizeOf(attention.query_norm) != size(attention.projected_heads) ||
                SizeOf(attention.key_norm) != size(attention.projected_kv_heads))) {
    return Misfit("the norms of heads");
  }
  for (std::size_t s = 0; s < inputs().sequences.size(); ++s) {
    const StepSequence& sequence = inputs().sequences[s];
    const std::int32_t* table = inputs().table(s, attention.group);
    for (int i = 0; i < sequence.row_count; ++i) {
      const auto row = static_cast<std::size_t>(sequence.row_begin + i);
      const int position = sequence.first_position + i;
      float* const q = qkv.rows[row].data();
      float* const k = q + attention.projected_heads * dim;
      float* const v = k + attention.projected_kv_heads * dim;
      if (norms) {
        NormHeads(attention, q, attention.projected_heads, attention.query_norm);
        NormHeads(attention, k, attention.projected_kv_heads, attention.key_norm);
      }
      if (attention.rope.valid()) {
        const kernels::RopeTable& rope = ropes_.at(attention.rope.index());
        Reference().rope({.x = q + attention.rope_at,
                          .token_stride = qkv.width,
                          .heads = attention.projected_heads + attention.projected_kv_heads,
                          .head_stride = dim,
                          .dim = rope.dim(),
                          .positions = &inputs().positions[row],
                          .table = rope.data()},
                         0, 1);
      }
      const auto block = static_cast<std::uint32_t>(table[position / kKvBlockTokens]);
      for (int head = 0; head < attention.kv_heads; ++head) {
        WriteKv(block, PlaneOf(attention, head), position % kKvBlockTokens,
                k + (attention.first_kv_head + head) * dim, v + head * attention.dims.value);
      }
    }
  }
  return absl::OkStatus();
}

void DeferredBackend::Device::WriteKv(std::uint32_t id, std::size_t plane, int slot, const float* k,
                                      const float* v) {
  const auto dim = static_cast<std::size_t>(kv_shape_.dims.key),
             value_dim = static_cast<std::size_t>(kv_shape_.dims.value);
  Block& block = kv_[id];
  const bool has_v = !kv_shape_.dims.prefix;
  if (block.empty()) {
    const std::vector<float> keys(kKvBlockTokens * dim, kNaN),
        values(has_v ? kKvBlockTokens * value_dim : 0, kNaN);
    block.resize(static_cast<std::size_t>(kv_shape_.layers * kv_shape_.kv_heads), {keys, values});
  }
  float* const keys = block[plane].keys.data() + static_cast<std::size_t>(slot) * dim;
  for (std::size_t d = 0; d < dim; ++d) keys[d] = Rounded(kv_shape_.format, k[d]);
  if (!has_v) return;
  float* const values = block[plane].values.data() + static_cast<std::size_t>(slot) * value_dim;
  for (std::size_t d = 0; d < value_dim; ++d) {
    values[d] = Rounded(kv_shape_.format, v[d]);
    // kv_write does the same to the other half of a pair.
    if (kv_shape_.format == kernels::KvFormat::kBf16 && slot % 2 == 0) {
      values[value_dim + d] = 0;
    }
  }
}

std::vector<DeferredBackend::Device::Line> DeferredBackend::Device::GatherKv(
    const std::int32_t* table, int count, std::size_t plane) const {
  const kernels::KvFormat format = kv_shape_.format;
  const kernels::KvDims& dims = kv_shape_.dims;
  const std::int64_t record = kernels::KvRecordBytes(format, dims);
  std::vector<Line> lines(static_cast<std::size_t>(count * record) / sizeof(Line));
  // All ones is NaN in both formats.
  std::memset(lines.data(), 0xFF, lines.size() * sizeof(Line));
  for (int i = 0; i < count; ++i) {
    const auto block = kv_.find(static_cast<std::uint32_t>(table[i]));
    if (block == kv_.end()) continue;
    std::byte* const keys = lines.front().bytes + i * record;
    std::byte* const values = keys + kernels::KvValueOffset(format, dims);
    const Plane& from = block->second[plane];
    for (int slot = 0; slot < kKvBlockTokens; ++slot) {
      for (int d = 0; d < dims.key; ++d) {
        StoreElement(format, keys, kernels::KvKeyIndex(format, slot, d),
                     from.keys[static_cast<std::size_t>(slot * dims.key + d)]);
      }
      for (int d = 0; !from.values.empty() && d < dims.value; ++d) {
        StoreElement(format, values, kernels::KvValueIndex(format, dims.value, slot, d),
                     from.values[static_cast<std::size_t>(slot * dims.value + d)]);
      }
    }
  }
  return lines;
}

absl::Status DeferredBackend::Device::Attend(const AttentionOp& attention, BufferHandle in,
                                             BufferHandle out_handle) {
  const Buffer& qkv = buffers_.at(in.index());
  Buffer& out = buffers_.at(out_handle.index());
  if (absl::Status s = CheckAttention(attention, qkv); !s.ok()) return s;
  const int dim = attention.dims.key, group = attention.heads / attention.kv_heads;
  for (const std::int32_t place : attention.head_places) {
    if (place < 0 || place + attention.result_dim > out.width) return Misfit("the places of heads");
  }
  if (in.index() == out_handle.index()) return Misfit("Attend");
  out.Poison();
  for (std::vector<float>& row : out.rows) std::fill_n(row.begin(), out.width, 0.0f);
  for (std::size_t s = 0; s < inputs().sequences.size(); ++s) {
    const StepSequence& sequence = inputs().sequences[s];
    const int keys = sequence.first_position + sequence.row_count;
    const int blocks = (keys + kKvBlockTokens - 1) / kKvBlockTokens;
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));  // of the gathered blocks
    std::iota(table.begin(), table.end(), 0);
    for (int kv_head = 0; kv_head < attention.kv_heads; ++kv_head) {
      std::vector<Line> records =
          GatherKv(inputs().table(s, attention.group), blocks, PlaneOf(attention, kv_head));
      for (int i = 0; i < sequence.row_count * group; ++i) {
        const int token = i / group, head = kv_head * group + i % group;
        const auto row = static_cast<std::size_t>(sequence.row_begin + token);
        const float *const slopes = DataOf(attention.slopes), *const sinks =
                                                                  DataOf(attention.sinks);
        kernels::AttentionArgs args{
            .cache = {},
            .kv_head = 0,
            .first_position = sequence.first_position + token,
            .heads = 1,
            .q = qkv.rows[row].data() + (attention.first_head + head) * dim,
            .q_stride = qkv.width,
            .scale = attention.scale,
            .window = attention.window,
            .softcap = attention.softcap,
            .slopes = slopes == nullptr ? nullptr : slopes + head,
            .sinks = sinks == nullptr ? nullptr : sinks + head,
            .out_dim = attention.result_dim,
            .out = out.rows[row].data() + attention.head_places[static_cast<std::size_t>(head)],
            .out_stride = out.width};
        args.cache.format = kv_shape_.format;
        args.cache.dims = attention.dims;
        args.cache.base = records.front().bytes;
        args.cache.block_stride = kernels::KvRecordBytes(kv_shape_.format, attention.dims);
        args.cache.block_table = table.data();
        Reference().paged_attention(args, 0, 1);
      }
    }
  }
  return absl::OkStatus();
}

// ---- The head.

absl::Status DeferredBackend::Device::Head(BufferHandle x_handle, const NormOp& norm,
                                           HeadHandle handle) {
  const Buffer& x = buffers_.at(x_handle.index());
  const HeadWeights& head = heads_.at(handle.index());
  if (x.width != head.hidden || SizeOf(norm) != head.hidden) {
    return Misfit("Head");
  }
  form_ = {};
  const absl::Span<const RowRequest> requests = inputs().requests;
  for (std::size_t first = 0; first < requests.size(); first += kLogitRows) {
    const absl::Span<const RowRequest> tile = requests.subspan(first, kLogitRows);
    std::vector<std::vector<float>> logits;  // of the shard
    for (const RowRequest& request : tile) {
      logits.emplace_back(static_cast<std::size_t>(head.tokens()), kNaN);
      if (!head.weights.has_value()) continue;
      const float* const row = x.rows[static_cast<std::size_t>(request.row)].data();
      Operand operand = head.weights->OperandOf(options_.recipe, Normed(norm, row, x.width).data());
      float* const out = logits.back().data();
      head.weights->Multiply(operand, out);
      if (!head.bias.empty()) Reference().add(head.bias.data(), out, head.tokens());
      if (head.factor != 1) Reference().scale(out, head.factor, head.tokens());
      if (head.softcap != 0) Reference().softcap(out, head.softcap, head.tokens());
    }
    const bool any_full =
        std::any_of(tile.begin(), tile.end(), [](const RowRequest& r) { return r.full_row; });
    const float* const shared = any_full && !alone() ? ShareTile(head, first, logits) : nullptr;
    for (std::size_t i = 0; i < tile.size(); ++i) {
      const std::size_t request = first + i;
      if (!tile[i].full_row) {
        step_->partials[request] =
            Reduce(head.shard, logits[i], tile[i], inputs().edits_of(tile[i]));
        continue;
      }
      const bool own =
          inputs().full_rows_to_all || request % options_.tensor_ranks == options_.tensor_rank;
      if (!own) continue;
      const float* const row = alone() ? logits[i].data() : shared + i * head.vocabulary;
      absl::Status s = GiveRow(request, {row, static_cast<std::size_t>(head.vocabulary)});
      if (!s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

const float* DeferredBackend::Device::ShareTile(const HeadWeights& head, std::size_t first,
                                                const std::vector<std::vector<float>>& rows) {
  float* const tile = options_.exchange->Logits();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(),
              tile + static_cast<std::int64_t>(i) * head.vocabulary + head.shard.first_token);
  }
  options_.exchange->ShareLogits(
      static_cast<std::int64_t>(rows.size()),
      {.all = inputs().full_rows_to_all, .first_owner = static_cast<std::uint32_t>(first)});
  return tile;
}

absl::Status DeferredBackend::Device::GiveRow(std::size_t request, absl::Span<const float> logits) {
  if (step_->receiver == nullptr) {
    return absl::FailedPreconditionError("nobody takes the full rows of the step");
  }
  std::vector<float> row(logits.begin(), logits.end());
  step_->receiver->TakeRow(static_cast<int>(request), row);
  std::fill(row.begin(), row.end(), kNaN);
  return absl::OkStatus();
}

// ---- The queue.

DeferredBackend::DeferredBackend(const worker::BackendOptions& options,
                                 const DeferredOptions& deferred)
    : deferred_(deferred),
      exchange_(options.exchange),
      finishes_left_(std::make_shared<std::atomic<std::int64_t>>(kNeverFails)),
      random_(deferred.seed),
      device_(std::make_unique<Device>(options)),
      thread_([this] { Loop(); }) {}

DeferredBackend::~DeferredBackend() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  thread_.join();
}

void DeferredBackend::Loop() {
  while (true) {
    std::optional<PendingCopy> pending;
    Work work;
    bool skip = false;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &DeferredBackend::HasWork));
      if (stopped_) return;
      if (CopyIsDue()) {
        pending = std::move(copies_.front());
        copies_.pop_front();
        copying_ = true;
      } else {
        work = std::move(queue_.front());
        queue_.pop_front();
        skip = !work.always && !failure_.ok() && work.step >= failed_step_;
      }
    }
    if (pending.has_value()) {
      if (absl::Status s = device_->MakeCopy(pending->copy); !s.ok()) Fail(pending->step, s);
      absl::MutexLock lock(&mu_);
      copying_ = false;
      copies_done_.push_back(pending->copy.id);
    } else if (!skip) {
      if (absl::Status s = work.run(); !s.ok()) Fail(work.step, s);
    }
  }
}

void DeferredBackend::Fail(std::uint64_t step, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (!failure_.ok() && failed_step_ <= step) return;
  failure_ = status;
  failed_step_ = step;
  if (exchange_ != nullptr) exchange_->Abort();
}

void DeferredBackend::Misuse(std::string_view message) {
  Fail(last_step_, absl::FailedPreconditionError(absl::StrCat(
                       "the caller breaks the contract of Backend: ", std::string(message))));
}

void DeferredBackend::Push(Work work) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(work));
}

void DeferredBackend::Enqueue(std::string_view operation, bool valid,
                              std::function<absl::Status()> run) {
  const auto name = std::string(operation);
  if (!open_) return Misuse(absl::StrCat(name, " outside of a step"));
  if (steps_.back()->rows == 0) return Misuse(absl::StrCat(name, " in a step without rows"));
  if (!valid) return Misuse(absl::StrCat(name, " of a handle that names nothing of the kind"));
  Push({.step = last_step_, .always = false, .run = [name, run = std::move(run)] {
          const absl::Status status = run();
          return status.ok()
                     ? status
                     : absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
        }});
}

void DeferredBackend::Start(StepInputs inputs, worker::RowReceiver* receiver) {
  if (open_) Seal();
  ++last_step_;
  if (steps_.size() >= deferred_.max_started) {
    Misuse(absl::StrCat("more than ", deferred_.max_started, " steps are started"));
  }
  auto made = std::make_unique<Step>();
  Step* const step = made.get();
  step->rows = inputs.rows();
  step->partials.resize(inputs.requests.size());
  step->receiver = receiver;
  steps_.push_back(std::move(made));
  open_ = true;
  {
    absl::MutexLock lock(&mu_);
    CountDown();
    for (BackgroundCopy& copy : inputs.background) {
      copies_.push_back({.copy = std::move(copy),
                         .step = last_step_,
                         .calls_left = random_.Below(kMaxCopyCalls + 1)});
    }
  }
  step->inputs = std::move(inputs);
  // Such a step fails before its first operation.
  if (finishes_left_->load() <= static_cast<std::int64_t>(steps_.size())) {
    Fail(last_step_, absl::InternalError("the backend failed, as the test asked"));
  }
  Push({.step = last_step_,
        .always = true,
        .run = [this, step, number = last_step_, delay_us = random_.Below(kMaxDelayUs + 1)] {
          {
            absl::MutexLock lock(&mu_);
            mu_.AwaitWithTimeout(absl::Condition(&stopped_), absl::Microseconds(delay_us));
          }
          const absl::Status status = device_->Begin(*step);
          absl::MutexLock lock(&mu_);
          begun_steps_ = number;
          return status;
        }});
}

void DeferredBackend::Seal() {
  open_ = false;
  Push({.step = last_step_, .always = true, .run = [this, step = steps_.back().get()] {
          device_->End();
          absl::MutexLock lock(&mu_);
          step->done = true;
          return absl::OkStatus();
        }});
}

absl::StatusOr<std::vector<RowPartial>> DeferredBackend::Finish() {
  if (steps_.empty()) {
    Misuse("Finish of a step that is not started");
    absl::MutexLock lock(&mu_);
    return failure_;
  }
  if (steps_.size() == 1 && open_) Seal();
  const std::unique_ptr<Step> step = std::move(steps_.front());
  steps_.pop_front();
  const std::uint64_t number = last_step_ - steps_.size();
  if (finishes_left_->fetch_sub(1) <= 1) {
    Fail(number, absl::InternalError("the backend failed, as the test asked"));
  }
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&step->done));
  if (!failure_.ok() && failed_step_ <= number) return failure_;
  return std::move(step->partials);
}

void DeferredBackend::Embed(EmbeddingHandle table, BufferHandle out) {
  Enqueue("Embed", device_->Has(table) && device_->Has(out),
          [=, this] { return device_->Embed(table, out); });
}

void DeferredBackend::ReceiveResidual(BufferHandle x) {
  Enqueue("ReceiveResidual", device_->Has(x), [=, this] { return device_->ReceiveResidual(x); });
}

void DeferredBackend::SendResidual(BufferHandle x) {
  Enqueue("SendResidual", device_->Has(x), [=, this] { return device_->SendResidual(x); });
}

void DeferredBackend::NormInPlace(BufferHandle x, const NormOp& norm) {
  Enqueue("NormInPlace", device_->Has(x) && device_->Has(norm),
          [=, this] { return device_->NormInPlace(x, norm); });
}

void DeferredBackend::Norm(BufferHandle x, const NormOp& norm, MatrixHandle next,
                           BufferHandle out) {
  Enqueue("Norm", device_->Has(x) && device_->Has(norm) && device_->Has(next) && device_->Has(out),
          [=, this] { return device_->NormFor(x, norm, next, out); });
}

void DeferredBackend::Prepare(BufferHandle x, MatrixHandle next, BufferHandle out) {
  Enqueue("Prepare", device_->Has(x) && device_->Has(next) && device_->Has(out),
          [=, this] { return device_->NormFor(x, std::nullopt, next, out); });
}

void DeferredBackend::Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out) {
  Enqueue("Multiply", device_->Has(x) && device_->Has(matrix) && device_->Has(out),
          [=, this] { return device_->Multiply(x, matrix, out); });
}

void DeferredBackend::GateUp(BufferHandle x, MatrixHandle gate_up, const worker::FfnOp& ffn,
                             BufferHandle out) {
  Enqueue("GateUp", device_->Has(x) && device_->Has(gate_up) && device_->Has(out),
          [=, this] { return device_->GateUp(x, gate_up, ffn, out); });
}

void DeferredBackend::AddProjection(BufferHandle x, ProjectionHandle projection,
                                    BufferHandle residual) {
  Enqueue("AddProjection", device_->Has(x) && device_->Has(projection) && device_->Has(residual),
          [=, this] { return device_->RunProjection(x, projection, true, residual); });
}

void DeferredBackend::Project(BufferHandle x, ProjectionHandle projection, BufferHandle out) {
  Enqueue("Project", device_->Has(x) && device_->Has(projection) && device_->Has(out),
          [=, this] { return device_->RunProjection(x, projection, false, out); });
}

void DeferredBackend::RouteRows(BufferHandle x, const std::optional<NormOp>& norm,
                                ExpertsHandle experts, BufferHandle out) {
  Enqueue("RouteRows",
          device_->Has(x) && (!norm.has_value() || device_->Has(*norm)) && device_->Has(experts) &&
              device_->Has(out),
          [=, this] { return device_->RouteRows(x, norm, experts, out); });
}

void DeferredBackend::GateUpExperts(BufferHandle x, ExpertsHandle experts, const worker::FfnOp& ffn,
                                    BufferHandle out) {
  Enqueue("GateUpExperts", device_->Has(x) && device_->Has(experts) && device_->Has(out),
          [=, this] { return device_->GateUpExperts(x, experts, ffn, out); });
}

void DeferredBackend::AddMixture(BufferHandle x, ExpertsHandle experts, BufferHandle residual) {
  Enqueue("AddMixture", device_->Has(x) && device_->Has(experts) && device_->Has(residual),
          [=, this] { return device_->RunMixture(x, experts, true, residual); });
}

void DeferredBackend::Mix(BufferHandle x, ExpertsHandle experts, BufferHandle out) {
  Enqueue("Mix", device_->Has(x) && device_->Has(experts) && device_->Has(out),
          [=, this] { return device_->RunMixture(x, experts, false, out); });
}

void DeferredBackend::ScaleShared(ExpertsHandle experts, BufferHandle x) {
  Enqueue("ScaleShared", device_->Has(experts) && device_->Has(x),
          [=, this] { return device_->ScaleShared(experts, x); });
}

void DeferredBackend::AddScaled(BufferHandle x, float factor, BufferHandle residual) {
  Enqueue("AddScaled", device_->Has(x) && device_->Has(residual),
          [=, this] { return device_->AddScaled(x, factor, residual); });
}

void DeferredBackend::Absorb(const worker::LatentOp& op, BufferHandle queries, BufferHandle latent,
                             BufferHandle qkv) {
  Enqueue("Absorb",
          device_->Has(op.keys) && device_->Has(op.norm) && device_->Has(queries) &&
              device_->Has(latent) && device_->Has(qkv),
          [=, this] { return device_->Absorb(op, queries, latent, qkv); });
}

void DeferredBackend::MultiplyHeads(BufferHandle x, HeadMatricesHandle matrices,
                                    const std::vector<std::int32_t>& places, BufferHandle out) {
  Enqueue("MultiplyHeads", device_->Has(x) && device_->Has(matrices) && device_->Has(out),
          [=, this] { return device_->MultiplyHeads(x, matrices, places, out); });
}

void DeferredBackend::RopeAndStore(const AttentionOp& attention, BufferHandle qkv) {
  Enqueue("RopeAndStore", device_->Has(attention) && device_->Has(qkv),
          [=, this] { return device_->RopeAndStore(attention, qkv); });
}

void DeferredBackend::Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out) {
  Enqueue("Attend", device_->Has(attention) && device_->Has(qkv) && device_->Has(out),
          [=, this] { return device_->Attend(attention, qkv, out); });
}

void DeferredBackend::Head(BufferHandle x, const NormOp& norm, HeadHandle head) {
  Enqueue("Head", device_->Has(x) && device_->Has(norm) && device_->Has(head),
          [=, this] { return device_->Head(x, norm, head); });
}

// ---- What is added before the first step.

absl::Status DeferredBackend::Check(const model::ModelSpec& spec) const {
  return kernels::CheckKvDims(worker::KvDimsOf(spec.attention()));
}

bool DeferredBackend::MayAdd(std::string_view what) {
  if (last_step_ == 0) return true;
  Misuse(absl::StrCat(std::string(what), " after the first step"));
  return false;
}

BufferHandle DeferredBackend::AddBuffer(std::int64_t width) {
  return MayAdd("AddBuffer") ? device_->AddBuffer(width) : BufferHandle();
}

VectorHandle DeferredBackend::AddVector(std::vector<float> values) {
  return MayAdd("AddVector") ? device_->AddVector(std::move(values)) : VectorHandle();
}

RopeHandle DeferredBackend::AddRope(const model::RopeSpec& rope) {
  return MayAdd("AddRope") ? device_->AddRope(rope) : RopeHandle();
}

EmbeddingHandle DeferredBackend::AddEmbedding(const worker::EmbeddingSource& source) {
  return MayAdd("AddEmbedding") ? device_->AddEmbedding(source) : EmbeddingHandle();
}

absl::StatusOr<MatrixHandle> DeferredBackend::AddMatrix(std::vector<worker::MatrixPart> parts,
                                                        std::vector<float> bias) {
  if (!MayAdd("AddMatrix")) return MatrixHandle();
  return device_->AddMatrix(std::move(parts), std::move(bias));
}

absl::StatusOr<HeadMatricesHandle> DeferredBackend::AddHeadMatrices(
    std::vector<worker::MatrixPart> parts) {
  if (!MayAdd("AddHeadMatrices")) return HeadMatricesHandle();
  return device_->AddHeadMatrices(std::move(parts));
}

absl::StatusOr<ProjectionHandle> DeferredBackend::AddProjection(
    const worker::ProjectionSource& source) {
  if (!MayAdd("AddProjection")) return ProjectionHandle();
  return device_->AddProjection(source);
}

absl::StatusOr<ExpertsHandle> DeferredBackend::AddExperts(const worker::ExpertsSource& source) {
  if (!MayAdd("AddExperts")) return ExpertsHandle();
  return device_->AddExperts(source);
}

absl::StatusOr<HeadHandle> DeferredBackend::AddHead(const worker::HeadSource& source) {
  if (!MayAdd("AddHead")) return HeadHandle();
  return device_->AddHead(source);
}

absl::Status DeferredBackend::Load() { return MayAdd("Load") ? device_->Load() : absl::OkStatus(); }

// ---- KV memory and tiers.

std::uint32_t DeferredBackend::DefaultBlockCount(const worker::KvShape&, const worker::KvShape&,
                                                 std::uint32_t one_sequence) const {
  constexpr std::uint32_t kBlocks = 4096;
  return std::max(kBlocks, one_sequence) + 1;
}

absl::Status DeferredBackend::CreateKv(const worker::KvShape& shape, std::uint32_t blocks,
                                       const worker::TierOptions& options) {
  if (!MayAdd("CreateKv")) return absl::OkStatus();
  std::vector<KvTier> tiers;
  if (options.host_blocks > 0) {
    if (absl::Status s = CheckMemory(shape, options.host_blocks); !s.ok()) return s;
    tiers.push_back({.kind = KvTier::Kind::kHost,
                     .block_count = options.host_blocks,
                     .out_ns_per_block = 2'000,
                     .in_ns_per_block = 1'000});
  }
  if (options.disk_blocks > 0) {
    const std::string directory = options.disk_directory.empty() ? "/tmp" : options.disk_directory;
    if (access(directory.c_str(), W_OK | X_OK) != 0) {
      return absl::UnavailableError(
          absl::StrCat("no file for KV blocks can be made in '", directory, "'"));
    }
    if (absl::Status s = CheckMemory(shape, options.disk_blocks); !s.ok()) return s;
    tiers.push_back({.kind = KvTier::Kind::kDisk,
                     .block_count = options.disk_blocks,
                     .out_ns_per_block = 20'000,
                     .in_ns_per_block = 10'000});
  }
  if (absl::Status s = device_->CreateKv(shape, blocks, tiers.size()); !s.ok()) return s;
  tiers_ = std::move(tiers);
  return absl::OkStatus();
}

void DeferredBackend::CountDown() {
  for (PendingCopy& pending : copies_) {
    if (pending.calls_left > 0) --pending.calls_left;
  }
}

absl::StatusOr<std::vector<std::uint64_t>> DeferredBackend::TakeCopiesDone(bool wait) {
  absl::MutexLock lock(&mu_);
  CountDown();
  if (wait) {
    if (copies_done_.empty() && !copies_.empty()) copies_.front().calls_left = 0;
    mu_.Await(absl::Condition(this, &DeferredBackend::HasNews));
  }
  std::sort(copies_done_.begin(), copies_done_.end());
  return std::exchange(copies_done_, {});
}

void DeferredBackend::ForgetCopies() {
  absl::MutexLock lock(&mu_);
  copies_.clear();
  mu_.Await(absl::Condition(this, &DeferredBackend::NoCopyRuns));
  copies_done_.clear();
}

// ---- The host's side.

void DeferredBackend::OnHost(std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) {
  std::atomic<std::int64_t> next{0};
  const auto run = [&] {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) fn(i);
  };
  if (count <= 0) return;
  std::thread first(run), second(run);
  first.join();
  second.join();
}

std::int64_t DeferredBackend::weight_bytes() const { return device_->weight_bytes(); }
std::int64_t DeferredBackend::buffer_bytes() const { return device_->buffer_bytes(); }

// ---- The maker.

int DeferredControl::made() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(made_.size());
}

void DeferredControl::FailAfter(std::int64_t n) {
  absl::MutexLock lock(&mu_);
  made_.back()->store(n);
}

void DeferredControl::Add(FinishesLeft finishes_left) {
  absl::MutexLock lock(&mu_);
  made_.push_back(std::move(finishes_left));
}

worker::BackendMaker MakeDeferredBackends(std::uint64_t seed, std::uint32_t max_started,
                                          std::shared_ptr<DeferredControl> control) {
  if (control == nullptr) control = std::make_shared<DeferredControl>();
  return [=](const worker::BackendOptions& options) {
    const auto number = static_cast<std::uint64_t>(control->made());
    auto backend = std::make_unique<DeferredBackend>(
        options, DeferredOptions{.seed = MixBits(seed + number) + options.tensor_rank,
                                 .max_started = max_started});
    control->Add(backend->finishes_left());
    return backend;
  };
}

}  // namespace flotilla::testing
