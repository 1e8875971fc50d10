// The operations of CudaBackend: which kernels each enqueues.
#include <algorithm>
#include <cstring>
#include <utility>

#include "model/tensor.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/compute/host/split_weights.h"

namespace flotilla::worker {

using kernels::kSumSpan;
using kernels::cuda::Ops;
using Queue = Device::Queue;

template <class Args>
void CudaBackend::Run(int (*Ops::*op)(const Args&, kernels::cuda::Stream), const Args& args) {
  if (!failure_.ok()) return;  // what it would read may not be there
  device_->Launch(Queue::kCompute, [op, args](const Ops& ops, kernels::cuda::Stream stream) {
    return (ops.*op)(args, stream);
  });
}

bool CudaBackend::Fetch(const float* from, std::int64_t count, float* to) {
  if (to == nullptr) Fail(step_->pinned.status());
  if (!failure_.ok()) return false;
  device_->Download(Queue::kCompute, to, from, static_cast<std::size_t>(count) * sizeof(float));
  Fail(device_->Synchronize(device_->Record(Queue::kCompute)));
  return failure_.ok();
}

void CudaBackend::Embed(EmbeddingHandle handle, BufferHandle out) {
  const EmbeddingSource& source = embeddings_[handle.index()];
  const Buffer& x = At(out);
  const StepInputs& inputs = step_->inputs;
  const auto width = static_cast<std::size_t>(x.width);
  auto* const vectors = step_->pinned.Take<float>(static_cast<std::size_t>(rows()) * width);
  if (vectors == nullptr) return Fail(step_->pinned.status());
  // This cannot fail: LoadSpec has checked types and sizes, GroupState tokens and positions.
  const auto read = [&](const model::Tensor& table, std::uint64_t row, float* to) {
    (void)model::DecodeRow(table, static_cast<std::int64_t>(row), {to, width});
  };
  pool_.ParallelFor(rows(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> position(source.positions == nullptr ? 0 : width);
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = vectors + r * x.width;
      read(*source.table, inputs.tokens[r].id, row);
      if (source.factor != 1) host_ops_.scale(row, source.factor, x.width);
      if (source.positions == nullptr) continue;
      read(*source.positions,
           static_cast<std::uint64_t>(inputs.positions[r]) + source.position_offset,
           position.data());
      host_ops_.add(position.data(), row, x.width);
    }
  });
  device_->Upload(Queue::kCompute, x.data(), vectors,
                  static_cast<std::size_t>(rows()) * width * sizeof(float));
}

void CudaBackend::ReceiveResidual(BufferHandle handle) {
  const Buffer& x = At(handle);
  if (!failure_.ok()) return;
  Fail(exchange_->ReceiveResidual(x.data(), rows() * x.width, step_->pinned));
}

void CudaBackend::SendResidual(BufferHandle handle) {
  const Buffer& x = At(handle);
  if (failure_.ok()) Fail(exchange_->SendResidual(x.data(), rows() * x.width, step_->pinned));
  step_->done = device_->Record(Queue::kCompute);
}

void CudaBackend::NormInPlace(BufferHandle handle, const NormOp& norm) {
  const Buffer& x = At(handle);
  Run(&Ops::rms_norm, kernels::cuda::RmsNormArgs{.x = x.data(),
                                                 .x_stride = x.width,
                                                 .rows = rows(),
                                                 .weight = At(norm.weight),
                                                 .n = static_cast<int>(x.width),
                                                 .eps = norm.spec.eps,
                                                 .out = x.data(),
                                                 .out_stride = x.width});
}

void CudaBackend::Norm(BufferHandle in, const NormOp& norm, MatrixHandle next, BufferHandle out) {
  const Buffer &x = At(in), &normed = At(out);
  Run(&Ops::rms_norm, kernels::cuda::RmsNormArgs{.x = x.data(),
                                                 .x_stride = x.width,
                                                 .rows = rows(),
                                                 .weight = At(norm.weight),
                                                 .n = static_cast<int>(x.width),
                                                 .eps = norm.spec.eps,
                                                 .out = normed.data(),
                                                 .out_stride = normed.width});
  // All pieces have the same activations: quantised for those that want it, and as they are.
  for (const Piece& piece : matrices_[next.index()].pieces) {
    if (!Quantizes(*piece.matrix)) continue;
    Quantize({.matrix = *piece.matrix,
              .x = normed.data(),
              .x_stride = normed.width,
              .out = nullptr,
              .out_stride = 0,
              .rows = rows()});
    break;
  }
}

