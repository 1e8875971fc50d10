#include "worker/forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace flotilla {
namespace {

using kernels::kBlockK;
using kernels::kPanelColumns;
using kernels::MatrixView;

// Elements from which cutting rows over threads pays for the hand-over of about
// 2 us: 16 Ki elements of normalising and quantising take some 5 us.
constexpr int64_t kParallelElements = 16 * 1024;
// Query tokens of one attention item: with the heads of a group enough rows to
// keep the micro-kernel busy, few enough for an even share of the work.
constexpr int kAttentionRows = 16;
// Panels of gate and of up made before their SiLU, while they are in L2.
constexpr int64_t kFusedPanels = 6;

int64_t Panels(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

}  // namespace

std::string_view RecipeName(Recipe recipe) { return recipe == Recipe::kFp32 ? "fp32" : "accurate"; }

Forward::Forward(const Options& options, const ModelConfig& config, const Weights& weights,
                 const kernels::Ops& ops, KvCache& cache, ThreadPool& pool)
    : recipe_(options.recipe),
      config_(config),
      weights_(weights),
      ops_(ops),
      cache_(cache),
      pool_(pool),
      rope_(options.max_positions, config.head_dim, config.rope_base),
      query_width_(config.heads * config.head_dim),
      kv_width_(config.kv_heads * config.head_dim),
      qkv_width_(query_width_ + 2 * kv_width_),
      attention_scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))) {
  const int64_t rows = std::max(options.max_rows, kLogitRows);
  const int64_t widest = std::max({config.hidden, config.ffn, config.heads * config.head_dim});
  const int64_t most_slots = std::max({1u, config.attention_slots(), config.ffn_slots()});
  positions_.resize(rows);
  row_items_.resize(rows);
  hidden_ = AlignedBuffer<float>(rows * config.hidden);
  normed_ = AlignedBuffer<float>(rows * config.hidden);
  qkv_ = AlignedBuffer<float>(rows * qkv_width_);
  attended_ = AlignedBuffer<float>(rows * query_width_);
  gate_up_ = AlignedBuffer<float>(rows * 2 * config.ffn);
  logits_ = AlignedBuffer<float>(int64_t{kLogitRows} * config.vocab);
  quantized_ = AlignedBuffer<int16_t>(rows * widest);
  block_sums_ = AlignedBuffer<float>(rows * widest / kBlockK);
  scales_ = AlignedBuffer<float>(rows * most_slots);
}

int64_t Forward::buffer_bytes() const {
  return hidden_.bytes() + normed_.bytes() + qkv_.bytes() + attended_.bytes() + gate_up_.bytes() +
         logits_.bytes() + quantized_.bytes() + block_sums_.bytes() + scales_.bytes();
}

void Forward::Run(const Batch& batch, absl::Span<const int32_t> logit_rows, LogitSink sink,
                  int layers) {
  Embed(batch);
  PlanAttention(batch);
  const int count = std::min(layers, static_cast<int>(config_.layers));
  for (int i = 0; i < count; ++i) Layer(batch, i);
  Logits(logit_rows, sink);
}

void Forward::Embed(const Batch& batch) {
  rows_ = static_cast<int>(batch.tokens.size());
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    for (uint32_t r = 0; r < item.row_count; ++r) {
      positions_[item.row_begin + r] = static_cast<int32_t>(item.first_position + r);
      row_items_[item.row_begin + r] = static_cast<int32_t>(i);
    }
  }
  const int64_t hidden = config_.hidden;
  ForRows(rows_, hidden, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      weights_.embedding.DequantizeColumn(
          batch.tokens[r], {hidden_.data() + r * hidden, static_cast<size_t>(hidden)});
    }
  });
}

