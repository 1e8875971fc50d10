#include "worker/compute/cpu/cpu_backend.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/spec.h"
#include "worker/compute/host/split_weights.h"
#include "worker/compute/model_shard.h"
#include "worker/core/split_layout.h"

namespace flotilla::worker {

using kernels::kSumSpan;
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
  return kernels::CheckKvDims(KvDimsOf(spec.attention()));
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

RopeHandle CpuBackend::AddRope(const model::RopeSpec& rope) {
  ropes_.push_back(std::make_unique<kernels::RopeTable>(options_.max_positions, rope.frequencies,
                                                        rope.magnitude));
  return RopeHandle(static_cast<int32_t>(ropes_.size() - 1));
}

EmbeddingHandle CpuBackend::AddEmbedding(const EmbeddingSource& source) {
  embeddings_.push_back(source);
  return EmbeddingHandle(static_cast<int32_t>(embeddings_.size() - 1));
}

absl::StatusOr<MatrixHandle> CpuBackend::AddMatrix(std::vector<MatrixPart> parts,
                                                   std::vector<float> bias) {
  NoteMove();
  const auto k = static_cast<int64_t>(parts[0].tensor->dims[parts[0].transposed ? 1 : 0]);
  FollowActivations(parts, /*equal=*/false);
  Matrix made{.pieces = {}, .bias = std::move(bias)};
  int64_t column = 0;
  for (auto begin = parts.begin(); begin != parts.end();) {
    const WeightEncoding encoding = begin->encoding();
    const auto end = std::find_if(
        begin, parts.end(), [&](const MatrixPart& part) { return part.encoding() != encoding; });
    const auto packed = packer_.Add({begin, end}, k);
    if (!packed.ok()) return packed.status();
    Piece piece{.view = (*packed)->view(), .column = column, .form = 0};
    const auto known =
        std::find_if(made.pieces.begin(), made.pieces.end(), [&](const Piece& other) {
          return Quantizes(other.view) && other.view.activations == piece.view.activations;
        });
    if (Quantizes(piece.view)) {
      piece.form = known == made.pieces.end() ? made.forms++ : known->form;
    }
    made.pieces.push_back(piece);
    column += (*packed)->columns();
    begin = end;
  }
  const int64_t forms = std::max(1, made.forms);
  widest_ = std::max<int64_t>(widest_, forms * made.pieces.front().view.k);
  most_splits_ = std::max(most_splits_, forms);
  matrices_.push_back(std::move(made));
  return MatrixHandle(static_cast<int32_t>(matrices_.size() - 1));
}

void CpuBackend::FollowActivations(std::vector<MatrixPart>& parts, bool equal) const {
  if (options_.recipe != Recipe::kFast) return;
  for (MatrixPart& part : parts) part.fast = true;
  const bool same = std::all_of(parts.begin(), parts.end(), [&](const MatrixPart& part) {
    return part.encoding() == parts.front().encoding();
  });
  for (MatrixPart& part : parts) part.fast = same || !equal;
}

int64_t CpuBackend::Matrix::panels() const {
  int64_t panels = 0;
  for (const Piece& piece : pieces) panels += piece.view.panels();
  return panels;
}

absl::StatusOr<ProjectionHandle> CpuBackend::AddProjection(const ProjectionSource& source) {
  NoteMove();
  const auto all = static_cast<uint32_t>(source.split_ends.size());
  const IndexRange own = source.splits[options_.tensor_rank];
  const std::vector<SplitPlace> places = PlaceSplits(source.split_ends);
  Projection projection;
  projection.bias = source.bias;
  const int32_t own_at = places[own.begin].at;
  for (const IndexRange& subtree : SubtreesOf(own, all)) {
    SplitWeights weights = WeightsOfSplits(source, places, subtree);
    weights.part.fast = options_.recipe == Recipe::kFast;
    auto matrix =
        packer_.Add({weights.part}, weights.k(), std::move(weights.segments), weights.ends);
    if (!matrix.ok()) return matrix.status();
    projection.products.push_back({.matrix = *matrix,
                                   .first_k = places[subtree.begin].at - own_at,
                                   .first_split = static_cast<int>(subtree.begin - own.begin)});
    projection.views.push_back((*matrix)->view());
  }
  if (!alone()) projection.tree = MakeSumTree(source.splits, all);
  const SplitPlace& last = places[own.end - 1];
  widest_ = std::max<int64_t>(widest_, last.at + last.width - own_at);
  most_splits_ = std::max<int64_t>(most_splits_, own.size());
  projections_.push_back(std::move(projection));
  return ProjectionHandle(static_cast<int32_t>(projections_.size() - 1));
}

absl::StatusOr<HeadHandle> CpuBackend::AddHead(const HeadSource& source) {
  HeadWeights head{.matrix = nullptr,
                   .shard = source.shard,
                   .vocabulary = source.vocabulary,
                   .size = source.part.rows.size(),
                   .bias = source.bias,
                   .factor = source.factor,
                   .softcap = source.softcap};
  const auto hidden = static_cast<int64_t>(source.part.tensor->dims[0]);
  if (head.size > 0) {
    std::vector<MatrixPart> parts = {source.part};
    FollowActivations(parts, /*equal=*/true);
    auto matrix = packer_.Add(std::move(parts), hidden);
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
  group_sums_ = AlignedBuffer<float>(scratch_rows_ * widest_ / kSumSpan);
  scales_ = AlignedBuffer<float>(scratch_rows_ * most_splits_);
  row_sequences_.resize(options_.max_rows);
  if (options_.progress != nullptr) {
    options_.progress->Begin(LoadPhase::kWeights, packer_.file_bytes());
  }
  return packer_.Pack(pool_, options_.progress, options_.pages);
}

std::string CpuBackend::memory_id() const {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

BlockChoice CpuBackend::DefaultBlockCount(const KvShape& own, const BlockNeeds& needs) const {
  const AvailableMemory memory = options_.available_memory ? options_.available_memory()
                                                           : AvailableMemoryOf(ReadMemoryFiles());
  const int64_t open_bytes =
      own.open_bytes * MostOpenRuns(options_.max_sequences, options_.max_rows);
  const int percent = needs.share_percent > 0 ? needs.share_percent : kCpuSharePercent;
  const uint32_t count = BlocksWithin({.bytes = memory.bytes / needs.sharers - open_bytes -
                                                needs.host_blocks * own.bytes_per_block(),
                                       .share_percent = percent,
                                       .bytes_per_block = own.bytes_per_block(),
                                       .one_sequence = needs.one_sequence,
                                       .most = needs.one_sequence * needs.max_sequences});
  return {.count = count,
          .reason = absl::StrFormat("%d %% of the %.1f GiB that %s has available", percent,
                                    static_cast<double>(memory.bytes) / (1 << 30), memory.whose)};
}

absl::Status CpuBackend::CreateKv(const KvShape& shape, uint32_t blocks, const TierOptions& tiers) {
  const int open_runs = MostOpenRuns(options_.max_sequences, options_.max_rows);
  auto cache = KvCache::Create(shape, blocks, static_cast<uint32_t>(open_runs));
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
  bytes += routing_.logits.bytes() + routing_.x.bytes() + routing_.values.bytes() +
           routing_.group_sums.bytes() + routing_.scales.bytes();
  for (const AlignedBuffer<float>& scratch : routing_.scratch) bytes += scratch.bytes();
  return bytes;
}

void CpuBackend::Start(StepInputs inputs, RowReceiver* receiver) {
  NoteMove();
  for (const BlockId block : inputs.granted) cache_.Poison(block);
  for (const SequenceHandle sequence : inputs.opened) {
    cache_.PoisonRun(static_cast<int32_t>(sequence.value()));
  }
  for (const BlockCopy& copy : inputs.copies) cache_.CopyBlock(copy.from, copy.to);
  for (const RunCopy& copy : inputs.run_copies) {
    cache_.CopyRun(static_cast<int32_t>(copy.from.value()), static_cast<int32_t>(copy.to.value()));
  }
  for (BackgroundCopy& copy : inputs.background) tiers_->Start(std::move(copy));
  inputs_ = std::move(inputs);
  receiver_ = receiver;
  for (size_t i = 0; i < inputs_.sequences.size(); ++i) {
    const StepSequence& sequence = inputs_.sequences[i];
    std::fill_n(row_sequences_.begin() + sequence.row_begin, sequence.row_count,
                static_cast<int32_t>(i));
  }
  PlanAttention();
  if (cache_.shape().open_bytes > 0) {
    open_runs_ = PlanOpenRuns(inputs_.sequences, options_.max_sequences);
  }
  partials_.emplace_back(inputs_.requests.size());
}

absl::StatusOr<std::vector<RowPartial>> CpuBackend::Finish() {
  std::vector<RowPartial> partials = std::move(partials_.front());
  partials_.pop_front();
  return partials;
}

}  // namespace flotilla::worker