void CudaBackend::Quantize(const Product& product) {
  if (!Quantizes(product.matrix)) return;
  Run(&Ops::quantize_rows, kernels::cuda::QuantizeArgs{.x = product.x,
                                                       .x_stride = product.x_stride,
                                                       .k = product.matrix.k,
                                                       .rows = product.rows,
                                                       .split_count = product.matrix.split_count,
                                                       .split_ends = product.matrix.split_ends,
                                                       .out = QuantizedOf(product)});
}

kernels::cuda::QuantizedRows CudaBackend::QuantizedOf(const Product& product) const {
  return {quantized_.as<std::int16_t>() + product.rows * product.first_k,
          group_sums_.as<float>() + product.rows * product.first_k / kSumSpan,
          scales_.as<float>() + product.rows * product.first_split};
}

void CudaBackend::MatMul(const Product& product) {
  if (Quantizes(product.matrix)) {
    Run(&Ops::matmul_i16, kernels::cuda::MatMulI16Args{.weights = product.matrix,
                                                       .x = QuantizedOf(product),
                                                       .rows = product.rows,
                                                       .out = product.out,
                                                       .out_stride = product.out_stride,
                                                       .accumulate = product.accumulate});
  } else {
    Run(&Ops::matmul_f32, kernels::cuda::MatMulF32Args{.weights = product.matrix,
                                                       .x = product.x,
                                                       .x_stride = product.x_stride,
                                                       .rows = product.rows,
                                                       .out = product.out,
                                                       .out_stride = product.out_stride,
                                                       .accumulate = product.accumulate});
  }
}

void CudaBackend::AddBias(const Device::Memory& bias, std::int64_t columns, const Buffer& out) {
  if (bias.data() == nullptr) return;
  Run(&Ops::add, kernels::cuda::AddArgs{.x = bias.as<float>(),
                                        .x_stride = 0,
                                        .y = out.data(),
                                        .y_stride = out.width,
                                        .n = static_cast<int>(columns),
                                        .rows = rows()});
}

void CudaBackend::MultiplyPieces(const Matrix& weights, const Buffer& x, const Buffer& out) {
  for (const Piece& piece : weights.pieces) {
    MatMul({.matrix = *piece.matrix,
            .x = x.data(),
            .x_stride = x.width,
            .out = out.data() + piece.column,
            .out_stride = out.width,
            .rows = rows()});
  }
  AddBias(weights.bias, weights.columns, out);
}

void CudaBackend::Multiply(BufferHandle x, MatrixHandle handle, BufferHandle out) {
  MultiplyPieces(matrices_[handle.index()], At(x), At(out));
}

void CudaBackend::GateUp(BufferHandle x, MatrixHandle handle, const FfnOp& ffn, BufferHandle to) {
  const Matrix& weights = matrices_[handle.index()];
  const Buffer& out = At(to);
  MultiplyPieces(weights, At(x), out);
  const std::int64_t width = weights.columns / (ffn.gated ? 2 : 1);
  Run(&Ops::activate, kernels::cuda::ActivateArgs{.activation = ffn.activation,
                                                  .gate = out.data(),
                                                  .up = ffn.gated ? out.data() + width : nullptr,
                                                  .in_stride = out.width,
                                                  .n = static_cast<int>(width),
                                                  .rows = rows(),
                                                  .out = out.data(),
                                                  .out_stride = out.width});
}

void CudaBackend::AddProjection(BufferHandle in, ProjectionHandle handle, BufferHandle residual) {
  const Projection& projection = projections_[handle.index()];
  const Buffer &x = At(in), &out = At(residual);
  const std::int64_t part = rows() * projection.columns;
  float* sums = sums_.as<float>();
  for (const SplitProduct& split : projection.products) {
    const Product product{.matrix = *split.matrix,
                          .x = x.data() + split.first_k,
                          .x_stride = x.width,
                          .out = alone() ? out.data() : sums,
                          .out_stride = projection.columns,
                          .accumulate = alone(),
                          .rows = rows(),
                          .first_k = split.first_k,
                          .first_split = split.first_split};
    Quantize(product);
    MatMul(product);
    sums += part;
  }
  if (!alone()) SumParts(projection, sums_.as<float>(), out);
  AddBias(projection.bias, projection.columns, out);
}

