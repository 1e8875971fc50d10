#include "worker/exec/rank.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <xxhash.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/rt/cpu_quota.h"
#include "common/types/kv_needs.h"
#include "model/load_spec.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/compute/cuda/nccl_api.h"
#include "worker/compute/cuda/nccl_exchange.h"
#include "worker/compute/draft_model.h"
#include "worker/device/await_memory.h"
#include "worker/exec/constrained_proposer.h"
#include "worker/exec/numerics_id.h"

namespace flotilla::worker {
namespace {

// Rows of the warm-up prefill. They are enough for arithmetic to be the limit, as in prefill.
constexpr int kWarmUpRows = 32;
// Bounds of the options, far above what a machine holds.
constexpr std::uint32_t kMaxStepTokens = 1 << 16;
constexpr std::uint32_t kMaxKvBlocks = 1 << 30;
// The room in the step metadata for background copies that have ended.
constexpr std::int64_t kCopyMetadataBytes = 64 << 10;

absl::Status CheckSpeculation(const RankOptions& options, const model::ModelSpec& spec) {
  if (options.speculation == Speculation::kOff) return absl::OkStatus();
  if (options.draft_tokens == 0 || options.draft_tokens > Rank::kMaxDraftTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("draft_tokens is outside 1..", Rank::kMaxDraftTokens));
  }
  if (options.draft_layers > spec.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a draft of ", options.draft_layers,
                                                   " layers; the model has ", spec.layers.size()));
  }
  if (options.speculation == Speculation::kDraft && options.shape.pipeline > 1) {
    return absl::InvalidArgumentError("a draft model needs all layers on one stage (pp 1)");
  }
  const NgramOptions& ngram = options.ngram;
  if (ngram.min_n == 0 || ngram.min_n > ngram.max_n || ngram.max_n > kMaxNgram) {
    return absl::InvalidArgumentError(absl::StrCat("n-grams of ", ngram.min_n, " to ", ngram.max_n,
                                                   " tokens; 1 to ", kMaxNgram, " are possible"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const RankOptions& options, const model::ModelSpec& spec) {
  if (options.max_step_tokens == 0 || options.max_step_tokens > kMaxStepTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_step_tokens is outside 1..", kMaxStepTokens));
  }
  if (options.max_context > spec.longest_context) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context,
                                                   " exceeds the model's ", spec.longest_context));
  }
  if (options.kv_blocks > kMaxKvBlocks) {
    return absl::InvalidArgumentError(absl::StrCat("kv_blocks exceeds ", kMaxKvBlocks));
  }
  if (options.max_sequences == 0) return absl::InvalidArgumentError("max_sequences is 0");
  return CheckSpeculation(options, spec);
}

// A hash of the bytes, which says after each piece that it gets further.
std::uint64_t HashInPieces(absl::Span<const std::byte> bytes, LoadProgress* progress,
                           model::PageReleaser& pages) {
  constexpr std::size_t kPiece = 4 << 20;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::size_t size = std::min(kPiece, bytes.size() - at);
    XXH3_64bits_update(state.get(), bytes.data() + at, size);
    if (progress != nullptr) progress->Move(size);
    pages.Read(size);
  }
  return XXH3_64bits_digest(state.get());
}

// A hash of everything in the file.
std::uint64_t ContentHash(const model::Checkpoint& file, Backend& backend, LoadProgress* progress,
                          model::PageReleaser& pages) {
  const auto tensors = file.tensors();
  std::uint64_t bytes = 0;
  for (const model::Tensor& tensor : tensors) bytes += tensor.bytes();
  if (progress != nullptr) progress->Begin(LoadPhase::kHash, bytes);
  std::vector<std::uint64_t> hashes(tensors.size() + 1);
  backend.OnHost(static_cast<std::int64_t>(tensors.size()), [&](std::int64_t i) {
    const model::Tensor& tensor = tensors[i];
    if (tensor.composite == nullptr) {
      hashes[i] = HashInPieces({tensor.data.data(), tensor.data.size()}, progress, pages);
      return;
    }
    std::vector<std::uint64_t> parts;
    for (const std::span<const std::byte> part : tensor.composite->parts()) {
      parts.push_back(HashInPieces({part.data(), part.size()}, progress, pages));
    }
    hashes[i] = XXH3_64bits(parts.data(), parts.size() * sizeof parts[0]);
  });
  hashes.back() = file.MetadataHash();
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof hashes[0]);
}

