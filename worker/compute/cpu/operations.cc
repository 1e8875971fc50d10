// The operations of CpuBackend: how each is cut over the threads of the pool.
#include <algorithm>

#include "worker/compute/cpu/cpu_backend.h"

namespace flotilla::worker {
namespace {

using kernels::kActivationGroup;
using kernels::kPanelColumns;
using kernels::MatrixView;

// From this many elements on, cutting rows over threads pays for the hand-over of about
// 2 us: 16 Ki elements of normalising and quantising take some 5 us.
constexpr int64_t kParallelElements = 16 * 1024;
// Query tokens of one attention item. With the heads of a group these are enough rows to
// keep the micro-kernel busy, and few enough for an even share of the work.
constexpr int kAttentionRows = 16;
// So many panels of gate and of up are made before their SiLU, while they are in L2.
constexpr int64_t kFusedPanels = 6;
// Registers of a tree over kMaxSplits splits, of columns that stay in L1.
constexpr int kTreeDepth = 10;
constexpr int64_t kTreeColumns = 256;
static_assert(kernels::kMaxSplits < 1 << (kTreeDepth - 1));

int64_t Panels(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

}  // namespace

void CpuBackend::Embed(EmbeddingHandle handle, BufferHandle out) {
  const model::Tensor& table = embeddings_[handle.index()];
  Buffer& x = At(out);
  const size_t row_bytes = table.data.size() / table.dims[1];
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      // This cannot fail: LoadSpec has checked type and size, GroupState the tokens.
      (void)model::DequantizeRow(table.type,
                                 table.data.subspan(inputs_.tokens[r].id * row_bytes, row_bytes),
                                 {x.data.data() + r * x.width, static_cast<size_t>(x.width)});
    }
  });
}

void CpuBackend::ReceiveResidual(BufferHandle x) {
  options_.exchange->ReceiveResidual(At(x).data.data(), rows() * At(x).width);
}

void CpuBackend::SendResidual(BufferHandle x) {
  options_.exchange->SendResidual(At(x).data.data(), rows() * At(x).width);
}

void CpuBackend::Norm(BufferHandle in, VectorHandle weight, float eps, MatrixHandle next,
                      BufferHandle out) {
  NoteMove();
  const MatrixView matrix = matrices_[next.index()]->view();
  Buffer& x = At(in);
  Buffer& normed = At(out);
  const kernels::RmsNormArgs norm{.x = x.data.data(),
                                  .x_stride = x.width,
                                  .weight = At(weight),
                                  .n = static_cast<int>(x.width),
                                  .eps = eps,
                                  .out = normed.data.data(),
                                  .out_stride = normed.width};
  const kernels::QuantizeArgs quantize = QuantizeFor({.matrix = matrix,
                                                      .x = normed.data.data(),
                                                      .x_stride = normed.width,
                                                      .out = nullptr,
                                                      .out_stride = 0,
                                                      .rows = rows()});
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    ops_.rms_norm(norm, static_cast<int>(begin), static_cast<int>(end));
    if (Quantizes(matrix)) {
      ops_.quantize_rows(quantize, static_cast<int>(begin), static_cast<int>(end));
    }
  });
}

void CpuBackend::Multiply(BufferHandle x, MatrixHandle handle, BufferHandle out) {
  const MatrixView matrix = matrices_[handle.index()]->view();
  const Product product{.matrix = matrix,
                        .x = At(x).data.data(),
                        .x_stride = At(x).width,
                        .out = At(out).data.data(),
                        .out_stride = At(out).width,
                        .rows = rows()};
  pool_.ParallelFor(matrix.panels(),
                    [&](int64_t begin, int64_t end) { MatMul(product, begin, end); });
}

void CpuBackend::GateUp(BufferHandle x, MatrixHandle handle, BufferHandle out) {
  const MatrixView matrix = matrices_[handle.index()]->view();
  const int64_t width = matrix.columns / 2, panels = Panels(width);
  Buffer& gate_up = At(out);
  const Product product{.matrix = matrix,
                        .x = At(x).data.data(),
                        .x_stride = At(x).width,
                        .out = gate_up.data.data(),
                        .out_stride = gate_up.width,
                        .rows = rows()};
  pool_.ParallelFor(panels, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p += kFusedPanels) {
      const int64_t last = std::min(p + kFusedPanels, end);
      MatMul(product, p, last);
      MatMul(product, panels + p, panels + last);
      const int64_t column = p * kPanelColumns;
      float* const gate = gate_up.data.data() + column;
      const kernels::SiluMulArgs args{
          .gate = gate,
          .up = gate + width,
          .in_stride = gate_up.width,
          .n = static_cast<int>(std::min(last * kPanelColumns, width) - column),
          .out = gate,
          .out_stride = gate_up.width};
      ops_.silu_mul(args, 0, rows());
    }
  });
}

