// The operations of CpuBackend: how each is cut over the threads of the pool.
#include <algorithm>
#include <cstring>

#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/host/split_weights.h"

namespace flotilla::worker {
namespace {

using kernels::kPanelColumns;
using kernels::kSumSpan;
using kernels::MatrixView;

// From this many elements on, cutting rows over threads pays for the hand-over of about
// 2 us: 16 Ki elements of normalising and quantising take some 5 us.
constexpr int64_t kParallelElements = 16 * 1024;
// Query tokens of one attention item. With the heads of a group these are enough rows to
// keep the micro-kernel busy, and few enough for an even share of the work.
constexpr int kAttentionRows = 16;
// With a latent all query heads share one KV head; so many are an item.
constexpr int kLatentHeads = 12;

}  // namespace

void CpuBackend::Embed(EmbeddingHandle handle, BufferHandle out) {
  const EmbeddingSource& source = embeddings_[handle.index()];
  Buffer& x = At(out);
  const auto width = static_cast<size_t>(x.width);
  // This cannot fail: LoadSpec has checked types and sizes, GroupState tokens and positions.
  const auto read = [&](const model::Tensor& table, uint64_t row, float* to) {
    (void)model::DecodeRow(table, static_cast<int64_t>(row), {to, width});
  };
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    std::vector<float> position(source.positions == nullptr ? 0 : width);
    for (int64_t r = begin; r < end; ++r) {
      float* const row = x.data.data() + r * x.width;
      read(*source.table, inputs_.tokens[r].id, row);
      if (source.factor != 1) ops_.scale(row, source.factor, x.width);
      if (source.positions == nullptr) continue;
      read(*source.positions, static_cast<uint64_t>(inputs_.positions[r]) + source.position_offset,
           position.data());
      ops_.add(position.data(), row, x.width);
    }
  });
}

void CpuBackend::ReceiveResidual(BufferHandle x) {
  options_.exchange->ReceiveResidual(At(x).data.data(), rows() * At(x).width);
}

void CpuBackend::SendResidual(BufferHandle x) {
  options_.exchange->SendResidual(At(x).data.data(), rows() * At(x).width);
}

void CpuBackend::NormRows(const NormOp& norm, const float* x, int64_t in_stride, int n, float* out,
                          int64_t out_stride, int64_t begin, int64_t end) const {
  if (norm.spec.kind == model::NormKind::kRms) {
    ops_.rms_norm({.x = x,
                   .x_stride = in_stride,
                   .weight = At(norm.weight),
                   .n = n,
                   .eps = norm.spec.eps,
                   .out = out,
                   .out_stride = out_stride},
                  static_cast<int>(begin), static_cast<int>(end));
  } else {
    ops_.layer_norm({.x = x,
                     .x_stride = in_stride,
                     .weight = At(norm.weight),
                     .bias = At(norm.bias),
                     .n = n,
                     .eps = norm.spec.eps,
                     .out = out,
                     .out_stride = out_stride},
                    static_cast<int>(begin), static_cast<int>(end));
  }
}

void CpuBackend::NormOwnHead(const NormOp& norm, int head, int dim, float* x) const {
  ops_.layer_norm({.x = x,
                   .x_stride = dim,
                   .weight = At(norm.weight) + int64_t{head} * dim,
                   .bias = nullptr,
                   .n = dim,
                   .eps = norm.spec.eps,
                   .out = x,
                   .out_stride = dim},
                  0, 1);
}

void CpuBackend::NormInPlace(BufferHandle handle, const NormOp& norm) {
  Buffer& x = At(handle);
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    NormRows(norm, x.data.data(), x.width, static_cast<int>(x.width), x.data.data(), x.width, begin,
             end);
  });
}

void CpuBackend::Norm(BufferHandle x, const NormOp& norm, MatrixHandle next, BufferHandle out) {
  NormFor(x, &norm, next, out);
}