void CudaBackend::SumParts(const Projection& projection, const float* sums, const Buffer& out) {
  if (!failure_.ok()) return;
  const auto total = exchange_->Sum(projection.tree, sums, rows(), projection.columns);
  if (!total.ok()) return Fail(total.status());
  Run(&Ops::add, kernels::cuda::AddArgs{.x = *total,
                                        .x_stride = projection.columns,
                                        .y = out.data(),
                                        .y_stride = out.width,
                                        .n = static_cast<int>(projection.columns),
                                        .rows = rows()});
}

kernels::cuda::KvView CudaBackend::KvOf(const AttentionOp& attention) const {
  kernels::cuda::KvView view = kv_->Layer(attention.layer);
  view.blocks = step_->data.blocks;
  view.begins = step_->data.begins + attention.group.value();
  view.begin_stride = static_cast<int>(step_->inputs.group_count);
  return view;
}

void CudaBackend::NormHeads(const NormOp& norm, int size, int stride, int heads, const Buffer& qkv,
                            float* x) {
  Run(&Ops::rms_norm, kernels::cuda::RmsNormArgs{.x = x,
                                                 .x_stride = qkv.width,
                                                 .x_head_stride = stride,
                                                 .rows = rows(),
                                                 .heads = heads,
                                                 .weight = At(norm.weight),
                                                 .n = size,
                                                 .eps = norm.spec.eps,
                                                 .out = x,
                                                 .out_stride = qkv.width,
                                                 .out_head_stride = stride});
}

void CudaBackend::RopeAndStore(const AttentionOp& attention, BufferHandle handle) {
  const Buffer& qkv = At(handle);
  const int dim = attention.dims.key;
  const std::int64_t query_width = std::int64_t{attention.projected_heads} * dim;
  const std::int64_t key_width = std::int64_t{attention.projected_kv_heads} * dim;
  if (attention.head_norms == model::HeadNorms::kShared) {
    NormHeads(attention.query_norm, attention.head_dim, dim, attention.projected_heads, qkv,
              qkv.data());
    NormHeads(attention.key_norm, attention.head_dim, dim, attention.projected_kv_heads, qkv,
              qkv.data() + query_width);
  }
  if (attention.rope.valid()) {
    const Rope& rope = ropes_[attention.rope.index()];
    Run(&Ops::rope,
        kernels::cuda::RopeArgs{.x = qkv.data() + attention.rope_at,
                                .row_stride = qkv.width,
                                .rows = rows(),
                                .heads = attention.projected_heads + attention.projected_kv_heads,
                                .head_stride = dim,
                                .dim = rope.dim,
                                .positions = step_->data.positions,
                                .table = rope.table.as<float>()});
  }
  const std::int64_t first_key = query_width + std::int64_t{attention.first_kv_head} * dim;
  Run(&Ops::kv_write, kernels::cuda::KvWriteArgs{.cache = KvOf(attention),
                                                 .rows = rows(),
                                                 .heads = attention.kv_heads,
                                                 .sequences = step_->data.sequences,
                                                 .positions = step_->data.positions,
                                                 .k = qkv.data() + first_key,
                                                 .v = qkv.data() + query_width + key_width,
                                                 .row_stride = qkv.width});
}

void CudaBackend::Attend(const AttentionOp& attention, BufferHandle in, BufferHandle to) {
  const Buffer &qkv = At(in), &out = At(to);
  const int dim = attention.dims.key;
  const auto places = std::find(head_places_.begin(), head_places_.end(), attention.head_places);
  if (!failure_.ok()) return;
  kernels::cuda::AttentionArgs args{
      .cache = KvOf(attention),
      .kv_heads = attention.kv_heads,
      .group = attention.heads / attention.kv_heads,
      .sequences = step_->data.sequences,
      .positions = step_->data.positions,
      .first_segments = step_->data.first_segments,
      .segment_rows = step_->data.segment_rows,
      .q = qkv.data() + std::int64_t{attention.first_head} * dim,
      .q_stride = qkv.width,
      .scale = attention.scale,
      .scratch = attention_.as<float>(),
      .head_places = device_places_[places - head_places_.begin()].as<std::int32_t>(),
      .out_dim = attention.result_dim,
      .out = out.data(),
      .out_stride = out.width};
  // As many rows at a time as there is scratch for.
  const std::vector<std::int32_t>& segments = step_->first_segments;
  for (int begin = 0; begin < rows(); begin += args.rows) {
    int end = begin + 1;
    while (end < rows() && segments[end + 1] - segments[begin] <= attention_segments_) ++end;
    args.first_row = begin;
    args.rows = end - begin;
    args.first_segment = segments[begin];
    args.segments = segments[end] - segments[begin];
    Run(&Ops::paged_attention, args);
  }
}