void CpuBackend::AddProjection(BufferHandle in, ProjectionHandle handle, BufferHandle out) {
  const Projection& projection = projections_[handle.index()];
  const Buffer& x = At(in);
  Buffer& residual = At(out);
  const int64_t hidden = residual.width, panels = Panels(hidden);
  float* const outgoing = alone() ? nullptr : options_.exchange->Partials();
  const auto count = static_cast<int64_t>(projection.products.size());
  const auto product = [&](int64_t i) {
    const SplitProduct& split = projection.products[i];
    return Product{.matrix = projection.views[i],
                   .x = x.data.data() + split.first_k,
                   .x_stride = x.width,
                   .out = alone() ? residual.data.data() : outgoing + i * rows() * hidden,
                   .out_stride = hidden,
                   .accumulate = alone(),
                   .rows = rows(),
                   .first_k = split.first_k,
                   .first_split = split.first_split};
  };
  for (int64_t i = 0; i < count; ++i) Quantize(product(i));
  pool_.ParallelFor(count * panels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin / panels; i * panels < end; ++i) {
      MatMul(product(i), std::max(begin - i * panels, int64_t{0}),
             std::min(end - i * panels, panels));
    }
  });
  if (alone()) return;
  const auto parts = options_.exchange->SharePartials(count * rows() * hidden);
  ForRows(
      rows(), hidden * static_cast<int64_t>(projection.tree.parts.size()),
      [&](int64_t begin, int64_t end) { AddParts(projection.tree, parts, begin, end, residual); });
}

void CpuBackend::AddParts(const SumTree& tree, absl::Span<const float* const> parts, int64_t begin,
                          int64_t end, Buffer& residual) {
  const int64_t hidden = residual.width;
  float registers[kTreeDepth][kTreeColumns];
  for (int64_t at = begin * hidden; at < end * hidden; at += kTreeColumns) {
    const int64_t n = std::min(kTreeColumns, end * hidden - at);
    for (const TreeStep& step : tree.program.steps) {
      if (step.load) {
        const SumTree::Part& part = tree.parts[step.from];
        std::copy_n(parts[part.rank] + part.place * rows() * hidden + at, n, registers[step.to]);
      } else {
        ops_.add(registers[step.to + 1], registers[step.to], n);
      }
    }
    ops_.add(registers[0], residual.data.data() + at, n);
  }
}

void CpuBackend::RopeAndStore(const AttentionOp& attention, BufferHandle handle) {
  Buffer& qkv = At(handle);
  ForRows(rows(), qkv.width,
          [&](int64_t begin, int64_t end) { RopeAndStoreRows(attention, qkv, begin, end); });
}

void CpuBackend::RopeAndStoreRows(const AttentionOp& attention, Buffer& qkv, int64_t begin,
                                  int64_t end) {
  // Two tokens of a sequence whose V share a bf16 pair belong to one thread: a
  // range starts and ends at an even position or another sequence.
  const auto align = [&](int64_t row) {
    const bool splits_pair = row > 0 && row < rows() && inputs_.positions[row] % 2 == 1 &&
                             row_sequences_[row] == row_sequences_[row - 1];
    return splits_pair ? row + 1 : row;
  };
  begin = align(begin);
  end = align(end);
  if (begin >= end) return;

  if (attention.query_norm.valid()) NormHeads(attention, qkv, begin, end);
  const kernels::RopeArgs rope{.x = qkv.data.data(),
                               .token_stride = qkv.width,
                               .heads = attention.heads + attention.kv_heads,
                               .dim = attention.head_dim,
                               .positions = inputs_.positions.data(),
                               .table = ropes_[attention.rope.index()]->data()};
  ops_.rope(rope, static_cast<int>(begin), static_cast<int>(end));

  const int64_t query_width = int64_t{attention.heads} * attention.head_dim;
  const int64_t kv_width = int64_t{attention.kv_heads} * attention.head_dim;
  for (int64_t row = begin; row < end;) {
    const int index = row_sequences_[row];
    const StepSequence& sequence = inputs_.sequences[index];
    const int64_t last = std::min<int64_t>(end, sequence.row_begin + sequence.row_count);
    const float* token = qkv.data.data() + sequence.row_begin * qkv.width;
    kernels::KvWriteArgs write{.cache = cache_.Layer(attention.layer),
                               .first_position = sequence.first_position,
                               .heads = attention.kv_heads,
                               .k = token + query_width,
                               .v = token + query_width + kv_width,
                               .token_stride = qkv.width};
    write.cache.block_table = inputs_.table(index, attention.group);
    ops_.kv_write(write, static_cast<int>(row - sequence.row_begin),
                  static_cast<int>(last - sequence.row_begin));
    row = last;
  }
}

