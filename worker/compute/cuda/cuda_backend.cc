#include "worker/compute/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/rope_table.h"
#include "worker/compute/cuda/staged_exchange.h"
#include "worker/compute/host/split_weights.h"
#include "worker/compute/model_shard.h"

namespace flotilla::worker {

using kernels::kSumSpan;
using Queue = Device::Queue;

namespace {

// What K and V leave free when nobody says how much they get. The driver loads the code of each
// kernel when it first runs, and rounds allocations up to 2 MiB.
constexpr std::int64_t kDriverReserve = std::int64_t{64} << 20;
// The same, for what libraries of communication make with their first messages.
constexpr std::int64_t kExchangeReserve = std::int64_t{256} << 20;
// The longest list of the best tokens of a row (kernels::cuda::TopNArgs::count).
constexpr std::int64_t kMostTop = 64;
// What SendInputs and Head round each array up to.
constexpr std::int64_t kArrayAlignment = 16;

absl::Status Unsupported(std::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat("GPUs do not compute ", std::string(what), " yet; --device cpu does"));
}

absl::Status CheckAttention(const model::AttentionSpec& attention) {
  const kernels::KvDims dims = KvDimsOf(attention);
  if (attention.latent.has_value()) return Unsupported("latent attention");
  if (attention.window > 0) return Unsupported("attention with a window");
  if (attention.softcap != 0) return Unsupported("attention with a softcap");
  if (attention.alibi) return Unsupported("ALiBi");
  if (attention.sinks) return Unsupported("attention with sinks");
  if (attention.head_norms != model::HeadNorms::kNone &&
      attention.head_norms != model::HeadNorms::kShared) {
    return Unsupported("norms of heads with weights of their own");
  }
  if (attention.head_norms == model::HeadNorms::kShared &&
      attention.head_norm.kind != model::NormKind::kRms) {
    return Unsupported("LayerNorm");
  }
  if (dims.prefix || dims.key != dims.value || dims.key > kernels::cuda::kMaxHeadDim) {
    return Unsupported("heads whose K and V differ in size, or have more than 256 elements");
  }
  if (attention.heads / attention.kv_heads > kernels::cuda::kMaxGroup) {
    return Unsupported("more than 16 query heads of a KV head");
  }
  return kernels::CheckKvDims(dims);
}

}  // namespace

CudaBackend::CudaBackend(const BackendOptions& options, std::unique_ptr<Device> device)
    : options_(options),
      scratch_rows_(std::max(options.max_rows, kLogitRows)),
      device_(std::move(device)),
      host_ops_(kernels::GetOps(options.isa)),
      pool_(options.threads),
      weights_(*device_) {
  if (options.exchange == nullptr) return;
  exchange_ = std::make_unique<StagedExchange>(options.tensor_rank, *device_, *options.exchange,
                                               host_ops_, pool_);
}

CudaBackend::~CudaBackend() {
  // Nobody answers the work of steps that are not finished, for which copies of tiers may wait.
  if (exchange_ != nullptr && (!failure_.ok() || !steps_.empty())) exchange_->Abort();
  tiers_.reset();
  // What is enqueued reads memory that goes now.
  for (const Queue queue : {Queue::kCompute, Queue::kCopy}) {
    (void)device_->Synchronize(device_->Record(queue));
  }
}

absl::Status CudaBackend::Check(const model::ModelSpec& spec) const {
  if (options_.recipe == Recipe::kFast) {
    return Unsupported("W8A8 matrices with activations of 8 bits (--compute fast)");
  }
  return CheckModel(spec);
}

absl::Status CudaBackend::CheckModel(const model::ModelSpec& spec) {
  for (const model::LayerSpec& layer : spec.layers) {
    const absl::Status status = CheckAttention(layer.attention);
    if (!status.ok()) return status;
    if (layer.moe.has_value()) return Unsupported("mixtures of experts");
    if (layer.norm.kind != model::NormKind::kRms) return Unsupported("LayerNorm");
    if (!layer.norms_before || layer.norms_after)
      return Unsupported("norms behind parts of a layer");
    if (layer.wiring != model::Wiring::kSequential)
      return Unsupported("attention and FFN in parallel");
    if (layer.residual_factor != 1) return Unsupported("residual factors");
  }
  if (spec.output_norm.kind != model::NormKind::kRms) return Unsupported("LayerNorm");
  if (spec.logit_factor != 1 || spec.logit_softcap != 0) {
    return Unsupported("factors or softcaps of logits");
  }
  return absl::OkStatus();
}