void CpuBackend::Prepare(BufferHandle x, MatrixHandle next, BufferHandle out) {
  NormFor(x, nullptr, next, out);
}

void CpuBackend::NormFor(BufferHandle in, const NormOp* norm, MatrixHandle next, BufferHandle out) {
  NoteMove();
  // All pieces have the same activations: as they are, and quantised in each form that one wants.
  Buffer& x = At(in);
  Buffer& normed = At(out);
  std::vector<kernels::QuantizeArgs> forms;
  for (const Piece& piece : matrices_[next.index()].pieces) {
    if (!Quantizes(piece.view) || piece.form < static_cast<int>(forms.size())) continue;
    forms.push_back(QuantizeFor(ProductOf(piece, normed, nullptr)));
  }
  ForRows(rows(), x.width, [&](int64_t begin, int64_t end) {
    if (norm != nullptr) {
      NormRows(*norm, x.data.data(), x.width, static_cast<int>(x.width), normed.data.data(),
               normed.width, begin, end);
    } else {
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(x.data.data() + r * x.width, x.width, normed.data.data() + r * normed.width);
      }
    }
    for (const kernels::QuantizeArgs& form : forms) {
      ops_.quantize_rows(form, static_cast<int>(begin), static_cast<int>(end));
    }
  });
}

CpuBackend::Product CpuBackend::ProductOf(const Piece& piece, const Buffer& x, Buffer* out) const {
  return {.matrix = piece.view,
          .x = x.data.data(),
          .x_stride = x.width,
          .out = out == nullptr ? nullptr : out->data.data() + piece.column,
          .out_stride = out == nullptr ? 0 : out->width,
          .rows = rows(),
          .first_k = int64_t{piece.form} * piece.view.k,
          .first_split = piece.form};
}

void CpuBackend::AddBias(const std::vector<float>& bias, Buffer& out, int64_t column,
                         int64_t count) {
  if (bias.empty()) return;
  for (int64_t r = 0; r < rows(); ++r) {
    ops_.add(bias.data() + column, out.data.data() + r * out.width + column, count);
  }
}

void CpuBackend::Multiply(BufferHandle x, MatrixHandle handle, BufferHandle out) {
  const Matrix& weights = matrices_[handle.index()];
  pool_.ParallelFor(weights.panels(), [&](int64_t begin, int64_t end) {
    for (const Piece& piece : weights.pieces) {
      const int64_t panels = piece.view.panels(), last = std::min(end, panels);
      if (begin < last) MultiplyPiece(weights, piece, begin, last, At(x), At(out));
      begin = std::max<int64_t>(begin - panels, 0);
      end -= panels;
      if (end <= 0) break;
    }
  });
}

void CpuBackend::MultiplyPiece(const Matrix& weights, const Piece& piece, int64_t begin,
                               int64_t end, const Buffer& x, Buffer& out) {
  MatMul(ProductOf(piece, x, &out), begin, end);
  const int64_t column = begin * kPanelColumns;
  AddBias(weights.bias, out, piece.column + column,
          std::min<int64_t>(end * kPanelColumns, piece.view.columns) - column);
}

void CpuBackend::GateUp(BufferHandle x, MatrixHandle handle, const FfnOp& ffn, BufferHandle out) {
  const Matrix& weights = matrices_[handle.index()];
  const int64_t width = weights.columns() / (ffn.gated ? 2 : 1), panels = Panels(width);
  // Gate and up have one format, or each its own.
  const Piece &gates = weights.pieces.front(), &ups = weights.pieces.back();
  const int64_t first_up = weights.pieces.size() == 1 ? panels : 0;
  Buffer& gate_up = At(out);
  pool_.ParallelFor(panels, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p += kFusedPanels) {
      const int64_t last = std::min(p + kFusedPanels, end);
      const int64_t column = p * kPanelColumns;
      const int64_t count = std::min(last * kPanelColumns, width) - column;
      MultiplyPiece(weights, gates, p, last, At(x), gate_up);
      if (ffn.gated) {
        MultiplyPiece(weights, ups, first_up + p, first_up + last, At(x), gate_up);
      }
      float* const gate = gate_up.data.data() + column;
      const kernels::ActivateArgs args{.activation = ffn.activation,
                                       .gate = gate,
                                       .up = ffn.gated ? gate + width : nullptr,
                                       .in_stride = gate_up.width,
                                       .n = static_cast<int>(count),
                                       .out = gate,
                                       .out_stride = gate_up.width};
      ops_.activate(args, 0, rows());
    }
  });
}