void CpuBackend::NormHeads(const AttentionOp& attention, Buffer& qkv, int64_t begin, int64_t end) {
  const int dim = attention.head_dim;
  const auto norm = [&](float* heads, int count, VectorHandle weight) {
    ops_.rms_norm({.x = heads,
                   .x_stride = dim,
                   .weight = At(weight),
                   .n = dim,
                   .eps = attention.norm_eps,
                   .out = heads,
                   .out_stride = dim},
                  0, count);
  };
  for (int64_t row = begin; row < end; ++row) {
    float* const token = qkv.data.data() + row * qkv.width;
    norm(token, attention.heads, attention.query_norm);
    norm(token + int64_t{attention.heads} * dim, attention.kv_heads, attention.key_norm);
  }
}

void CpuBackend::PlanAttention() {
  attention_items_.clear();
  for (size_t i = 0; i < inputs_.sequences.size(); ++i) {
    const int count = inputs_.sequences[i].row_count;
    for (int row = 0; row < count; row += kAttentionRows) {
      attention_items_.push_back({static_cast<int>(i), row, std::min(kAttentionRows, count - row)});
    }
  }
  // The most expensive items come first, so that the last items to be taken are small.
  const auto cost = [&](const AttentionItem& a) {
    return int64_t{a.rows} * (inputs_.sequences[a.sequence].first_position + a.row + a.rows);
  };
  std::sort(attention_items_.begin(), attention_items_.end(),
            [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

void CpuBackend::Attend(const AttentionOp& attention, BufferHandle in, BufferHandle out) {
  const Buffer& qkv = At(in);
  Buffer& attended = At(out);
  const kernels::KvView cache = cache_.Layer(attention.layer);
  const int kv_heads = attention.kv_heads, group = attention.heads / attention.kv_heads;
  const auto count = static_cast<int64_t>(attention_items_.size()) * kv_heads;
  pool_.ParallelItems(count, [&](int64_t i) {
    const AttentionItem& item = attention_items_[i / kv_heads];
    const int kv_head = static_cast<int>(i % kv_heads);
    const StepSequence& sequence = inputs_.sequences[item.sequence];
    const int64_t head_offset = int64_t{kv_head} * group * attention.head_dim;
    kernels::AttentionArgs args{
        .cache = cache,
        .kv_head = kv_head,
        .first_position = sequence.first_position,
        .heads = group,
        .q = qkv.data.data() + sequence.row_begin * qkv.width + head_offset,
        .q_stride = qkv.width,
        .scale = attention.scale,
        .out = attended.data.data() + sequence.row_begin * attended.width + head_offset,
        .out_stride = attended.width};
    args.cache.block_table = inputs_.table(item.sequence, attention.group);
    ops_.paged_attention(args, item.row, item.row + item.rows);
  });
}

bool CpuBackend::GetsFullRow(int64_t request) const {
  return inputs_.full_rows_to_all || request % options_.tensor_ranks == options_.tensor_rank;
}

void CpuBackend::Head(BufferHandle in, VectorHandle weight, float eps, HeadHandle handle) {
  NoteMove();
  const HeadWeights& head = heads_[handle.index()];
  const Buffer& x = At(in);
  const MatrixView matrix = head.matrix == nullptr ? MatrixView{} : head.matrix->view();
  const absl::Span<const RowRequest> requests = inputs_.requests;
  for (size_t first = 0; first < requests.size(); first += kLogitRows) {
    const auto tile = requests.subspan(first, kLogitRows);
    const int count = static_cast<int>(tile.size());
    for (int i = 0; head.matrix != nullptr && i < count; ++i) {
      ops_.rms_norm({.x = x.data.data() + tile[i].row * x.width,
                     .x_stride = x.width,
                     .weight = At(weight),
                     .n = static_cast<int>(x.width),
                     .eps = eps,
                     .out = head_input_.data() + i * x.width,
                     .out_stride = x.width},
                    0, 1);
    }
    float* const logits = alone() ? logits_.data() : options_.exchange->Logits();
    const Product product{.matrix = matrix,
                          .x = head_input_.data(),
                          .x_stride = x.width,
                          .out = logits + head.shard.first_token,
                          .out_stride = head.vocabulary,
                          .rows = count};
    if (head.matrix != nullptr) {
      Quantize(product);
      pool_.ParallelFor(matrix.panels(),
                        [&](int64_t begin, int64_t end) { MatMul(product, begin, end); });
    }
    const bool any_full =
        std::any_of(tile.begin(), tile.end(), [](const RowRequest& r) { return r.full_row; });
    if (!alone() && any_full) {
      options_.exchange->ShareLogits(
          count, {.all = inputs_.full_rows_to_all, .first_owner = static_cast<uint32_t>(first)});
    }
    TakeTile(head, logits, first, count);
  }
}

void CpuBackend::TakeTile(const HeadWeights& head, const float* logits, size_t first, int rows) {
  pool_.ParallelItems(rows, [&](int64_t i) {
    const size_t index = first + i;
    const RowRequest& request = inputs_.requests[index];
    const float* const row = logits + i * head.vocabulary;
    if (!request.full_row) {
      partials_.back()[index] = ReduceRow(
          ops_, head.shard,
          absl::MakeConstSpan(row + head.shard.first_token, static_cast<size_t>(head.size)),
          request, inputs_.edits_of(request));
    } else if (GetsFullRow(static_cast<int64_t>(index))) {
      receiver_->TakeRow(static_cast<int>(index), {row, static_cast<size_t>(head.vocabulary)});
    }
  });
}

void CpuBackend::Quantize(const Product& product) {
  if (!Quantizes(product.matrix)) return;
  const kernels::QuantizeArgs args = QuantizeFor(product);
  ForRows(product.rows, product.matrix.k, [&](int64_t begin, int64_t end) {
    ops_.quantize_rows(args, static_cast<int>(begin), static_cast<int>(end));
  });
}

kernels::QuantizeArgs CpuBackend::QuantizeFor(const Product& product) {
  return {.x = product.x,
          .x_stride = product.x_stride,
          .k = product.matrix.k,
          .split_count = product.matrix.split_count,
          .split_ends = product.matrix.split_ends,
          .out = QuantizedOf(product)};
}

kernels::QuantizedRows CpuBackend::QuantizedOf(const Product& product) {
  return {quantized_.data() + product.rows * product.first_k,
          group_sums_.data() + product.rows * product.first_k / kActivationGroup,
          scales_.data() + product.rows * product.first_split};
}

void CpuBackend::MatMul(const Product& p, int64_t begin, int64_t end) {
  if (Quantizes(p.matrix)) {
    ops_.matmul_i16({.weights = p.matrix,
                     .x = QuantizedOf(p),
                     .rows = p.rows,
                     .out = p.out,
                     .out_stride = p.out_stride,
                     .accumulate = p.accumulate},
                    static_cast<int>(begin), static_cast<int>(end));
  } else {
    ops_.matmul_f32({.weights = p.matrix,
                     .x = p.x,
                     .x_stride = p.x_stride,
                     .rows = p.rows,
                     .out = p.out,
                     .out_stride = p.out_stride,
                     .accumulate = p.accumulate},
                    static_cast<int>(begin), static_cast<int>(end));
  }
}

void CpuBackend::ForRows(int rows, int64_t row_elements,
                         absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (rows * row_elements < kParallelElements) {
    fn(0, rows);
  } else {
    pool_.ParallelFor(rows, fn);
  }
}

}  // namespace flotilla::worker
