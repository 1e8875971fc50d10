#include "worker/compute/forward.h"

#include <algorithm>
#include <numeric>

namespace flotilla::worker {
namespace {

using kernels::kBlockK;
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

std::string_view RecipeName(Recipe recipe) { return recipe == Recipe::kFp32 ? "fp32" : "accurate"; }

Forward::SumTree Forward::MakeSumTree(absl::Span<const IndexRange> splits, uint32_t all) {
  SumTree tree;
  std::vector<IndexRange> subtrees;
  for (size_t rank = 0; rank < splits.size(); ++rank) {
    const auto own = SubtreesOf(splits[rank], all);
    for (size_t i = 0; i < own.size(); ++i) {
      tree.parts.push_back({static_cast<int>(rank), static_cast<int>(i)});
      subtrees.push_back(own[i]);
    }
  }
  tree.program = MakeTreeProgram(subtrees);
  return tree;
}

Communicator::Limits Forward::ExchangeLimits(const Options& options, const model::ModelSpec& spec,
                                             absl::Span<const ModelShard> shards,
                                             ParallelShape shape) {
  size_t subtrees = 0;
  for (const ModelShard& shard : shards) {
    subtrees =
        std::max({subtrees, SubtreesOf(AttentionSplits(shard), spec.attention_splits()).size(),
                  SubtreesOf(FfnSplits(spec, shard), spec.ffn_splits()).size()});
  }
  const int64_t hidden = int64_t{std::max(options.max_rows, kLogitRows)} * spec.hidden;
  Communicator::Limits limits;
  if (shape.tensor > 1) limits.exchange_floats = static_cast<int64_t>(subtrees) * hidden;
  if (shape.tensor > 1) limits.logit_floats = int64_t{kLogitRows} * spec.vocab;
  if (shape.pipeline > 1) limits.hidden_floats = hidden;
  return limits;
}

Forward::Forward(const Options& options, const model::ModelSpec& spec, const Weights& weights,
                 const kernels::Ops& ops, KvCache& cache, ThreadPool& pool,
                 Communicator* communicator, absl::Span<const ModelShard> shards)
    : recipe_(options.recipe),
      spec_(spec),
      weights_(weights),
      ops_(ops),
      cache_(cache),
      pool_(pool),
      communicator_(communicator),
      rope_(options.max_positions, spec.ropes[spec.attention().rope].frequencies),
      kv_heads_(static_cast<int>(weights.shard.kv_heads.size())),
      query_heads_(kv_heads_ *
                   static_cast<int>(spec.attention().heads / spec.attention().kv_heads)),
      query_width_(query_heads_ * static_cast<int>(spec.attention().head_dim)),
      kv_width_(kv_heads_ * static_cast<int>(spec.attention().head_dim)),
      qkv_width_(query_width_ + 2 * kv_width_),
      ffn_(weights.shard.ffn.size()),
      attention_scale_(spec.attention().scale) {
  if (communicator_ != nullptr && communicator_->shape().tensor > 1) {
    const uint32_t ranks = communicator_->shape().tensor;
    std::vector<IndexRange> attention, ffn;
    for (const ModelShard& shard : shards.subspan(communicator_->stage() * ranks, ranks)) {
      attention.push_back(AttentionSplits(shard));
      ffn.push_back(FfnSplits(spec, shard));
    }
    trees_ = {MakeSumTree(attention, spec.attention_splits()), MakeSumTree(ffn, spec.ffn_splits())};
  }
  const int64_t rows = std::max(options.max_rows, kLogitRows);
  const int64_t widest = std::max<int64_t>({spec.hidden, ffn_, query_width_});
  const int64_t most_splits = std::max({1u, spec.attention_splits(), spec.ffn_splits()});
  positions_.resize(rows);
  row_items_.resize(rows);
  hidden_ = AlignedBuffer<float>(rows * spec.hidden);
  normed_ = AlignedBuffer<float>(rows * spec.hidden);
  qkv_ = AlignedBuffer<float>(rows * qkv_width_);
  attended_ = AlignedBuffer<float>(rows * query_width_);
  gate_up_ = AlignedBuffer<float>(rows * 2 * ffn_);
  if (alone() && weights.shard.vocab.size() > 0) {
    logits_ = AlignedBuffer<float>(int64_t{kLogitRows} * spec.vocab);
  }
  quantized_ = AlignedBuffer<int16_t>(rows * widest);
  block_sums_ = AlignedBuffer<float>(rows * widest / kBlockK);
  scales_ = AlignedBuffer<float>(rows * most_splits);
}

int64_t Forward::buffer_bytes() const {
  return hidden_.bytes() + normed_.bytes() + qkv_.bytes() + attended_.bytes() + gate_up_.bytes() +
         logits_.bytes() + quantized_.bytes() + block_sums_.bytes() + scales_.bytes();
}

void Forward::Run(const Batch& batch, absl::Span<const int32_t> logit_rows, WantsFullRow full_row,
                  LogitSink sink) {
  Layers(batch, static_cast<int>(weights_.layers.size()));
  if (communicator_ != nullptr && !communicator_->last_stage()) {
    communicator_->SendHidden(hidden_.data(), int64_t{rows_} * spec_.hidden);
    return;
  }
  Logits(logit_rows, /*to_all=*/false, full_row, sink);
}

void Forward::RunFirst(int layers, const Batch& batch, absl::Span<const int32_t> logit_rows,
                       LogitSink sink) {
  Layers(batch, layers);
  Logits(
      logit_rows, /*to_all=*/true, [](int) { return true; }, sink);
}

bool Forward::HasLogits(int request) const {
  if (communicator_ == nullptr) return true;
  return communicator_->last_stage() &&
         static_cast<uint32_t>(request) % communicator_->shape().tensor ==
             communicator_->tensor_rank();
}

void Forward::Layers(const Batch& batch, int count) {
  PlaceRows(batch);
  if (communicator_ == nullptr || communicator_->first_stage()) {
    Embed(batch);
  } else {
    communicator_->ReceiveHidden(hidden_.data(), int64_t{rows_} * spec_.hidden);
  }
  PlanAttention(batch);
  for (int i = 0; i < count; ++i) Layer(batch, i);
}

void Forward::PlaceRows(const Batch& batch) {
  rows_ = static_cast<int>(batch.tokens.size());
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    for (uint32_t r = 0; r < item.row_count; ++r) {
      positions_[item.row_begin + r] = static_cast<int32_t>(item.first_position + r);
      row_items_[item.row_begin + r] = static_cast<int32_t>(i);
    }
  }
}

void Forward::Embed(const Batch& batch) {
  const size_t hidden = spec_.hidden;
  const model::Tensor& table = weights_.tokens;
  const size_t row_bytes = table.data.size() / table.dims[1];
  ForRows(rows_, spec_.hidden, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      // This cannot fail: LoadSpec has checked type and size, GroupState the tokens.
      (void)model::DequantizeRow(table.type,
                                 table.data.subspan(batch.tokens[r] * row_bytes, row_bytes),
                                 {hidden_.data() + r * hidden, hidden});
    }
  });
}

