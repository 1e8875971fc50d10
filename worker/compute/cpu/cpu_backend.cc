#include "worker/compute/cpu/cpu_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/spec.h"

namespace flotilla::worker {

using kernels::kActivationGroup;
using kernels::PackedMatrix;

CpuBackend::CpuBackend(const BackendOptions& options)
    : options_(options),
      scratch_rows_(std::max(options.max_rows, kLogitRows)),
      ops_(kernels::GetOps(options.isa)),
      pool_(options.threads) {}

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

absl::Status CpuBackend::Check(const model::ModelSpec& spec) const {
  const uint32_t head_dim = spec.attention().head_dim;
  if (head_dim % 16 != 0 || head_dim > kernels::kMaxHeadDim) {
    return absl::UnimplementedError(absl::StrCat(
        "head size ", head_dim, " is not a multiple of 16 up to ", kernels::kMaxHeadDim));
  }
  return absl::OkStatus();
}

BufferHandle CpuBackend::AddBuffer(int64_t width) {
  NoteMove();
  buffers_.push_back({width, AlignedBuffer<float>(options_.max_rows * width)});
  return BufferHandle(static_cast<int32_t>(buffers_.size() - 1));
}

VectorHandle CpuBackend::AddVector(std::vector<float> values) {
  vectors_.push_back(std::move(values));
  return VectorHandle(static_cast<int32_t>(vectors_.size() - 1));
}

RopeHandle CpuBackend::AddRope(absl::Span<const float> frequencies) {
  ropes_.push_back(std::make_unique<kernels::RopeTable>(options_.max_positions, frequencies));
  return RopeHandle(static_cast<int32_t>(ropes_.size() - 1));
}

EmbeddingHandle CpuBackend::AddEmbedding(const model::Tensor& table) {
  embeddings_.push_back(table);
  return EmbeddingHandle(static_cast<int32_t>(embeddings_.size() - 1));
}

absl::StatusOr<MatrixHandle> CpuBackend::AddMatrix(std::vector<MatrixPart> parts) {
  NoteMove();
  const auto k = static_cast<int64_t>(parts[0].tensor->dims[0]);
  auto matrix = packer_.Add(std::move(parts), k);
  if (!matrix.ok()) return matrix.status();
  widest_ = std::max(widest_, k);
  matrices_.push_back(*matrix);
  return MatrixHandle(static_cast<int32_t>(matrices_.size() - 1));
}

absl::StatusOr<ProjectionHandle> CpuBackend::AddProjection(const ProjectionSource& source) {
  NoteMove();
  const auto all = static_cast<uint32_t>(source.split_ends.size());
  const IndexRange own = source.splits[options_.tensor_rank];
  const auto begin_of = [&](uint32_t split) {
    return split == 0 ? 0 : source.split_ends[split - 1];
  };
  const IndexRange rows{0, static_cast<uint32_t>(source.tensor->dims[1])};
  Projection projection;
  for (const IndexRange& subtree : SubtreesOf(own, all)) {
    const int32_t first = begin_of(subtree.begin);
    std::vector<int32_t> ends;
    for (uint32_t split = subtree.begin; split < subtree.end; ++split) {
      ends.push_back(source.split_ends[split] - first);
    }
    auto matrix = packer_.Add({{.tensor = source.tensor, .rows = rows}}, ends.back(), first, ends);
    if (!matrix.ok()) return matrix.status();
    projection.products.push_back({.matrix = *matrix,
                                   .first_k = first - begin_of(own.begin),
                                   .first_split = static_cast<int>(subtree.begin - own.begin)});
    projection.views.push_back((*matrix)->view());
  }
  if (!alone()) projection.tree = MakeSumTree(source.splits, all);
  widest_ = std::max<int64_t>(widest_, begin_of(own.end) - begin_of(own.begin));
  most_splits_ = std::max<int64_t>(most_splits_, own.size());
  projections_.push_back(std::move(projection));
  return ProjectionHandle(static_cast<int32_t>(projections_.size() - 1));
}

absl::StatusOr<HeadHandle> CpuBackend::AddHead(const HeadSource& source) {
  HeadWeights head{.matrix = nullptr,
                   .shard = source.shard,
                   .vocabulary = source.vocabulary,
                   .size = source.part.rows.size()};
  const auto hidden = static_cast<int64_t>(source.part.tensor->dims[0]);
  if (head.size > 0) {
    auto matrix = packer_.Add({source.part}, hidden);
    if (!matrix.ok()) return matrix.status();
    head.matrix = *matrix;
  }
  widest_ = std::max(widest_, hidden);
  head_input_ = AlignedBuffer<float>(kLogitRows * hidden);
  if (alone()) logits_ = AlignedBuffer<float>(kLogitRows * source.vocabulary);
  heads_.push_back(std::move(head));
  return HeadHandle(static_cast<int32_t>(heads_.size() - 1));
}

absl::Status CpuBackend::Load() {
  quantized_ = AlignedBuffer<int16_t>(scratch_rows_ * widest_);
  group_sums_ = AlignedBuffer<float>(scratch_rows_ * widest_ / kActivationGroup);
  scales_ = AlignedBuffer<float>(scratch_rows_ * most_splits_);
  row_sequences_.resize(options_.max_rows);
  return packer_.Pack(pool_, options_.progress);
}

uint32_t CpuBackend::DefaultBlockCount(const KvShape& /*own*/, const KvShape& all,
                                       uint32_t max_context) const {
  return worker::DefaultBlockCount(all, max_context);
}

absl::Status CpuBackend::CreateKv(const KvShape& shape, uint32_t blocks, const TierOptions& tiers) {
  auto cache = KvCache::Create(shape, blocks);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  auto store = TierStore::Create(tiers, cache_, *options_.clock, options_.progress);
  if (!store.ok()) return store.status();
  tiers_ = *std::move(store);
  return absl::OkStatus();
}

int64_t CpuBackend::buffer_bytes() const {
  int64_t bytes = quantized_.bytes() + group_sums_.bytes() + scales_.bytes() + head_input_.bytes() +
                  logits_.bytes();
  for (const Buffer& buffer : buffers_) bytes += buffer.data.bytes();
  return bytes;
}

void CpuBackend::Start(StepInputs inputs, RowReceiver* receiver) {
  NoteMove();
  for (const BlockId block : inputs.granted) cache_.Poison(block);
  for (const BlockCopy& copy : inputs.copies) cache_.CopyBlock(copy.from, copy.to);
  for (BackgroundCopy& copy : inputs.background) tiers_->Start(std::move(copy));
  inputs_ = std::move(inputs);
  receiver_ = receiver;
  for (size_t i = 0; i < inputs_.sequences.size(); ++i) {
    const StepSequence& sequence = inputs_.sequences[i];
    std::fill_n(row_sequences_.begin() + sequence.row_begin, sequence.row_count,
                static_cast<int32_t>(i));
  }
  PlanAttention();
  partials_.emplace_back(inputs_.requests.size());
}

absl::StatusOr<std::vector<RowPartial>> CpuBackend::Finish() {
  std::vector<RowPartial> partials = std::move(partials_.front());
  partials_.pop_front();
  return partials;
}

}  // namespace flotilla::worker