bool CudaBackend::GetsFullRow(std::int64_t request) const {
  return step_->inputs.full_rows_to_all || request % options_.tensor_ranks == options_.tensor_rank;
}

void CudaBackend::Head(BufferHandle in, const NormOp& norm, HeadHandle handle) {
  if (options_.progress != nullptr) options_.progress->Move();
  const HeadWeights& head = heads_[handle.index()];
  const Buffer& x = At(in);
  const auto& requests = step_->inputs.requests;
  const auto count = static_cast<int>(requests.size());
  step_->head = &head;
  step_->host_logits.assign(requests.size(), nullptr);
  // The results of all tiles lie side by side, and go to the host at once.
  std::int64_t bytes = 0;
  for (int first = 0; first < count; first += kLogitRows) {
    TileResults tile{.first = first, .rows = std::min(kLogitRows, count - first)};
    for (int i = first; i < first + tile.rows; ++i) {
      tile.top = std::max(tile.top, std::min(requests[i].top, head.shard.tokens));
    }
    const auto place = [&](std::int64_t values, std::size_t size) {
      return std::exchange(bytes,
                           bytes + (values * static_cast<std::int64_t>(size) + 15) / 16 * 16);
    };
    const auto subtrees = static_cast<std::int64_t>(head.shard.subtrees.size());
    tile.stats = place(subtrees * tile.rows, sizeof(kernels::SoftmaxStats));
    tile.best = place(std::int64_t{tile.rows} * tile.top, sizeof(kernels::TokenScore));
    tile.greedy = place(tile.rows, sizeof(kernels::TokenScore));
    tile.gumbel = place(tile.rows, sizeof(kernels::TokenScore));
    tile.gumbel_logits = place(tile.rows, sizeof(float));
    tile.known = place(tile.rows, sizeof(float));
    step_->tiles.push_back(tile);
  }
  auto* const results = step_->memory.Take<std::byte>(static_cast<std::size_t>(bytes));
  step_->results = step_->pinned.Take<std::byte>(static_cast<std::size_t>(bytes));
  if (results == nullptr || step_->results == nullptr) {
    Fail(results == nullptr ? step_->memory.status() : step_->pinned.status());
  }
  for (const TileResults& tile : step_->tiles) {
    if (!failure_.ok()) break;
    if (head.matrix != nullptr) {
      Run(&Ops::rms_norm,
          kernels::cuda::RmsNormArgs{.x = x.data(),
                                     .x_stride = x.width,
                                     .x_rows = step_->data.request_rows + tile.first,
                                     .rows = tile.rows,
                                     .weight = At(norm.weight),
                                     .n = static_cast<int>(x.width),
                                     .eps = norm.spec.eps,
                                     .out = head_input_.as<float>(),
                                     .out_stride = x.width});
      const Product product{.matrix = *head.matrix,
                            .x = head_input_.as<float>(),
                            .x_stride = x.width,
                            .out = logits_.as<float>(),
                            .out_stride = head.size,
                            .rows = tile.rows};
      Quantize(product);
      MatMul(product);
      ReduceTile(head, tile, results);
    }
    ShareTile(head, tile);
  }
  if (failure_.ok() && count > 0) {
    device_->Download(Queue::kCompute, step_->results, results, static_cast<std::size_t>(bytes));
  }
  step_->done = device_->Record(Queue::kCompute);
}