void Forward::PlanAttention(const Batch& batch) {
  attention_items_.clear();
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const int count = static_cast<int>(batch.items[i].row_count);
    for (int row = 0; row < count; row += kAttentionRows) {
      for (int head = 0; head < kv_heads_; ++head) {
        attention_items_.push_back(
            {static_cast<int>(i), head, row, std::min(kAttentionRows, count - row)});
      }
    }
  }
  // The most expensive items come first, so that the last items to be taken are small.
  const auto cost = [&](const AttentionItem& a) {
    return int64_t{a.rows} * (batch.items[a.item].first_position + a.row + a.rows);
  };
  std::sort(attention_items_.begin(), attention_items_.end(),
            [&](const AttentionItem& a, const AttentionItem& b) { return cost(a) > cost(b); });
}

void Forward::Layer(const Batch& batch, int index) {
  const LayerWeights& layer = weights_.layers[index];
  const float norm_eps = spec_.layers[weights_.shard.layers.begin + index].norm_eps;

  const MatrixView qkv = layer.qkv.view();
  NormAndQuantize(layer.attention_norm, norm_eps, qkv);
  pool_.ParallelFor(qkv.panels(), [&](int64_t begin, int64_t end) {
    MatMul({.matrix = qkv,
            .x = normed_.data(),
            .x_stride = spec_.hidden,
            .out = qkv_.data(),
            .out_stride = qkv_width_,
            .rows = rows_},
           begin, end);
  });
  ForRows(rows_, qkv_width_,
          [&](int64_t begin, int64_t end) { RopeAndStore(batch, index, begin, end); });
  Attention(batch, index);
  AddRowParallel(layer.attention_output, attended_.data(), query_width_, kAttentionTree);

  const MatrixView gate_up = layer.gate_up.view();
  NormAndQuantize(layer.ffn_norm, norm_eps, gate_up);
  pool_.ParallelFor(Panels(ffn_), [&](int64_t begin, int64_t end) { GateUp(gate_up, begin, end); });
  AddRowParallel(layer.down, gate_up_.data(), 2 * ffn_, kFfnTree);
}