// ---- Memory.

void CudaBackend::Fail(const absl::Status& status) {
  if (status.ok() || !failure_.ok()) return;
  failure_ = status;
  if (options_.exchange == nullptr || step_ == nullptr) return;
  options_.exchange->Abort();
  exchange_->Abort();
}

void CudaBackend::Refuse(std::string_view operation) { Fail(Unsupported(operation)); }

Device::Memory CudaBackend::Zeros(std::int64_t bytes) {
  auto memory = device_->Allocate(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (!memory.ok()) {
    Fail(memory.status());
    return {};
  }
  buffer_bytes_ += bytes;
  device_->Fill(Queue::kCompute, memory->data(), 0, memory->bytes());
  return *std::move(memory);
}

Device::Memory CudaBackend::PutBytes(const void* values, std::size_t bytes) {
  auto memory = device_->Allocate(std::max<std::size_t>(bytes, 1));
  auto staged = device_->AllocatePinned(std::max<std::size_t>(bytes, 1));
  if (!memory.ok() || !staged.ok()) {
    Fail(memory.ok() ? staged.status() : memory.status());
    return {};
  }
  std::memcpy(staged->data(), values, bytes);
  device_->Upload(Queue::kCompute, memory->data(), staged->data(), bytes);
  Fail(device_->Synchronize(device_->Record(Queue::kCompute)));
  return *std::move(memory);
}

BufferHandle CudaBackend::AddBuffer(std::int64_t width) {
  buffers_.push_back({width, Zeros(options_.max_rows * width * std::int64_t{sizeof(float)})});
  return BufferHandle(static_cast<std::int32_t>(buffers_.size() - 1));
}

VectorHandle CudaBackend::AddVector(std::vector<float> values) {
  vectors_.push_back(Put(values));
  return VectorHandle(static_cast<std::int32_t>(vectors_.size() - 1));
}

RopeHandle CudaBackend::AddRope(const model::RopeSpec& rope) {
  const kernels::RopeTable table(options_.max_positions, rope.frequencies, rope.magnitude);
  ropes_.push_back(
      {table.dim(), PutBytes(table.data(), sizeof(float) * static_cast<std::size_t>(table.dim()) *
                                               static_cast<std::size_t>(table.positions()))});
  return RopeHandle(static_cast<std::int32_t>(ropes_.size() - 1));
}

EmbeddingHandle CudaBackend::AddEmbedding(const EmbeddingSource& source) {
  embeddings_.push_back(source);
  return EmbeddingHandle(static_cast<std::int32_t>(embeddings_.size() - 1));
}

absl::StatusOr<MatrixHandle> CudaBackend::AddMatrix(std::vector<MatrixPart> parts,
                                                    std::vector<float> bias) {
  const auto k = static_cast<std::int64_t>(parts[0].tensor->dims[parts[0].transposed ? 1 : 0]);
  Matrix made;
  for (auto begin = parts.begin(); begin != parts.end();) {
    const WeightEncoding encoding = begin->encoding();
    const auto end = std::find_if(
        begin, parts.end(), [&](const MatrixPart& part) { return part.encoding() != encoding; });
    const auto matrix = weights_.Add({begin, end}, k);
    if (!matrix.ok()) return matrix.status();
    made.pieces.push_back({.matrix = *matrix, .column = made.columns});
    made.columns += (*matrix)->columns;
    widest_ = std::max<std::int64_t>(widest_, (*matrix)->k);
    begin = end;
  }
  made.bias = Put(bias);
  matrices_.push_back(std::move(made));
  return MatrixHandle(static_cast<std::int32_t>(matrices_.size() - 1));
}

absl::StatusOr<ProjectionHandle> CudaBackend::AddProjection(const ProjectionSource& source) {
  const auto all = static_cast<std::uint32_t>(source.split_ends.size());
  const IndexRange own = source.splits[options_.tensor_rank];
  const std::vector<SplitPlace> places = PlaceSplits(source.split_ends);
  const std::int32_t own_at = places[own.begin].at;
  Projection projection;
  for (const IndexRange& subtree : SubtreesOf(own, all)) {
    SplitWeights weights = WeightsOfSplits(source, places, subtree);
    auto matrix =
        weights_.Add({weights.part}, weights.k(), std::move(weights.segments), weights.ends);
    if (!matrix.ok()) return matrix.status();
    projection.columns = (*matrix)->columns;
    projection.products.push_back({.matrix = *matrix,
                                   .first_k = places[subtree.begin].at - own_at,
                                   .first_split = static_cast<int>(subtree.begin - own.begin)});
  }
  if (!alone()) projection.tree = MakeSumTree(source.splits, all);
  projection.bias = Put(source.bias);
  const SplitPlace& last = places[own.end - 1];
  widest_ = std::max<std::int64_t>(widest_, last.at + last.width - own_at);
  most_splits_ = std::max<std::int64_t>(most_splits_, own.size());
  widest_projection_ = std::max(widest_projection_, projection.columns);
  most_products_ = std::max(most_products_, static_cast<std::int64_t>(projection.products.size()));
  projections_.push_back(std::move(projection));
  return ProjectionHandle(static_cast<std::int32_t>(projections_.size() - 1));
}

absl::StatusOr<HeadMatricesHandle> CudaBackend::AddHeadMatrices(std::vector<MatrixPart>) {
  return Unsupported("latent attention");
}
absl::StatusOr<ExpertsHandle> CudaBackend::AddExperts(const ExpertsSource&) {
  return Unsupported("mixtures of experts");
}

absl::StatusOr<HeadHandle> CudaBackend::AddHead(const HeadSource& source) {
  if (!source.bias.empty()) return Unsupported("biases of logits");
  HeadWeights head{.matrix = nullptr,
                   .shard = source.shard,
                   .vocabulary = source.vocabulary,
                   .size = source.part.rows.size()};
  const auto hidden = static_cast<std::int64_t>(source.part.tensor->dims[0]);
  if (head.size > kernels::cuda::kMostLogits) return Unsupported("more than 1,048,576 tokens");
  if (head.size > 0) {
    const auto matrix = weights_.Add({source.part}, hidden);
    if (!matrix.ok()) return matrix.status();
    head.matrix = *matrix;
    widest_ = std::max<std::int64_t>(widest_, head.matrix->k);
  }
  constexpr std::int64_t kBytes = kLogitRows * std::int64_t{sizeof(float)};
  head_input_ = Zeros(kBytes * hidden);
  logits_ = Zeros(kBytes * head.size);
  heads_.push_back(std::move(head));
  return HeadHandle(static_cast<std::int32_t>(heads_.size() - 1));
}

void CudaBackend::AddAttention(const AttentionOp& attention) {
  attention_width_ =
      std::max(attention_width_, std::int64_t{attention.heads} * (attention.dims.key + 2));
  const auto& places = attention.head_places;
  if (std::find(head_places_.begin(), head_places_.end(), places) != head_places_.end()) return;
  head_places_.push_back(places);
  device_places_.push_back(Put(places));
}

absl::Status CudaBackend::Load() {
  constexpr std::int64_t kFloat = sizeof(float);
  quantized_ = Zeros(scratch_rows_ * widest_ * std::int64_t{sizeof(std::int16_t)});
  group_sums_ = Zeros(scratch_rows_ * (widest_ / kSumSpan) * kFloat);
  scales_ = Zeros(scratch_rows_ * most_splits_ * kFloat);
  if (!alone()) {
    const std::int64_t part = options_.max_rows * widest_projection_ * kFloat;
    sums_ = Zeros(most_products_ * part);
  }
  if (absl::Status status = ReserveExchange(); !status.ok()) return status;
  // At least what one row needs.
  attention_segments_ = std::max<std::int64_t>(
      kMostSegments, kernels::cuda::SegmentsOf(std::max(options_.max_positions, 1) - 1));
  attention_ = Zeros(attention_segments_ * attention_width_ * kFloat);
  if (absl::Status status = MakeSteps(); !status.ok()) return status;
  if (!failure_.ok()) return failure_;
  absl::Status status = weights_.Load(pool_, options_.progress, options_.pages);
  if (status.ok()) status = device_->Synchronize(device_->Record(Queue::kCompute));
  return status;
}

absl::Status CudaBackend::ReserveExchange() {
  if (exchange_ == nullptr) return absl::OkStatus();
  for (const Projection& projection : projections_) {
    if (alone()) break;
    absl::Status status =
        exchange_->Reserve(projection.tree, options_.max_rows, projection.columns);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::UseExchange(std::unique_ptr<DeviceExchange> exchange) {
  exchange_ = std::move(exchange);
  return ReserveExchange();
}

std::size_t CudaBackend::MostStepBytes() const {
  constexpr std::int64_t kNumber = sizeof(std::int32_t), kScore = sizeof(kernels::TokenScore);
  constexpr std::int64_t kArrays = 9, kTileArrays = 6;  // of SendInputs, of a tile of Head
  const std::int64_t rows = options_.max_rows, positions = options_.max_positions;
  const std::int64_t sequences = std::min<std::int64_t>(rows, options_.max_sequences);
  // Tables may reach behind the last position, by what a plan may take back.
  const std::int64_t table = (positions + rows) / kernels::kKvRecordTokens + 2;
  const std::int64_t segments = rows * kernels::cuda::SegmentsOf(static_cast<int>(positions));
  // Requests are of a row each, or of several sequences that begin behind the same row.
  const std::int64_t requests = heads_.empty() ? 0 : rows + options_.max_sequences;
  const std::int64_t inputs =
      kNumber * (2 * rows + sequences * table + rows + 1 + segments + 2 * requests) +
      std::int64_t{sizeof(std::int64_t)} * rows +  // begins of tables: models have one KV group
      std::int64_t{sizeof(kernels::cuda::Gumbel)} * requests + kArrays * kArrayAlignment;
  std::int64_t results = 0;
  for (const HeadWeights& head : heads_) {
    const std::int64_t subtrees = static_cast<std::int64_t>(head.shard.subtrees.size());
    const std::int64_t listed = std::min<std::int64_t>(kMostTop, head.shard.tokens);
    const std::int64_t row = subtrees * std::int64_t{sizeof(kernels::SoftmaxStats)} +
                             (listed + 2) * kScore + 2 * std::int64_t{sizeof(float)};
    const std::int64_t tiles = (requests + kLogitRows - 1) / kLogitRows;
    results = std::max(results, requests * row + tiles * kTileArrays * kArrayAlignment);
  }
  return static_cast<std::size_t>(inputs + results) + 2 * Arena::kAlignment;
}

absl::Status CudaBackend::MakeSteps() {
  const std::size_t bytes = MostStepBytes();
  std::size_t vectors = 0;  // of tokens, which lie in pinned memory, too
  for (const EmbeddingSource& source : embeddings_) {
    vectors = std::max(vectors, static_cast<std::size_t>(options_.max_rows) *
                                    source.table->dims[0] * sizeof(float));
  }
  for (int i = 0; i < options_.max_steps; ++i) {
    auto step = std::make_unique<Step>(*device_);
    if (absl::Status status = step->memory.Reserve(bytes); !status.ok()) return status;
    absl::Status status = step->pinned.Reserve(bytes + vectors + Arena::kAlignment);
    if (!status.ok()) return status;
    spare_steps_.push_back(std::move(step));
  }
  return absl::OkStatus();
}

// All that steps need is there (Load), so that the pool may have the rest.
BlockChoice CudaBackend::DefaultBlockCount(const KvShape& own, const BlockNeeds& needs) const {
  const std::int64_t reserve =
      kDriverReserve + (options_.exchange == nullptr ? 0 : kExchangeReserve);
  const std::int64_t free = device_->FreeBytes();
  const int percent = needs.share_percent > 0 ? needs.share_percent : 100;
  const std::uint32_t count = BlocksWithin({.bytes = free / needs.sharers - reserve,
                                            .share_percent = percent,
                                            .bytes_per_block = own.bytes_per_block(),
                                            .one_sequence = needs.one_sequence});
  return {.count = count,
          .reason = absl::StrFormat("%d %% of the %.1f GiB that are free on the GPU", percent,
                                    static_cast<double>(free) / (1 << 30))};
}

absl::Status CudaBackend::CreateKv(const KvShape& shape, std::uint32_t blocks,
                                   const TierOptions& tiers) {
  tiers_.reset();
  kv_.reset();
  auto kv = DeviceKv::Create(*device_, shape, blocks);
  if (absl::IsResourceExhausted(kv.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kv.status().message(), ", but ", blocks, " blocks of K and V need ",
        blocks * shape.bytes_per_block(),
        "; a smaller --kv-blocks or --max-model-len, or more ranks on more GPUs help"));
  }
  if (!kv.ok()) return kv.status();
  kv_.emplace(*std::move(kv));
  auto store = TierStore::Create(tiers, *kv_, *options_.clock, options_.progress);
  if (!store.ok()) return store.status();
  tiers_ = *std::move(store);
  return failure_;
}

// ---- A step.

void CudaBackend::Start(StepInputs inputs, RowReceiver* receiver) {
  if (options_.progress != nullptr) options_.progress->Move();
  std::unique_ptr<Step> step;
  if (spare_steps_.empty()) {
    step = std::make_unique<Step>(*device_);
  } else {
    step = std::move(spare_steps_.back());
    spare_steps_.pop_back();
  }
  step->inputs = std::move(inputs);
  step->receiver = receiver;
  step_ = step.get();
  steps_.push_back(std::move(step));
  if (exchange_ != nullptr) exchange_->BeginStep();
  for (const BlockId block : step_->inputs.granted) kv_->Poison(block);
  for (const BlockCopy& copy : step_->inputs.copies) kv_->Copy(copy.from, copy.to);
  if (!step_->inputs.background.empty()) kv_->LetTiersFollow();
  for (BackgroundCopy& copy : step_->inputs.background) tiers_->Start(std::move(copy));
  if (rows() > 0) {
    SendInputs();
  } else {
    step_->done = device_->Record(Queue::kCompute);
  }
}

// Lays all arrays out side by side in pinned memory, and uploads them at once.
void CudaBackend::SendInputs() {
  const StepInputs& inputs = step_->inputs;
  const auto count = static_cast<std::size_t>(rows());
  std::vector<std::int32_t> sequences(count);
  for (std::size_t i = 0; i < inputs.sequences.size(); ++i) {
    const StepSequence& sequence = inputs.sequences[i];
    std::fill_n(sequences.begin() + sequence.row_begin, sequence.row_count,
                static_cast<std::int32_t>(i));
  }
  std::vector<std::int32_t>& first_segments = step_->first_segments;
  std::vector<std::int32_t> segment_rows, request_rows, known;
  std::vector<kernels::cuda::Gumbel> draws;
  first_segments.clear();
  for (std::size_t row = 0; row < count; ++row) {
    first_segments.push_back(static_cast<std::int32_t>(segment_rows.size()));
    segment_rows.insert(segment_rows.end(),
                        static_cast<std::size_t>(kernels::cuda::SegmentsOf(inputs.positions[row])),
                        static_cast<std::int32_t>(row));
  }
  first_segments.push_back(static_cast<std::int32_t>(segment_rows.size()));
  if (!heads_.empty()) {
    const VocabularyShard& shard = heads_.front().shard;
    for (const RowRequest& request : inputs.requests) {
      request_rows.push_back(request.row);
      draws.push_back({.inverse_temperature = request.inverse_temperature,
                       .key = request.noise,
                       .cutoff = kernels::GumbelArgs().cutoff,
                       .first_token = shard.first_token});
      const std::int64_t at = std::int64_t{request.token} - shard.first_token;
      known.push_back(at >= 0 && at < shard.tokens ? request.token : shard.first_token);
    }
  }

  std::size_t bytes = 0;
  const auto place = [&](const auto& values) {
    const std::size_t at = bytes;
    bytes += (values.size() * sizeof values[0] + kArrayAlignment - 1) / kArrayAlignment *
             kArrayAlignment;
    return at;
  };
  const std::size_t at[] = {
      place(inputs.positions), place(sequences),      place(inputs.table_begins),
      place(inputs.block_ids), place(first_segments), place(segment_rows),
      place(request_rows),     place(draws),          place(known)};
  auto* const host = step_->pinned.Take<std::byte>(bytes);
  auto* const device = step_->memory.Take<std::byte>(bytes);
  if (host == nullptr || device == nullptr) {
    return Fail(host == nullptr ? step_->pinned.status() : step_->memory.status());
  }
  std::size_t next = 0;
  const auto put = [&](const auto& values, auto*& pointer) {
    using Value = std::remove_reference_t<decltype(*pointer)>;
    if (!values.empty())
      std::memcpy(host + at[next], values.data(), values.size() * sizeof values[0]);
    pointer = reinterpret_cast<Value*>(device + at[next++]);
  };
  StepData& data = step_->data;
  put(inputs.positions, data.positions);
  put(sequences, data.sequences);
  put(inputs.table_begins, data.begins);
  put(inputs.block_ids, data.blocks);
  put(first_segments, data.first_segments);
  put(segment_rows, data.segment_rows);
  put(request_rows, data.request_rows);
  put(draws, data.draws);
  put(known, data.known);
  device_->Upload(Queue::kCompute, device, host, bytes);
}

absl::StatusOr<std::vector<RowPartial>> CudaBackend::Finish() {
  std::unique_ptr<Step> step = std::move(steps_.front());
  steps_.pop_front();
  const absl::Status done = device_->Synchronize(step->done);
  if (exchange_ != nullptr) {
    exchange_->EndStep();
    Fail(exchange_->status());
  }
  Fail(done);
  if (!failure_.ok()) return failure_;
  const StepInputs& inputs = step->inputs;
  std::vector<RowPartial> partials(inputs.requests.size());
  for (const TileResults& tile : step->tiles) {
    pool_.ParallelItems(tile.rows, [&](std::int64_t i) {
      const std::int64_t index = tile.first + i;
      const RowRequest& request = inputs.requests[static_cast<std::size_t>(index)];
      const float* const row = step->host_logits[static_cast<std::size_t>(index)];
      if (!request.full_row) {
        partials[static_cast<std::size_t>(index)] = PartialOf(*step, tile, static_cast<int>(i));
      } else if (row != nullptr) {
        step->receiver->TakeRow(static_cast<int>(index),
                                {row, static_cast<std::size_t>(step->head->vocabulary)});
      }
    });
  }
  step->pinned.Reset();
  step->memory.Reset();
  step->tiles.clear();
  step->host_logits.clear();
  step->head = nullptr;
  spare_steps_.push_back(std::move(step));
  return partials;
}

RowPartial CudaBackend::PartialOf(const Step& step, const TileResults& tile, int row) const {
  using Pick = RowRequest::Pick;
  const auto index = static_cast<std::size_t>(tile.first + row);
  const RowRequest& request = step.inputs.requests[index];
  const VocabularyShard& shard = step.head->shard;
  const auto size = static_cast<std::size_t>(step.head->size);
  if (step.host_logits[index] != nullptr) {
    return ReduceRow(host_ops_, shard, {step.host_logits[index], size}, request,
                     step.inputs.edits_of(request));
  }
  const auto at = [&]<typename T>(std::int64_t place, std::int64_t i, const T*) {
    return reinterpret_cast<const T*>(step.results + place)[i];
  };
  constexpr const kernels::TokenScore* kScore = nullptr;
  constexpr const float* kFloat = nullptr;
  RowPartial partial;
  for (std::size_t i = 0; i < shard.subtrees.size(); ++i) {
    partial.stats.push_back(at(tile.stats, static_cast<std::int64_t>(i) * tile.rows + row,
                               static_cast<const kernels::SoftmaxStats*>(nullptr)));
  }
  if (shard.tokens == 0) return partial;
  for (int i = 0; i < std::min(request.top, shard.tokens); ++i) {
    partial.best.push_back(at(tile.best, std::int64_t{row} * tile.top + i, kScore));
    partial.best.back().token += shard.first_token;
  }
  switch (request.pick) {
    case Pick::kNone:
      break;
    case Pick::kKnown:
      if (request.token >= shard.first_token && request.token - shard.first_token < shard.tokens) {
        partial.winner = {request.token, 0};
        partial.logit = at(tile.known, row, kFloat);
      }
      break;
    case Pick::kGreedy:
      partial.winner = at(tile.greedy, row, kScore);
      partial.winner.token += shard.first_token;
      // A row without any number has a winner without a score.
      partial.logit = partial.winner.score;
      break;
    case Pick::kGumbel:
      partial.winner = at(tile.gumbel, row, kScore);
      partial.logit = at(tile.gumbel_logits, row, kFloat);
      break;
  }
  return partial;
}

}  // namespace flotilla::worker