void CpuBackend::AddProjection(BufferHandle x, ProjectionHandle projection, BufferHandle residual) {
  RunProjection(x, projection, /*accumulate=*/true, residual);
}

void CpuBackend::Project(BufferHandle x, ProjectionHandle projection, BufferHandle out) {
  RunProjection(x, projection, /*accumulate=*/false, out);
}

void CpuBackend::RunProjection(BufferHandle in, ProjectionHandle handle, bool accumulate,
                               BufferHandle to) {
  const Projection& projection = projections_[handle.index()];
  const Buffer& x = At(in);
  Buffer& out = At(to);
  const int64_t hidden = out.width, panels = Panels(hidden);
  float* const outgoing = alone() ? nullptr : options_.exchange->Partials();
  const auto count = static_cast<int64_t>(projection.products.size());
  const auto product = [&](int64_t i) {
    const SplitProduct& split = projection.products[i];
    return Product{.matrix = projection.views[i],
                   .x = x.data.data() + split.first_k,
                   .x_stride = x.width,
                   .out = alone() ? out.data.data() : outgoing + i * rows() * hidden,
                   .out_stride = hidden,
                   .accumulate = alone() && accumulate,
                   .rows = rows(),
                   .first_k = split.first_k,
                   .first_split = split.first_split};
  };
  for (int64_t i = 0; i < count; ++i) Quantize(product(i));
  pool_.ParallelFor(count * panels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin / panels; i * panels < end; ++i) {
      const int64_t first = std::max(begin - i * panels, int64_t{0});
      const int64_t last = std::min(end - i * panels, panels);
      MatMul(product(i), first, last);
      if (!alone()) continue;
      const int64_t column = first * kPanelColumns;
      AddBias(projection.bias, out, column, std::min(last * kPanelColumns, hidden) - column);
    }
  });
  if (alone()) return;
  const auto parts = options_.exchange->SharePartials(count * rows() * hidden);
  ForRows(rows(), hidden * static_cast<int64_t>(projection.tree.parts.size()),
          [&](int64_t begin, int64_t end) {
            AddParts(ops_, projection.tree, parts, rows(), hidden, begin, end, accumulate,
                     out.data.data());
            if (projection.bias.empty()) return;
            for (int64_t r = begin; r < end; ++r) {
              ops_.add(projection.bias.data(), out.data.data() + r * hidden, hidden);
            }
          });
}

void CpuBackend::AddScaled(BufferHandle in, float factor, BufferHandle residual) {
  const Buffer& x = At(in);
  Buffer& out = At(residual);
  ForRows(rows(), out.width, [&](int64_t begin, int64_t end) {
    ops_.add_scaled(x.data.data() + begin * x.width, factor, out.data.data() + begin * out.width,
                    (end - begin) * out.width);
  });
}

void CpuBackend::RopeAndStore(const AttentionOp& attention, BufferHandle handle) {
  Buffer& qkv = At(handle);
  ForRows(rows(), qkv.width,
          [&](int64_t begin, int64_t end) { RopeAndStoreRows(attention, qkv, begin, end); });
  SealRuns(attention);
}