void Forward::AddRowParallel(const std::vector<SplitProduct>& products, const float* x,
                             int64_t x_stride, int tree) {
  const int64_t hidden = spec_.hidden, panels = Panels(hidden);
  float* const outgoing = alone() ? nullptr : communicator_->Outgoing();
  const auto count = static_cast<int64_t>(products.size());
  std::vector<MatrixView>& views = views_;
  views.clear();
  for (const SplitProduct& product : products) views.push_back(product.matrix.view());
  const auto product = [&](int64_t i) {
    return Product{.matrix = views[i],
                   .x = x + products[i].first_k,
                   .x_stride = x_stride,
                   .out = alone() ? hidden_.data() : outgoing + i * rows_ * hidden,
                   .out_stride = hidden,
                   .accumulate = alone(),
                   .rows = rows_,
                   .first_k = products[i].first_k,
                   .first_split = products[i].first_split};
  };
  for (int64_t i = 0; i < count; ++i) Quantize(product(i));
  pool_.ParallelFor(count * panels, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin / panels; i * panels < end; ++i) {
      MatMul(product(i), std::max(begin - i * panels, int64_t{0}),
             std::min(end - i * panels, panels));
    }
  });
  if (alone()) return;
  const absl::Span<const float* const> parts = communicator_->Exchange(count * rows_ * hidden);
  ForRows(rows_, hidden * static_cast<int64_t>(trees_[tree].parts.size()),
          [&](int64_t begin, int64_t end) { AddParts(trees_[tree], parts, begin, end); });
}

void Forward::AddParts(const SumTree& tree, absl::Span<const float* const> parts, int64_t begin,
                       int64_t end) {
  const int64_t hidden = spec_.hidden;
  float registers[kTreeDepth][kTreeColumns];
  for (int64_t at = begin * hidden; at < end * hidden; at += kTreeColumns) {
    const int64_t n = std::min(kTreeColumns, end * hidden - at);
    for (const TreeStep& step : tree.program.steps) {
      if (step.load) {
        const SumTree::Part& part = tree.parts[step.from];
        std::copy_n(parts[part.rank] + part.place * rows_ * hidden + at, n, registers[step.to]);
      } else {
        ops_.add(registers[step.to + 1], registers[step.to], n);
      }
    }
    ops_.add(registers[0], hidden_.data() + at, n);
  }
}

