// This part of Device begins and ends a step, and has the operations that no other file has.
#include "tests/support/deferred_device.h"

#include "absl/strings/str_cat.h"

namespace flotilla::testing {
namespace {

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

}  // namespace

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
  const std::int64_t blocks = (length + kKvRecordTokens - 1) / kKvRecordTokens;
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

}  // namespace flotilla::testing