CpuBackend::LayerKv CpuBackend::KvOf(LayerKv layer, const AttentionOp& attention,
                                     int sequence) const {
  const auto index = static_cast<size_t>(sequence);
  layer.cache.block_table = inputs_.table(index, attention.group);
  if (layer.open.base == nullptr) return layer;
  layer.open.block_table = open_runs_.ids.data() + open_runs_.begins[index];
  layer.open.first_block = inputs_.sequences[index].first_position / kernels::kKvRunTokens;
  return layer;
}

kernels::KvWriteArgs CpuBackend::KvWriteOf(const AttentionOp& attention, const LayerKv& kv,
                                           const Buffer& qkv, int64_t row) {
  const int dim = attention.dims.key;
  const int64_t query_width = int64_t{attention.projected_heads} * dim;
  const int64_t key_width = int64_t{attention.projected_kv_heads} * dim;
  const float* const token = qkv.data.data() + row * qkv.width;
  return {.cache = kv.cache,
          .open = kv.open,
          .heads = attention.kv_heads,
          .k = token + query_width + int64_t{attention.first_kv_head} * dim,
          .v = attention.dims.prefix ? nullptr : token + query_width + key_width,
          .token_stride = qkv.width,
          .key_scale = attention.kv_scales.key,
          .value_scale = attention.kv_scales.value};
}

CpuBackend::LayerKv CpuBackend::StoreAlone(const AttentionOp& attention, LayerKv kv,
                                           const Buffer& qkv, int64_t row, int head) const {
  static constexpr int32_t kTable = 0;
  thread_local AlignedBuffer<std::byte> cache, open;
  const auto place = [](AlignedBuffer<std::byte>& memory, kernels::KvView& view) {
    if (memory.size() < view.head_stride) memory = AlignedBuffer<std::byte>(view.head_stride);
    view.base = memory.data();
    view.block_table = &kTable;
  };
  place(cache, kv.cache);
  if (kv.open.base != nullptr) place(open, kv.open);
  kernels::KvWriteArgs write = KvWriteOf(attention, kv, qkv, row);
  write.heads = 1;
  write.k += int64_t{head} * attention.dims.key;
  if (write.v != nullptr) write.v += int64_t{head} * attention.dims.value;
  ops_.kv_write(write, 0, 1);
  return kv;
}

void CpuBackend::StoreFirstRow(const AttentionOp& attention, const LayerKv& layer,
                               const Buffer& qkv, const StepSequence& sequence) const {
  const kernels::KvView& open = layer.open;
  if (open.base == nullptr) return;
  const int64_t first = kernels::KvFirstOffset(open.dims);
  for (int head = 0; head < attention.kv_heads; ++head) {
    const LayerKv alone = StoreAlone(attention, layer, qkv, sequence.row_begin, head);
    std::memcpy(open.base + sequence.handle * open.block_stride + head * open.head_stride + first,
                alone.open.base + first, static_cast<size_t>(open.head_stride - first));
  }
}

void CpuBackend::SealRuns(const AttentionOp& attention) {
  const LayerKv layer = KvOf(attention);
  if (layer.open.base == nullptr) return;
  const int heads = attention.kv_heads;
  const auto count = static_cast<int64_t>(open_runs_.full.size()) * heads;
  pool_.ParallelItems(count, [&](int64_t i) {
    const OpenRuns::Full& full = open_runs_.full[static_cast<size_t>(i / heads)];
    const int head = static_cast<int>(i % heads);
    const LayerKv kv = KvOf(layer, attention, full.sequence);
    ops_.kv_seal({.cache = kv.cache, .open = kv.open, .run = full.run}, head, head + 1);
  });
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

  NormHeads(attention, qkv, begin, end);
  if (attention.rope.valid()) {
    const kernels::RopeTable& table = *ropes_[attention.rope.index()];
    kernels::RopeArgs rope{.x = qkv.data.data() + attention.rope_at,
                           .token_stride = qkv.width,
                           .heads = attention.projected_heads + attention.projected_kv_heads,
                           .head_stride = attention.dims.key,
                           .dim = table.dim(),
                           .positions = inputs_.positions.data(),
                           .table = table.data()};
    ops_.rope(rope, static_cast<int>(begin), static_cast<int>(end));
  }

  const LayerKv layer = KvOf(attention);
  for (int64_t row = begin; row < end;) {
    const int index = row_sequences_[row];
    const StepSequence& sequence = inputs_.sequences[index];
    const int64_t last = std::min<int64_t>(end, sequence.row_begin + sequence.row_count);
    if (sequence.is_first_row) {
      StoreFirstRow(attention, layer, qkv, sequence);
    } else {
      kernels::KvWriteArgs write =
          KvWriteOf(attention, KvOf(layer, attention, index), qkv, sequence.row_begin);
      write.first_position = sequence.first_position;
      ops_.kv_write(write, static_cast<int>(row - sequence.row_begin),
                    static_cast<int>(last - sequence.row_begin));
    }
    row = last;
  }
}