void Forward::GateUp(const MatrixView& gate_up, int64_t begin, int64_t end) {
  const int64_t panels = Panels(ffn_);
  const Product product{.matrix = gate_up,
                        .x = normed_.data(),
                        .x_stride = spec_.hidden,
                        .out = gate_up_.data(),
                        .out_stride = 2 * ffn_,
                        .rows = rows_};
  for (int64_t p = begin; p < end; p += kFusedPanels) {
    const int64_t last = std::min(p + kFusedPanels, end);
    MatMul(product, p, last);
    MatMul(product, panels + p, panels + last);
    const int64_t column = p * kPanelColumns;
    float* gate = gate_up_.data() + column;
    const kernels::SiluMulArgs args{
        .gate = gate,
        .up = gate + ffn_,
        .in_stride = 2 * ffn_,
        .n = static_cast<int>(std::min(last * kPanelColumns, ffn_) - column),
        .out = gate,
        .out_stride = 2 * ffn_};
    ops_.silu_mul(args, 0, rows_);
  }
}

void Forward::RopeAndStore(const Batch& batch, int layer, int64_t begin, int64_t end) {
  // Two tokens of a sequence whose V share a bf16 pair belong to one thread: a
  // range starts and ends at an even position or another sequence.
  const auto align = [&](int64_t row) {
    const bool splits_pair = row > 0 && row < rows_ && positions_[row] % 2 == 1 &&
                             row_items_[row] == row_items_[row - 1];
    return splits_pair ? row + 1 : row;
  };
  begin = align(begin);
  end = align(end);
  if (begin >= end) return;

  if (!weights_.layers[layer].query_norm.empty()) NormHeads(layer, begin, end);
  const int dim = static_cast<int>(spec_.attention().head_dim);
  const kernels::RopeArgs rope{.x = qkv_.data(),
                               .token_stride = qkv_width_,
                               .heads = query_heads_ + kv_heads_,
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
                               .heads = kv_heads_,
                               .k = token + query_width_,
                               .v = token + query_width_ + kv_width_,
                               .token_stride = qkv_width_};
    write.cache.block_table = batch.table(index, GroupIndex{0}).data();
    ops_.kv_write(write, static_cast<int>(row - item.row_begin),
                  static_cast<int>(item_end - item.row_begin));
    row = item_end;
  }
}

void Forward::NormHeads(int layer, int64_t begin, int64_t end) {
  const LayerWeights& weights = weights_.layers[layer];
  const float eps = spec_.layers[weights_.shard.layers.begin + layer].norm_eps;
  const int dim = static_cast<int>(spec_.attention().head_dim);
  const auto norm = [&](float* heads, int count, const std::vector<float>& weight) {
    ops_.rms_norm({.x = heads,
                   .x_stride = dim,
                   .weight = weight.data(),
                   .n = dim,
                   .eps = eps,
                   .out = heads,
                   .out_stride = dim},
                  0, count);
  };
  for (int64_t row = begin; row < end; ++row) {
    float* const token = qkv_.data() + row * qkv_width_;
    norm(token, query_heads_, weights.query_norm);
    norm(token + query_width_, kv_heads_, weights.key_norm);
  }
}