// An error of GPUs, with the flag that asked for them and what to do.
absl::Status ForPeople(const DeviceChoice& device, const absl::Status& status) {
  const bool unusable = absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status);
  if (!unusable && !absl::IsUnimplemented(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--device ", device.Name(), ": ", status.message(),
                                   unusable ? "; --device cpu needs no GPU" : ""));
}

// The positions that a sequence can have. Where some layers keep all of them, these are no more
// than the pool has room for.
std::uint32_t MostPositions(const model::ModelSpec& spec, std::uint32_t kv_blocks,
                            int block_tokens) {
  const bool keeps_all =
      std::any_of(spec.kv_groups.begin(), spec.kv_groups.end(),
                  [](const model::KvGroupSpec& group) { return group.window == 0; });
  if (kv_blocks == 0 || !keeps_all) return spec.served_context;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(
      spec.served_context, std::uint64_t{kv_blocks} * static_cast<std::uint64_t>(block_tokens)));
}

// Whether recipe kFast is another one than kAccurate: the checkpoint says of a matrix that it is
// multiplied by activations of 8 bits.
bool HasInt8Activations(const model::Checkpoint& file) {
  return std::ranges::any_of(file.tensors(), [](const model::Tensor& tensor) {
    return model::FastEncodingOf(tensor) != model::EncodingOf(tensor);
  });
}

// Of one step: those of its tokens, and position 0 of each sequence that it opens behind this
// (Batch::first_rows).
int MostRows(const RankOptions& options) {
  const std::uint32_t opened = std::min(options.max_sequences, options.max_step_tokens);
  return static_cast<int>(options.max_step_tokens + (options.kv_format.has_runs() ? opened : 0));
}

}  // namespace

absl::StatusOr<GroupLayout> PlanGroup(const model::Checkpoint& file, const RankOptions& options) {
  auto spec = model::LoadSpec(file, options.max_context);
  if (!spec.ok()) return spec.status();
  absl::Status status = CheckOptions(options, *spec);
  if (!status.ok()) return status;
  auto shards = ShardModel(file, *spec, options.shape, options.balance);
  if (!shards.ok()) return shards.status();
  GroupLayout layout{.shape = options.shape, .shards = *std::move(shards), .limits = {}};
  layout.limits = ExchangeLimits(*spec, layout.shards, options.shape, MostRows(options));
  layout.limits.lag = options.shape.pipeline;
  layout.limits.metadata_bytes =
      kCopyMetadataBytes +
      StepOutputs::MaxMetadataBytes(options.max_step_tokens + options.max_sequences,
                                    ShardVocabulary(*spec, layout.shards, options.shape));
  return layout;
}

Rank::Rank(std::shared_ptr<const model::Checkpoint> file, const RankOptions& options,
           model::ModelSpec spec, RankLinks links)
    : file_(std::move(file)),
      pages_(*file_),
      options_(options),
      spec_(std::move(spec)),
      links_(links),
      host_ops_(kernels::GetOps(options.isa)) {}

absl::StatusOr<std::unique_ptr<Rank>> Rank::Create(std::shared_ptr<const model::Checkpoint> file,
                                                   const RankOptions& options, const Clock& clock,
                                                   RankLinks links) {
  auto spec = model::LoadSpec(*file, options.max_context);
  if (!spec.ok()) return spec.status();
  absl::Status status = CheckOptions(options, *spec);
  if (!status.ok()) return status;
  const int ranks = static_cast<int>(options.shape.ranks());
  const int threads = options.threads > 0 ? options.threads : std::max(1, AvailableCpus() / ranks);
  RankOptions own = options;
  if (own.recipe == Recipe::kFast && !HasInt8Activations(*file)) own.recipe = Recipe::kAccurate;
  auto rank = std::unique_ptr<Rank>(new Rank(std::move(file), own, *std::move(spec), links));
  status = rank->Load(threads, clock);
  rank->Begin(LoadPhase::kWarmUp);
  if (status.ok()) status = rank->WarmUp(clock);
  if (!status.ok()) return status;
  if (links.communicator != nullptr && links.communicator->aborted()) {
    return absl::UnavailableError("another rank of the group has failed");
  }
  return rank;
}