void CpuBackend::NormHeads(const AttentionOp& attention, Buffer& qkv, int64_t begin, int64_t end) {
  const int dim = attention.dims.key, size = attention.head_dim;
  const auto norm = [&](float* heads, int count, const NormOp& op) {
    switch (attention.head_norms) {
      case model::HeadNorms::kNone:
        return;
      case model::HeadNorms::kShared:
        return NormRows(op, heads, dim, size, heads, dim, 0, count);
      case model::HeadNorms::kOwn:
        for (int head = 0; head < count; ++head) {
          NormOwnHead(op, head, size, heads + int64_t{head} * dim);
        }
        return;
      case model::HeadNorms::kAllHeads:
        return NormRows(op, heads, int64_t{count} * dim, count * dim, heads, int64_t{count} * dim,
                        0, 1);
    }
  };
  for (int64_t row = begin; row < end; ++row) {
    float* const token = qkv.data.data() + row * qkv.width;
    norm(token, attention.projected_heads, attention.query_norm);
    norm(token + int64_t{attention.projected_heads} * dim, attention.projected_kv_heads,
         attention.key_norm);
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
  // What no head owns stays zero from the start: nothing else writes to this buffer.
  const Buffer& qkv = At(in);
  Buffer& attended = At(out);
  const LayerKv layer = KvOf(attention);
  const int kv_heads = attention.kv_heads, group = attention.heads / attention.kv_heads;
  const int dim = attention.dims.key, out_dim = attention.result_dim;
  const int most = attention.dims.prefix ? kLatentHeads : group;
  const int cuts = (group + most - 1) / most;  // of the query heads of a KV head
  const float* const slopes = At(attention.slopes);
  const float* const sinks = At(attention.sinks);
  const auto count = static_cast<int64_t>(attention_items_.size()) * kv_heads * cuts;
  pool_.ParallelItems(count, [&](int64_t i) {
    const AttentionItem& item = attention_items_[i / cuts / kv_heads];
    const int kv_head = static_cast<int>(i / cuts % kv_heads);
    const int first = kv_head * group + static_cast<int>(i % cuts) * most;
    const int last = std::min(first + most, (kv_head + 1) * group);
    const StepSequence& sequence = inputs_.sequences[item.sequence];
    const LayerKv kv = sequence.is_first_row
                           ? StoreAlone(attention, layer, qkv, sequence.row_begin, kv_head)
                           : KvOf(layer, attention, item.sequence);
    // Heads whose results lie side by side are one call.
    for (int head = first; head < last;) {
      int heads = 1;
      while (head + heads < last &&
             attention.head_places[head + heads] == attention.head_places[head] + heads * out_dim) {
        ++heads;
      }
      const int64_t query = int64_t{attention.first_head + head} * dim;
      kernels::AttentionArgs args{.cache = kv.cache,
                                  .open = kv.open,
                                  .kv_head = sequence.is_first_row ? 0 : kv_head,
                                  .first_position = sequence.first_position,
                                  .heads = heads,
                                  .q = qkv.data.data() + sequence.row_begin * qkv.width + query,
                                  .q_stride = qkv.width,
                                  .scale = attention.scale,
                                  .window = attention.window,
                                  .softcap = attention.softcap,
                                  .slopes = slopes == nullptr ? nullptr : slopes + head,
                                  .sinks = sinks == nullptr ? nullptr : sinks + head,
                                  .out_dim = out_dim,
                                  .out = attended.data.data() +
                                         sequence.row_begin * attended.width +
                                         attention.head_places[head],
                                  .out_stride = attended.width};
      ops_.paged_attention(args, item.row, item.row + item.rows);
      head += heads;
    }
  });
  if (layer.open.base == nullptr) return;
  pool_.ParallelItems(static_cast<int64_t>(open_runs_.moves.size()), [&](int64_t i) {
    const OpenRuns::Move& move = open_runs_.moves[static_cast<size_t>(i)];
    cache_.CopyRun(attention.layer, move.from, move.to);
  });
}

bool CpuBackend::GetsFullRow(int64_t request) const {
  return inputs_.full_rows_to_all || request % options_.tensor_ranks == options_.tensor_rank;
}

void CpuBackend::Head(BufferHandle in, const NormOp& norm, HeadHandle handle) {
  NoteMove();
  const HeadWeights& head = heads_[handle.index()];
  const Buffer& x = At(in);
  const MatrixView matrix = head.matrix == nullptr ? MatrixView{} : head.matrix->view();
  const absl::Span<const RowRequest> requests = inputs_.requests;
  for (size_t first = 0; first < requests.size(); first += kLogitRows) {
    const auto tile = requests.subspan(first, kLogitRows);
    const int count = static_cast<int>(tile.size());
    for (int i = 0; head.matrix != nullptr && i < count; ++i) {
      NormRows(norm, x.data.data() + tile[i].row * x.width, x.width, static_cast<int>(x.width),
               head_input_.data() + i * x.width, x.width, 0, 1);
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
      pool_.ParallelFor(matrix.panels(), [&](int64_t begin, int64_t end) {
        MatMul(product, begin, end);
        FinishLogits(head, product, begin, end);
      });
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

void CpuBackend::FinishLogits(const HeadWeights& head, const Product& product, int64_t begin,
                              int64_t end) {
  if (head.bias.empty() && head.factor == 1 && head.softcap == 0) return;
  const int64_t column = begin * kPanelColumns;
  const int64_t count = std::min(end * kPanelColumns, head.size) - column;
  for (int row = 0; row < product.rows; ++row) {
    float* const logits = product.out + row * product.out_stride + column;
    if (!head.bias.empty()) ops_.add(head.bias.data() + column, logits, count);
    if (head.factor != 1) ops_.scale(logits, head.factor, count);
    if (head.softcap != 0) ops_.softcap(logits, head.softcap, count);
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
          .activations = product.matrix.activations,
          .out = QuantizedOf(product)};
}

kernels::QuantizedRows CpuBackend::QuantizedOf(const Product& product) {
  return {quantized_.data() + product.rows * product.first_k,
          group_sums_.data() + product.rows * product.first_k / kSumSpan,
          scales_.data() + product.rows * product.first_split};
}

void CpuBackend::MatMul(const Product& p, int64_t begin, int64_t end) {
  MatMul(p, Quantizes(p.matrix) ? QuantizedOf(p) : kernels::QuantizedRows{}, begin, end);
}

void CpuBackend::MatMul(const Product& p, const kernels::QuantizedRows& x, int64_t begin,
                        int64_t end) {
  if (Quantizes(p.matrix)) {
    const auto multiply = kernels::HasInt8Product(p.matrix.kind) ? ops_.matmul_i8 : ops_.matmul_i16;
    multiply({.weights = p.matrix,
              .x = x,
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