void Forward::Attention(const Batch& batch, int layer) {
  const kernels::KvView cache = cache_.Layer(layer);
  const int group = static_cast<int>(spec_.attention().heads / spec_.attention().kv_heads);
  pool_.ParallelItems(static_cast<int64_t>(attention_items_.size()), [&](int64_t i) {
    const AttentionItem& part = attention_items_[i];
    const BatchItem& item = batch.items[part.item];
    const int64_t head_offset = int64_t{part.kv_head} * group * spec_.attention().head_dim;
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

void Forward::Logits(absl::Span<const int32_t> logit_rows, bool to_all, WantsFullRow full_row,
                     LogitSink sink) {
  const int64_t hidden = spec_.hidden, vocab = spec_.vocab;
  const MatrixView head = weights_.head.view();
  for (size_t first = 0; first < logit_rows.size(); first += kLogitRows) {
    const auto tile = logit_rows.subspan(first, kLogitRows);
    const int rows = static_cast<int>(tile.size());
    for (int i = 0; i < rows; ++i) {
      ops_.rms_norm({.x = hidden_.data() + tile[i] * hidden,
                     .x_stride = hidden,
                     .weight = weights_.output_norm.data(),
                     .n = static_cast<int>(hidden),
                     .eps = spec_.output_norm_eps,
                     .out = normed_.data() + i * hidden,
                     .out_stride = hidden},
                    0, 1);
    }
    float* const logits = alone() ? logits_.data() : communicator_->Logits();
    const Product product{.matrix = head,
                          .x = normed_.data(),
                          .x_stride = hidden,
                          .out = logits + weights_.shard.vocab.begin,
                          .out_stride = vocab,
                          .rows = rows};
    Quantize(product);
    pool_.ParallelFor(head.panels(),
                      [&](int64_t begin, int64_t end) { MatMul(product, begin, end); });
    bool any_whole = false;
    for (int i = 0; i < rows; ++i) any_whole |= full_row(static_cast<int>(first) + i);
    if (!alone() && any_whole) communicator_->ShareLogits(rows);
    const IndexRange own = weights_.shard.vocab;
    pool_.ParallelItems(rows, [&](int64_t i) {
      const int request = static_cast<int>(first + i);
      const float* const row = logits + i * vocab;
      if (!alone() && !full_row(request)) {
        sink(request, {row + own.begin, own.size()});
      } else if (to_all || HasLogits(request)) {
        sink(request, {row, static_cast<size_t>(vocab)});
      }
    });
  }
}

void Forward::NormAndQuantize(const std::vector<float>& weight, float eps,
                              const MatrixView& matrix) {
  const int64_t hidden = spec_.hidden;
  const kernels::RmsNormArgs norm{.x = hidden_.data(),
                                  .x_stride = hidden,
                                  .weight = weight.data(),
                                  .n = static_cast<int>(hidden),
                                  .eps = eps,
                                  .out = normed_.data(),
                                  .out_stride = hidden};
  const kernels::QuantizeArgs quantize = QuantizeFor({.matrix = matrix,
                                                      .x = normed_.data(),
                                                      .x_stride = hidden,
                                                      .out = nullptr,
                                                      .out_stride = 0,
                                                      .rows = rows_});
  ForRows(rows_, hidden, [&](int64_t begin, int64_t end) {
    ops_.rms_norm(norm, static_cast<int>(begin), static_cast<int>(end));
    if (Quantizes(matrix)) {
      ops_.quantize_rows(quantize, static_cast<int>(begin), static_cast<int>(end));
    }
  });
}

void Forward::Quantize(const Product& product) {
  if (!Quantizes(product.matrix)) return;
  const kernels::QuantizeArgs args = QuantizeFor(product);
  ForRows(product.rows, product.matrix.k, [&](int64_t begin, int64_t end) {
    ops_.quantize_rows(args, static_cast<int>(begin), static_cast<int>(end));
  });
}

kernels::QuantizeArgs Forward::QuantizeFor(const Product& product) {
  return {.x = product.x,
          .x_stride = product.x_stride,
          .k = product.matrix.k,
          .split_count = product.matrix.split_count,
          .split_ends = product.matrix.split_ends,
          .out = QuantizedOf(product)};
}

kernels::QuantizedRows Forward::QuantizedOf(const Product& product) {
  return {quantized_.data() + product.rows * product.first_k,
          block_sums_.data() + product.rows * product.first_k / kBlockK,
          scales_.data() + product.rows * product.first_split};
}

void Forward::MatMul(const Product& p, int64_t begin, int64_t end) {
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

void Forward::ForRows(int rows, int64_t row_elements,
                      absl::FunctionRef<void(int64_t, int64_t)> fn) {
  if (rows * row_elements < kParallelElements) {
    fn(0, rows);
  } else {
    pool_.ParallelFor(rows, fn);
  }
}

}  // namespace flotilla::worker