absl::Status Rank::Load(int threads, const Clock& clock) {
  std::vector<ModelShard> shards{WholeModel(spec_)};
  std::uint32_t number = 0;
  BackendOptions backend{.recipe = options_.recipe,
                         .isa = options_.isa,
                         .threads = threads,
                         .max_rows = MostRows(options_),
                         .max_positions = static_cast<int>(MostPositions(
                             spec_, options_.kv_blocks, options_.kv_format.block_tokens())),
                         .max_sequences = static_cast<int>(options_.max_sequences),
                         .max_steps = static_cast<int>(options_.shape.pipeline) + 1,
                         .clock = &clock,
                         .exchange = links_.exchange,
                         .progress = options_.progress,
                         .pages = &pages_,
                         .available_memory = options_.available_memory};
  if (links_.communicator != nullptr) {
    auto layout = PlanGroup(*file_, options_);
    if (!layout.ok()) return layout.status();
    shards = std::move(layout->shards);
    number = links_.communicator->rank();
    backend.communicator = links_.communicator;
    backend.tensor_ranks = options_.shape.tensor;
    backend.tensor_rank = links_.communicator->tensor_rank();
  }
  if (absl::Status status = LoadBackend(backend, shards, number); !status.ok()) return status;
  if (last_stage()) {
    constraints_.emplace(file_, options_.constraint_program, options_.compile_limits,
                         options_.shape.pipeline, clock);
  }
  vocabulary_ = ShardVocabulary(spec_, shards, options_.shape);
  content_hash_ = ContentHash(*file_, *backend_, options_.progress, pages_);
  file_->ReleasePages();  // the backend has its own copy of all but the token vectors
  Describe();
  Begin(LoadPhase::kMemory);
  return CreateKv(shards[number]);
}

absl::Status Rank::LoadBackend(const BackendOptions& options, absl::Span<const ModelShard> shards,
                               std::uint32_t number) {
  using Kind = DeviceChoice::Kind;
  Begin(LoadPhase::kWeights);
  if (options_.make_backend) return LoadOn(options_.make_backend(options), shards, number);
  if (options_.device.kind != Kind::kCpu) {
    const absl::Status status = LoadOnGpu(options, shards, number);
    const bool unusable = absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
    on_gpu_ = status.ok();
    const bool must = options_.device.kind == Kind::kCuda;
    if (!status.ok() && (must || !unusable)) return ForPeople(options_.device, status);
    absl::StatusOr<std::string> no_gpu = std::string();
    if (!must) no_gpu = AgreeOn(std::string(status.message()));
    if (!no_gpu.ok()) return no_gpu.status();
    if (no_gpu->empty()) return AgreeOnExchange();
    on_gpu_ = false;
    cuda_ = nullptr;
    device_.no_gpu = *std::move(no_gpu);
    decoder_.reset();
    backend_.reset();
    Begin(LoadPhase::kWeights);
  }
  device_.name = absl::StrCat(RankDevice::kCpu, std::string(host_ops_.name), ")");
  return LoadOn(MakeCpuBackend(options), shards, number);
}

absl::Status Rank::LoadOnGpu(const BackendOptions& options, absl::Span<const ModelShard> shards,
                             std::uint32_t number) {
  const DeviceMaker make = options_.make_device ? options_.make_device : MakeDevice;
  auto device = MakeWithFreeMemory([&] { return make(options_.device, options_.local_rank); },
                                   [&](absl::Duration pause) {
                                     if (options_.progress != nullptr) options_.progress->Move();
                                     options_.sleep ? options_.sleep(pause) : absl::SleepFor(pause);
                                   });
  if (absl::IsUnavailable(device.status())) {  // that of a group means something else
    return absl::FailedPreconditionError(device.status().message());
  }
  if (!device.ok()) return device.status();
  device_.name = (*device)->name();
  auto backend = std::make_unique<CudaBackend>(options, *std::move(device));
  cuda_ = backend.get();
  absl::Status status = Decoder::Check(spec_);
  if (status.ok()) status = backend->Check(spec_);
  // The smallest pool shows, before any weight is read, whether GPUs keep K and V of these types.
  if (status.ok()) status = backend->CreateKv(OwnKvShape(shards[number]), 2, {});
  return status.ok() ? LoadOn(std::move(backend), shards, number) : status;
}

absl::Status Rank::LoadOn(std::unique_ptr<Backend> backend, absl::Span<const ModelShard> shards,
                          std::uint32_t number) {
  backend_ = std::move(backend);
  auto decoder = Decoder::Load(*file_, spec_, shards, options_.shape, number, *backend_);
  if (decoder.ok()) decoder_ = *std::move(decoder);
  return decoder.status();
}