void Forward::PlanAttention(const Batch& batch) {
  attention_items_.clear();
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const int count = static_cast<int>(batch.items[i].row_count);
    for (int row = 0; row < count; row += kAttentionRows) {
      for (uint32_t head = 0; head < config_.kv_heads; ++head) {
        attention_items_.push_back({static_cast<int>(i), static_cast<int>(head), row,
                                    std::min(kAttentionRows, count - row)});
      }
    }
  }
  // Dearest first, so that the last items to be taken are the small ones.
  const auto cost = [&](const AttentionItem& a) {
    return int64_t{a.rows} * (batch.items[a.item].first_position + a.row + a.rows);
  };
  std::sort(attention_items_.begin(), attention_items_.end(),
            [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

void Forward::Layer(const Batch& batch, int index) {
  const LayerWeights& layer = weights_.layers[index];
  const int64_t ffn = config_.ffn;

  const MatrixView qkv = layer.qkv.view();
  NormAndQuantize(layer.attention_norm, qkv);
  pool_.ParallelFor(qkv.panels(), [&](int64_t begin, int64_t end) {
    MatMul({qkv, normed_.data(), config_.hidden, qkv_.data(), qkv_width_, false, rows_}, begin,
           end);
  });
  ForRows(rows_, qkv_width_,
          [&](int64_t begin, int64_t end) { RopeAndStore(batch, index, begin, end); });
  Attention(batch, index);

  const MatrixView output = layer.attention_output.view();
  Quantize(attended_.data(), query_width_, rows_, output);
  pool_.ParallelFor(output.panels(), [&](int64_t begin, int64_t end) {
    MatMul({output, attended_.data(), query_width_, hidden_.data(), config_.hidden, true, rows_},
           begin, end);
  });

  const MatrixView gate_up = layer.gate_up.view();
  NormAndQuantize(layer.ffn_norm, gate_up);
  pool_.ParallelFor(Panels(ffn), [&](int64_t begin, int64_t end) { GateUp(gate_up, begin, end); });

  const MatrixView down = layer.down.view();
  Quantize(gate_up_.data(), 2 * ffn, rows_, down);
  pool_.ParallelFor(down.panels(), [&](int64_t begin, int64_t end) {
    MatMul({down, gate_up_.data(), 2 * ffn, hidden_.data(), config_.hidden, true, rows_}, begin,
           end);
  });
}

void Forward::GateUp(const MatrixView& gate_up, int64_t begin, int64_t end) {
  const int64_t ffn = config_.ffn;
  const int64_t panels = Panels(ffn);
  const Product product{gate_up, normed_.data(), config_.hidden, gate_up_.data(),
                        2 * ffn, false,          rows_};
  for (int64_t p = begin; p < end; p += kFusedPanels) {
    const int64_t last = std::min(p + kFusedPanels, end);
    MatMul(product, p, last);
    MatMul(product, panels + p, panels + last);
    const int64_t column = p * kPanelColumns;
    float* gate = gate_up_.data() + column;
    const kernels::SiluMulArgs args{
        .gate = gate,
        .up = gate + ffn,
        .in_stride = 2 * ffn,
        .n = static_cast<int>(std::min(last * kPanelColumns, ffn) - column),
        .out = gate,
        .out_stride = 2 * ffn};
    ops_.silu_mul(args, 0, rows_);
  }
}

void Forward::RopeAndStore(const Batch& batch, int layer, int64_t begin, int64_t end) {
  // Two tokens of a branch whose V share a bf16 pair belong to one thread: a
  // range starts and ends at an even position or another branch.
  const auto align = [&](int64_t row) {
    const bool splits_pair = row > 0 && row < rows_ && positions_[row] % 2 == 1 &&
                             row_items_[row] == row_items_[row - 1];
    return splits_pair ? row + 1 : row;
  };
  begin = align(begin);
  end = align(end);
  if (begin >= end) return;

  const int dim = static_cast<int>(config_.head_dim);
  const kernels::RopeArgs rope{.x = qkv_.data(),
                               .token_stride = qkv_width_,
                               .heads = static_cast<int>(config_.heads + config_.kv_heads),
                               .dim = dim,
                               .positions = positions_.data(),
                               .table = rope_.data()};
  ops_.rope(rope, static_cast<int>(begin), static_cast<int>(end));

  for (int64_t row = begin; row < end;) {
    const int index = row_items_[row];
    const BatchItem& item = batch.items[index];
    const int64_t item_end = std::min<int64_t>(end, item.row_begin + item.row_count);
    const float* token = qkv_.data() + item.row_begin * int64_t{qkv_width_};
    kernels::KvWriteArgs write{.cache = cache_.Layer(layer),
                               .first_position = static_cast<int>(item.first_position),
                               .heads = static_cast<int>(config_.kv_heads),
                               .k = token + query_width_,
                               .v = token + query_width_ + kv_width_,
                               .token_stride = qkv_width_};
    write.cache.block_table = batch.table(index, GroupIndex{0}).data();
    ops_.kv_write(write, static_cast<int>(row - item.row_begin),
                  static_cast<int>(item_end - item.row_begin));
    row = item_end;
  }
}

void Forward::Attention(const Batch& batch, int layer) {
  const kernels::KvView cache = cache_.Layer(layer);
  const int group = static_cast<int>(config_.heads / config_.kv_heads);
  pool_.ParallelItems(static_cast<int64_t>(attention_items_.size()), [&](int64_t i) {
    const AttentionItem& part = attention_items_[i];
    const BatchItem& item = batch.items[part.item];
    const int64_t head_offset = int64_t{part.kv_head} * group * config_.head_dim;
    kernels::AttentionArgs args{
        .cache = cache,
        .kv_head = part.kv_head,
        .first_position = static_cast<int>(item.first_position),
        .heads = group,
        .q = qkv_.data() + int64_t{item.row_begin} * qkv_width_ + head_offset,
        .q_stride = qkv_width_,
        .scale = attention_scale_,
        .out = attended_.data() + int64_t{item.row_begin} * query_width_ + head_offset,
        .out_stride = query_width_};
    args.cache.block_table = batch.table(part.item, GroupIndex{0}).data();
    ops_.paged_attention(args, part.row, part.row + part.rows);
  });
}

void Forward::Logits(absl::Span<const int32_t> logit_rows, LogitSink sink) {
  const int64_t hidden = config_.hidden, vocab = config_.vocab;
  const MatrixView head = weights_.head().view();
  for (size_t first = 0; first < logit_rows.size(); first += kLogitRows) {
    const auto tile = logit_rows.subspan(first, kLogitRows);
    const int rows = static_cast<int>(tile.size());
    for (int i = 0; i < rows; ++i) {
      ops_.rms_norm({.x = hidden_.data() + tile[i] * hidden,
                     .x_stride = hidden,
                     .weight = weights_.output_norm.data(),
                     .n = static_cast<int>(hidden),
                     .eps = config_.rms_eps,
                     .out = normed_.data() + i * hidden,
                     .out_stride = hidden},
                    0, 1);
    }
    Quantize(normed_.data(), hidden, rows, head);
    pool_.ParallelFor(head.panels(), [&](int64_t begin, int64_t end) {
      MatMul({head, normed_.data(), hidden, logits_.data(), vocab, false, rows}, begin, end);
    });
    pool_.ParallelItems(rows, [&](int64_t i) {
      sink(static_cast<int>(first + i), {logits_.data() + i * vocab, static_cast<size_t>(vocab)});
    });
  }
}

void Forward::NormAndQuantize(const std::vector<float>& weight, const MatrixView& matrix) {
  const int64_t hidden = config_.hidden;
  const kernels::RmsNormArgs norm{.x = hidden_.data(),
                                  .x_stride = hidden,
                                  .weight = weight.data(),
                                  .n = static_cast<int>(hidden),
                                  .eps = config_.rms_eps,
                                  .out = normed_.data(),
                                  .out_stride = hidden};
  const kernels::QuantizeArgs quantize = QuantizeFor(normed_.data(), hidden, matrix);
  ForRows(rows_, hidden, [&](int64_t begin, int64_t end) {
    ops_.rms_norm(norm, static_cast<int>(begin), static_cast<int>(end));
    if (Quantizes(matrix)) {
      ops_.quantize_rows(quantize, static_cast<int>(begin), static_cast<int>(end));
    }
  });
}

void Forward::Quantize(const float* x, int64_t x_stride, int rows, const MatrixView& matrix) {
  if (!Quantizes(matrix)) return;
  const kernels::QuantizeArgs args = QuantizeFor(x, x_stride, matrix);
  ForRows(rows, matrix.k, [&](int64_t begin, int64_t end) {
    ops_.quantize_rows(args, static_cast<int>(begin), static_cast<int>(end));
  });
}

kernels::QuantizeArgs Forward::QuantizeFor(const float* x, int64_t x_stride,
                                           const MatrixView& matrix) {
  return {.x = x,
          .x_stride = x_stride,
          .k = matrix.k,
          .slot_count = matrix.slot_count,
          .slot_ends = matrix.slot_ends,
          .out = {quantized_.data(), block_sums_.data(), scales_.data()}};
}

void Forward::MatMul(const Product& p, int64_t begin, int64_t end) {
  if (Quantizes(p.matrix)) {
    ops_.matmul_i16({.weights = p.matrix,
                     .x = {quantized_.data(), block_sums_.data(), scales_.data()},
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

void Forward::ForRows(int rows, int64_t row_elements,
                      absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (rows * row_elements < kParallelElements) {
    fn(0, rows);
  } else {
    pool_.ParallelFor(rows, fn);
  }
}

}  // namespace flotilla