void CudaBackend::ReduceTile(const HeadWeights& head, const TileResults& tile, std::byte* results) {
  using kernels::cuda::LogitRows;
  const VocabularyShard& shard = head.shard;
  const auto at = [&](std::int64_t place) { return results + place; };
  const LogitRows all{.logits = logits_.as<float>(),
                      .stride = head.size,
                      .n = static_cast<int>(head.size),
                      .rows = tile.rows};
  auto* stats = reinterpret_cast<kernels::SoftmaxStats*>(at(tile.stats));
  LogitRows subtree = all;
  for (const std::int32_t size : shard.subtrees) {
    subtree.n = size;
    Run(&Ops::softmax_stats, kernels::cuda::SoftmaxStatsArgs{.in = subtree, .out = stats});
    subtree.logits += size;
    stats += tile.rows;
  }
  if (shard.tokens == 0) return;
  // Entries behind the tokens are never drawn or listed.
  LogitRows tokens = all;
  tokens.n = shard.tokens;
  if (tile.top > 0) {
    auto* const best = reinterpret_cast<kernels::TokenScore*>(at(tile.best));
    Run(&Ops::top_n, kernels::cuda::TopNArgs{.in = tokens, .count = tile.top, .out = best});
  }
  const auto any = [&](RowRequest::Pick pick) {
    const auto begin = step_->inputs.requests.begin() + tile.first;
    return std::any_of(begin, begin + tile.rows, [&](const RowRequest& request) {
      return !request.full_row && request.pick == pick;
    });
  };
  if (any(RowRequest::Pick::kGreedy)) {
    auto* const greedy = reinterpret_cast<kernels::TokenScore*>(at(tile.greedy));
    Run(&Ops::argmax, kernels::cuda::ArgMaxArgs{.in = tokens, .out = greedy});
  }
  if (any(RowRequest::Pick::kGumbel)) {
    auto* const winners = reinterpret_cast<kernels::TokenScore*>(at(tile.gumbel));
    Run(&Ops::gumbel_argmax,
        kernels::cuda::GumbelArgMaxArgs{
            .in = tokens, .draws = step_->data.draws + tile.first, .out = winners});
    static_assert(sizeof *winners == 2 * sizeof winners->token);
    Run(&Ops::logits_of,
        kernels::cuda::LogitsOfArgs{.in = tokens,
                                    .tokens = &winners->token,
                                    .token_stride = 2,
                                    .first_token = shard.first_token,
                                    .out = reinterpret_cast<float*>(at(tile.gumbel_logits))});
  }
  if (any(RowRequest::Pick::kKnown)) {
    Run(&Ops::logits_of,
        kernels::cuda::LogitsOfArgs{.in = tokens,
                                    .tokens = step_->data.known + tile.first,
                                    .first_token = shard.first_token,
                                    .out = reinterpret_cast<float*>(at(tile.known))});
  }
}

void CudaBackend::ShareTile(const HeadWeights& head, const TileResults& tile) {
  const auto& requests = step_->inputs.requests;
  const auto is_full = [&](int row) { return requests[tile.first + row].full_row; };
  bool any_full = false;
  for (int row = 0; row < tile.rows; ++row) any_full = any_full || is_full(row);
  if (!alone() && any_full) {
    // Through the memory of the exchange, where the other ranks put their columns.
    float* const shared = options_.exchange->Logits();
    const std::int64_t count = tile.rows * head.size;
    auto* const own = step_->pinned.Take<float>(static_cast<std::size_t>(count));
    if (count > 0 && !Fetch(logits_.as<float>(), count, own)) return;
    // A rank without columns does its part of the work, for which others wait, before it waits.
    if (count == 0) Fail(device_->Synchronize(device_->Record(Queue::kCompute)));
    for (int row = 0; row < tile.rows && count > 0; ++row) {
      std::copy_n(own + row * head.size, head.size,
                  shared + row * head.vocabulary + head.shard.first_token);
    }
    options_.exchange->ShareLogits(tile.rows,
                                   {.all = step_->inputs.full_rows_to_all,
                                    .first_owner = static_cast<std::uint32_t>(tile.first)});
    for (int row = 0; row < tile.rows; ++row) {
      if (!is_full(row) || !GetsFullRow(tile.first + row)) continue;
      step_->receiver->TakeRow(tile.first + row, {shared + row * head.vocabulary,
                                                  static_cast<std::size_t>(head.vocabulary)});
    }
  }
  for (int row = 0; row < tile.rows && head.size > 0; ++row) {
    const RowRequest& request = requests[tile.first + row];
    const bool edited = !request.full_row && request.edits_begin < request.edits_end;
    if (!edited && !(alone() && request.full_row)) continue;
    auto* const to = step_->pinned.Take<float>(static_cast<std::size_t>(head.size));
    if (to == nullptr) return Fail(step_->pinned.status());
    device_->Download(Queue::kCompute, to, logits_.as<float>() + row * head.size,
                      static_cast<std::size_t>(head.size) * sizeof(float));
    step_->host_logits[static_cast<std::size_t>(tile.first + row)] = to;
  }
}

}  // namespace flotilla::worker