absl::StatusOr<std::string> Rank::AgreeOn(const std::string& refusal) {
  Communicator* const ranks = links_.communicator;
  if (ranks == nullptr) return refusal;
  Begin(LoadPhase::kJoin);
  ranks->SendMetadata({reinterpret_cast<const std::byte*>(refusal.data()), refusal.size()});
  const absl::Span<const std::vector<std::byte>> all = ranks->TakeMetadata();
  if (ranks->aborted()) return absl::UnavailableError("another rank of the group has failed");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return absl::StrCat(
        "rank ", rank, ": ",
        absl::string_view(reinterpret_cast<const char*>(all[rank].data()), all[rank].size()));
  }
  return "";
}

absl::Status Rank::AgreeOnExchange() {
  cuda_is_proven_ = CudaIsProven(cuda_->device().capability());
  Communicator* const ranks = links_.communicator;
  if (ranks == nullptr || options_.shape.ranks() == 1) return absl::OkStatus();
  // What a rank says: its GPU, and NCCL's version and an id of a communicator, of which the first
  // rank's counts; or why it has no NCCL; and whether GPUs like its own are proven.
  const auto nccl = options_.open_nccl ? options_.open_nccl() : OpenNccl();
  NcclApi::UniqueId id = {};
  std::string refusal(nccl.status().message());
  // Whoever makes an id answers for it from then on, so only one rank does.
  if (nccl.ok() && ranks->rank() == 0 && (*nccl)->get_unique_id(&id) != NcclApi::kSuccess) {
    refusal = "NCCL makes no id of a communicator";
  }
  const auto text = [](const std::string& value) { return absl::StrCat(value.size(), " ", value); };
  const std::string said = absl::StrCat(
      text(cuda_->device().id()), text(refusal), text(nccl.ok() ? (*nccl)->version : ""),
      text(std::string(id.bytes, sizeof id.bytes)), text(cuda_is_proven_ ? "proven" : ""));
  Begin(LoadPhase::kJoin);
  ranks->SendMetadata({reinterpret_cast<const std::byte*>(said.data()), said.size()});
  // Of each rank: GPU, refusal, version, id, whether it is proven.
  std::vector<std::vector<std::string>> all;
  for (const std::vector<std::byte>& other : ranks->TakeMetadata()) {
    absl::string_view left(reinterpret_cast<const char*>(other.data()), other.size());
    std::vector<std::string>& texts = all.emplace_back(5);
    for (std::string& value : texts) {
      std::size_t size = 0;
      const std::size_t space = left.find(' ');
      if (space == left.npos || !absl::SimpleAtoi(left.substr(0, space), &size)) break;
      value = std::string(left.substr(space + 1, size));
      left.remove_prefix(std::min(left.size(), space + 1 + size));
    }
  }
  if (ranks->aborted()) return absl::UnavailableError("another rank of the group has failed");
  // Every rank comes to the same.
  for (const std::vector<std::string>& rank : all) cuda_is_proven_ &= !rank[4].empty();
  std::string why;
  for (std::size_t rank = 0; rank < all.size() && why.empty(); ++rank) {
    for (std::size_t other = 0; other < rank && why.empty(); ++other) {
      if (all[other][0] != all[rank][0]) continue;
      why = absl::StrCat("ranks ", other, " and ", rank, " share a GPU");
    }
    if (!why.empty()) break;
    if (!all[rank][1].empty()) {
      why = absl::StrCat("rank ", rank, ": ", all[rank][1]);
    } else if (all[rank][2] != all[0][2]) {
      why = absl::StrCat("rank ", rank, " has NCCL ", all[rank][2], ", and rank 0 ", all[0][2]);
    }
  }
  std::unique_ptr<NcclExchange> exchange;
  if (why.empty()) {
    all[0][3].copy(id.bytes, sizeof id.bytes);
    exchange = std::make_unique<NcclExchange>(
        NcclExchangeOptions{.api = *nccl,
                            .shape = options_.shape,
                            .rank = ranks->rank(),
                            .ended = [ranks] { return ranks->aborted(); },
                            .progress = options_.progress},
        cuda_->device());
    const absl::Status joined = exchange->Join(id);
    if (ranks->aborted()) return absl::UnavailableError("another rank of the group has failed");
    // An NCCL that fails on one rank serves none.
    const auto failed = AgreeOn(std::string(joined.message()));
    if (!failed.ok()) return failed.status();
    why = *failed;
  }
  device_.exchange = why.empty() ? absl::StrCat("nccl ", all[0][2]) : "host";
  device_.no_nccl = why;
  if (!why.empty()) return absl::OkStatus();
  uses_nccl_ = true;
  return cuda_->UseExchange(std::move(exchange));
}

