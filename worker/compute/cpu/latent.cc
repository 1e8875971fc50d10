// The latent attention of CpuBackend: products of each head with a matrix of its own.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "worker/compute/cpu/cpu_backend.h"

namespace flotilla::worker {
namespace {

using kernels::kPanelColumns;
using kernels::MatrixView;

}  // namespace

absl::StatusOr<HeadMatricesHandle> CpuBackend::AddHeadMatrices(std::vector<MatrixPart> parts) {
  NoteMove();
  const auto heads = static_cast<int64_t>(parts.size());
  const auto k = static_cast<int64_t>(parts[0].tensor->dims[parts[0].transposed ? 1 : 0]);
  const auto columns = static_cast<int>(parts[0].rows.size());
  for (MatrixPart& part : parts) {
    part.outputs = static_cast<uint32_t>(Panels(columns) * kPanelColumns);
  }
  const auto matrix = packer_.Add(std::move(parts), k);
  if (!matrix.ok()) return matrix.status();
  HeadMatrices made;
  for (int64_t head = 0; head < heads; ++head) {
    made.views.push_back((*matrix)->view().From(static_cast<int>(head * Panels(columns)), 0));
    made.views.back().columns = columns;
  }
  widest_ = std::max(widest_, heads * (*matrix)->k());
  most_splits_ = std::max(most_splits_, heads);
  head_matrices_.push_back(std::move(made));
  return HeadMatricesHandle(static_cast<int32_t>(head_matrices_.size() - 1));
}

void CpuBackend::RunHeads(const HeadMatrices& matrices, const Buffer& x, int64_t x_head,
                          absl::Span<const int32_t> places, Buffer& out) {
  const auto heads = static_cast<int64_t>(matrices.views.size());
  const int64_t panels = Panels(matrices.columns());
  const auto product = [&](int64_t head) {
    return Product{.matrix = matrices.views[head],
                   .x = x.data.data() + head * x_head,
                   .x_stride = x.width,
                   .out = out.data.data() + places[head],
                   .out_stride = out.width,
                   .rows = rows(),
                   .first_k = head * matrices.k(),
                   .first_split = head};
  };
  if (Quantizes(matrices.views.front())) {
    ForRows(rows(), heads * matrices.k(), [&](int64_t begin, int64_t end) {
      for (int64_t head = 0; head < heads; ++head) {
        ops_.quantize_rows(QuantizeFor(product(head)), static_cast<int>(begin),
                           static_cast<int>(end));
      }
    });
  }
  pool_.ParallelFor(heads * panels, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin / panels; head * panels < end; ++head) {
      MatMul(product(head), std::max(begin - head * panels, int64_t{0}),
             std::min(end - head * panels, panels));
    }
  });
}

void CpuBackend::Absorb(const LatentOp& op, BufferHandle queries, BufferHandle latent,
                        BufferHandle to) {
  NoteMove();
  const HeadMatrices& keys = head_matrices_[op.keys.index()];
  const Buffer &q = At(queries), &c = At(latent);
  Buffer& qkv = At(to);
  const auto heads = static_cast<int64_t>(keys.views.size());
  const int64_t rank = keys.columns(), nope = keys.k(), rope = op.rope_dim, dim = rank + rope;
  std::vector<int32_t> places;
  for (int64_t head = 0; head < heads; ++head) places.push_back(static_cast<int32_t>(head * dim));
  RunHeads(keys, q, nope + rope, places, qkv);
  ForRows(rows(), heads * rope + dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const query = q.data.data() + r * q.width;
      float* const row = qkv.data.data() + r * qkv.width;
      for (int64_t head = 0; head < heads; ++head) {
        std::copy_n(query + head * (nope + rope) + nope, rope, row + head * dim + rank);
      }
      std::copy_n(c.data.data() + r * c.width + rank, rope, row + heads * dim + rank);
    }
    NormRows(op.norm, c.data.data(), c.width, static_cast<int>(rank), qkv.data.data() + heads * dim,
             qkv.width, begin, end);
  });
}

void CpuBackend::MultiplyHeads(BufferHandle in, HeadMatricesHandle handle,
                               const std::vector<int32_t>& places, BufferHandle out) {
  // What no head owns stays zero from the start: nothing else writes to this buffer.
  const HeadMatrices& matrices = head_matrices_[handle.index()];
  RunHeads(matrices, At(in), matrices.k(), places, At(out));
}

}  // namespace flotilla::worker