absl::StatusOr<std::uint32_t> Rank::AgreeOnBlocks(const KvShape& own, BlockNeeds needs) {
  Communicator* const ranks = links_.communicator;
  if (ranks == nullptr) {
    BlockChoice choice = backend_->DefaultBlockCount(own, needs);
    device_.kv_memory = std::move(choice.reason);
    return choice.count;
  }
  const absl::Status failed = absl::UnavailableError("another rank of the group has failed");
  const auto bytes_of = [](const auto& value) {
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(std::data(value)),
                               std::size(value) * sizeof *std::data(value));
  };
  Begin(LoadPhase::kJoin);
  const std::string memory = backend_->memory_id();
  ranks->SendMetadata(bytes_of(memory));
  // All ranks have loaded when this returns, and none makes its pool before the second exchange.
  needs.sharers = 0;
  for (const std::vector<std::byte>& other : ranks->TakeMetadata()) {
    needs.sharers += bytes_of(memory) == absl::MakeConstSpan(other) ? 1 : 0;
  }
  if (ranks->aborted()) return failed;
  BlockChoice choice = backend_->DefaultBlockCount(own, needs);
  std::uint32_t blocks[] = {choice.count};
  ranks->SendMetadata(bytes_of(blocks));
  bool understood = true;
  for (const std::vector<std::byte>& other : ranks->TakeMetadata()) {
    std::uint32_t others = blocks[0];
    understood &= other.size() == sizeof others;
    if (understood) std::memcpy(&others, other.data(), sizeof others);
    blocks[0] = std::min(blocks[0], others);
  }
  if (ranks->aborted()) return failed;
  if (!understood)
    return absl::InternalError("a rank has not said how many blocks it has room for");
  if (blocks[0] == choice.count) device_.kv_memory = std::move(choice.reason);
  Begin(LoadPhase::kMemory);
  return blocks[0];
}

KvShape Rank::OwnKvShape(const ModelShard& shard) const {
  return KvShapeOf(spec_, options_.kv_format, shard.layers, OwnKvHeads(spec_, shard).size());
}

absl::Status Rank::CreateKv(const ModelShard& shard) {
  const KvShape shape = OwnKvShape(shard);
  BlockNeeds needs{.max_sequences = options_.max_sequences,
                   .host_blocks = options_.tiers.host_blocks,
                   .share_percent = options_.kv_share_percent};
  for (const model::KvGroupSpec& spec : spec_.kv_groups) {
    const KvGroup& group = description_.groups.emplace_back(
        KvGroup{.kind = spec.window > 0 ? KvGroup::Kind::kWindow : KvGroup::Kind::kFull,
                .window = spec.window,
                .tokens_per_block = static_cast<std::uint32_t>(shape.block_tokens),
                .bytes_per_block = static_cast<std::uint64_t>(shape.bytes_per_block())});
    needs.one_sequence += MostNamed(group, description_.max_context, RowsOfPlans(description_));
  }
  description_.block_count = options_.kv_blocks + 1;
  if (options_.kv_blocks == 0) {
    const auto blocks = AgreeOnBlocks(shape, needs);
    if (!blocks.ok()) return blocks.status();
    description_.block_count = *blocks;
  }
  const absl::Status status = backend_->CreateKv(shape, description_.block_count, options_.tiers);
  if (status.ok()) description_.tiers = backend_->tiers();
  return on_gpu_ ? ForPeople(options_.device, status) : status;
}

void Rank::Describe() {
  description_.model_id = options_.model_id;
  description_.vocab_size = spec_.tokens;
  description_.max_context = spec_.served_context;
  // All ranks of a group are on GPUs or none is, so they have the same id.
  description_.numerics_id = NumericsId({.model_hash = content_hash_,
                                         .recipe = options_.recipe,
                                         .kv_format = options_.kv_format,
                                         .constraint_engine = ConstraintEngineVersion(),
                                         .tokens = spec_.tokens,
                                         .vocab = spec_.vocab,
                                         .rope_context = spec_.rope_context,
                                         .kv_scales = spec_.kv_scales,
                                         .cuda_is_unproven = on_gpu_ && !cuda_is_proven_,
                                         .nccl_is_unproven = uses_nccl_ && !kNcclIsProven});
  description_.exactness = Exactness::kBitwise;
  description_.run_tokens = options_.kv_format.has_runs() ? kernels::kKvRunTokens : 0;
  description_.max_sequences = options_.max_sequences;
  description_.max_step_tokens = options_.max_step_tokens;
  description_.lag = options_.shape.pipeline;
  const bool drafts = options_.speculation != Speculation::kOff;
  description_.max_draft_tokens = drafts ? options_.draft_tokens : 0;
}

std::unique_ptr<Proposer> Rank::MakeProposer() {
  std::unique_ptr<Proposer> proposer;
  switch (options_.speculation) {
    case Speculation::kOff:
      return nullptr;
    case Speculation::kNgram:
      proposer = std::make_unique<NgramProposer>(options_.ngram);
      break;
    case Speculation::kDraft: {
      const auto third = std::max(1u, static_cast<std::uint32_t>(spec_.layers.size()) / 3);
      const std::uint32_t layers = options_.draft_layers > 0 ? options_.draft_layers : third;
      proposer = std::make_unique<DraftModel>(static_cast<int>(layers), spec_.tokens, *decoder_,
                                              host_ops_);
      break;
    }
  }
  if (options_.shape.pipeline > 1) return proposer;
  return std::make_unique<ConstrainedProposer>(std::move(proposer), *constraints_,
                                               links_.communicator);
}

absl::StatusOr<std::int64_t> Rank::TimeBatch(int rows, const Clock& clock) {
  // Every position lies in the null block, which padding may write and which is never granted.
  const std::vector<std::int32_t> table(rows / options_.kv_format.block_tokens() + 1, 0);
  const std::size_t groups = spec_.kv_groups.size();
  const SamplingParams sampling;
  const StopRule stop;
  const LogprobSpec logprobs;
  Batch batch;
  batch.tokens.assign(rows, 0);
  batch.items = {{.row_count = static_cast<std::uint32_t>(rows),
                  .samples = true,
                  .sampling = &sampling,
                  .stop = &stop,
                  .logprobs = &logprobs}};
  batch.tables.assign(groups, table);
  batch.group_count = static_cast<std::uint32_t>(groups);
  const std::int64_t start = clock.NowNs();
  const std::unique_ptr<StepOutputs> outputs = Start(batch);
  if (absl::Status status = Finish(*outputs); !status.ok()) return status;
  return clock.NowNs() - start;
}

absl::Status Rank::WarmUp(const Clock& clock) {
  const int rows = static_cast<int>(
      std::min<std::uint32_t>({kWarmUpRows, options_.max_step_tokens, description_.max_context}));
  const auto first = TimeBatch(1, clock);  // touches every weight
  if (!first.ok()) return first.status();
  const auto prefill = TimeBatch(rows, clock);
  if (!prefill.ok()) return prefill.status();
  const auto decode = TimeBatch(1, clock);
  if (!decode.ok()) return decode.status();
  description_.prefill_ns_per_token = std::max<std::int64_t>(1, *prefill / rows);
  description_.decode_ns_per_step = std::max<std::int64_t>(1, *decode);
  return absl::OkStatus();
}

void Rank::BeginMasks(const Batch& batch, StepOutputs& outputs) {
  const bool is_alone = links_.communicator == nullptr;
  const std::vector<std::size_t> items =
      is_alone ? outputs.ConstrainedItems(0, 1)
               : outputs.ConstrainedItems(links_.communicator->tensor_rank(),
                                          links_.communicator->shape().tensor);
  // Items that give no token yet count: their grammars are compiled beside the last chunks.
  const bool is_constrained =
      std::any_of(batch.items.begin(), batch.items.end(),
                  [](const BatchItem& item) { return bool{item.sampling->constraint}; });
  if (!is_constrained && !constraints_->was_used()) return;
  outputs.UseMasks(constraints_->Begin(batch, items));
}

std::unique_ptr<StepOutputs> Rank::Start(const Batch& batch, std::vector<BlockId> granted,
                                         std::vector<SequenceHandle> opened) {
  auto outputs = std::make_unique<StepOutputs>(batch, *vocabulary_, host_ops_);
  StepInputs inputs = MakeStepInputs(batch);
  inputs.granted = std::move(granted);
  inputs.opened = std::move(opened);
  if (last_stage()) {
    const auto on_host = [this](std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) {
      backend_->OnHost(count, fn);
    };
    outputs->AddRequests(batch, on_host, inputs);
    BeginMasks(batch, *outputs);
  }
  decoder_->Start(std::move(inputs), outputs.get());
  return outputs;
}

absl::Status Rank::Finish(StepOutputs& outputs) {
  auto partials = backend_->Finish();
  if (partials.ok()) outputs.TakePartials(*std::move(partials));
  return partials.status();
}

}  // namespace flotilla::worker
