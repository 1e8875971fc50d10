#include "worker/exec/rank.h"

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "common/rt/cpu_quota.h"
#include "model/load_spec.h"
#include "worker/compute/draft_model.h"

namespace flotilla::worker {
namespace {

constexpr std::uint32_t kBlockTokens = kernels::kKvBlockTokens;
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
  if (options.max_context > spec.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context,
                                                   " exceeds the model's ", spec.context_length));
  }
  if (options.kv_blocks > kMaxKvBlocks) {
    return absl::InvalidArgumentError(absl::StrCat("kv_blocks exceeds ", kMaxKvBlocks));
  }
  if (options.max_sequences == 0) return absl::InvalidArgumentError("max_sequences is 0");
  return CheckSpeculation(options, spec);
}

Forward::Options ForwardOptions(const RankOptions& options, std::uint32_t max_context) {
  return {.recipe = options.recipe,
          .max_rows = static_cast<int>(options.max_step_tokens),
          .max_positions = static_cast<int>(max_context)};
}

std::uint32_t MaxContext(const RankOptions& options, const model::ModelSpec& spec) {
  return options.max_context > 0 ? options.max_context : spec.context_length;
}

// Returns the shards of the vocabulary; none where a rank has the whole vocabulary.
std::optional<VocabularyShards> CutVocabulary(absl::Span<const ModelShard> shards,
                                              ParallelShape shape) {
  if (shape.tensor == 1) return std::nullopt;
  std::vector<IndexRange> tokens;
  for (const ModelShard& shard : shards.last(shape.tensor)) tokens.push_back(shard.vocab);
  return VocabularyShards(tokens);
}

}  // namespace

absl::StatusOr<GroupLayout> PlanGroup(const model::Checkpoint& file, const RankOptions& options) {
  auto spec = model::LoadSpec(file);
  if (!spec.ok()) return spec.status();
  absl::Status status = CheckOptions(options, *spec);
  if (!status.ok()) return status;
  auto shards = ShardModel(file, *spec, options.shape, options.balance);
  if (!shards.ok()) return shards.status();
  GroupLayout layout{.shape = options.shape, .shards = *std::move(shards), .limits = {}};
  layout.limits = Forward::ExchangeLimits(ForwardOptions(options, MaxContext(options, *spec)),
                                          *spec, layout.shards, options.shape);
  layout.limits.lag = options.shape.pipeline;
  const auto vocabulary = CutVocabulary(layout.shards, options.shape);
  layout.limits.metadata_bytes =
      kCopyMetadataBytes +
      StepOutputs::MaxMetadataBytes(options.max_step_tokens + options.max_sequences,
                                    vocabulary.has_value() ? &*vocabulary : nullptr);
  return layout;
}

Rank::Rank(std::shared_ptr<const model::Checkpoint> file, const RankOptions& options,
           model::ModelSpec spec, int threads, Communicator* communicator)
    : file_(std::move(file)),
      options_(options),
      spec_(std::move(spec)),
      communicator_(communicator),
      ops_(kernels::GetOps(options.isa)),
      pool_(threads) {}

absl::StatusOr<std::unique_ptr<Rank>> Rank::Create(std::shared_ptr<const model::Checkpoint> file,
                                                   const RankOptions& options, const Clock& clock,
                                                   Communicator* communicator) {
  auto spec = model::LoadSpec(*file);
  if (!spec.ok()) return spec.status();
  absl::Status status = CheckOptions(options, *spec);
  if (!status.ok()) return status;
  const int ranks = static_cast<int>(options.shape.ranks());
  const int threads = options.threads > 0 ? options.threads : std::max(1, AvailableCpus() / ranks);
  auto rank = std::unique_ptr<Rank>(
      new Rank(std::move(file), options, *std::move(spec), threads, communicator));
  status = rank->Load(clock);
  if (!status.ok()) return status;
  rank->WarmUp(clock);
  if (communicator != nullptr && communicator->aborted()) {
    return absl::UnavailableError("another rank of the group has failed");
  }
  return rank;
}

absl::Status Rank::Load(const Clock& clock) {
  std::vector<ModelShard> shards;
  if (communicator_ != nullptr) {
    auto layout = PlanGroup(*file_, options_);
    if (!layout.ok()) return layout.status();
    shards = std::move(layout->shards);
    vocabulary_ = CutVocabulary(shards, options_.shape);
  }
  auto weights = LoadWeights(
      *file_, spec_, shards.empty() ? WholeModel(spec_) : shards[communicator_->rank()], pool_);
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  Describe();

  const ModelShard& shard = weights_.shard;
  const KvShape shape{options_.kv_format, static_cast<int>(shard.layers.size()),
                      static_cast<int>(shard.kv_heads.size()),
                      static_cast<int>(spec_.attention().head_dim)};
  const KvShape whole{options_.kv_format, static_cast<int>(spec_.layers.size()),
                      static_cast<int>(spec_.attention().kv_heads),
                      static_cast<int>(spec_.attention().head_dim)};
  description_.groups = {{.kind = KvGroup::Kind::kFull,
                          .tokens_per_block = kBlockTokens,
                          .bytes_per_block = static_cast<std::uint64_t>(shape.bytes_per_block())}};
  // All ranks choose the same number, because they share the machine's memory.
  description_.block_count = options_.kv_blocks > 0
                                 ? options_.kv_blocks + 1
                                 : DefaultBlockCount(whole, description_.max_context);
  auto cache = KvCache::Create(shape, description_.block_count);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  auto tiers = TierStore::Create(options_.tiers, cache_, clock);
  if (!tiers.ok()) return tiers.status();
  tiers_ = *std::move(tiers);
  description_.tiers = tiers_->tiers();

  forward_ = std::make_unique<Forward>(ForwardOptions(options_, description_.max_context), spec_,
                                       weights_, ops_, cache_, pool_, communicator_, shards);
  return absl::OkStatus();
}

void Rank::Describe() {
  description_.model_id = options_.model_id;
  description_.vocab_size = spec_.vocab;
  description_.max_context = MaxContext(options_, spec_);
  // The bits of a result depend on all of this, and on nothing else. Neither the instruction path
  // nor the build matters: every one gives the bits that belong to the recipe's version.
  const std::string numerics = absl::StrCat(
      weights_.content_hash, "|", std::string(RecipeName(options_.recipe)), "|", kRecipeVersion,
      "|", options_.kv_format == kernels::KvFormat::kF32 ? "fp32" : "bf16");
  description_.numerics_id = XXH3_64bits(numerics.data(), numerics.size());
  description_.exactness = Exactness::kBitwise;
  description_.max_sequences = options_.max_sequences;
  description_.max_step_tokens = options_.max_step_tokens;
  description_.lag = options_.shape.pipeline;
  const bool drafts = options_.speculation != Speculation::kOff;
  description_.max_draft_tokens = drafts ? options_.draft_tokens : 0;
}

std::unique_ptr<Proposer> Rank::MakeProposer() {
  switch (options_.speculation) {
    case Speculation::kOff:
      return nullptr;
    case Speculation::kNgram:
      return std::make_unique<NgramProposer>(options_.ngram);
    case Speculation::kDraft:
      break;
  }
  const std::uint32_t layers =
      options_.draft_layers > 0 ? options_.draft_layers
                                : std::max(1u, static_cast<std::uint32_t>(spec_.layers.size()) / 3);
  return std::make_unique<DraftModel>(static_cast<int>(layers), forward_.get(), &ops_);
}

std::int64_t Rank::TimeBatch(int rows, const Clock& clock) {
  // Every position lies in the null block, which padding may write and which is never granted.
  const std::vector<std::int32_t> table(rows / kBlockTokens + 1, 0);
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
  batch.tables = {table};
  batch.group_count = 1;
  const std::int64_t start = clock.NowNs();
  Execute(batch);
  return clock.NowNs() - start;
}

void Rank::WarmUp(const Clock& clock) {
  const int rows = static_cast<int>(
      std::min<std::uint32_t>({kWarmUpRows, options_.max_step_tokens, description_.max_context}));
  TimeBatch(1, clock);  // touches every weight
  description_.prefill_ns_per_token = std::max<std::int64_t>(1, TimeBatch(rows, clock) / rows);
  description_.decode_ns_per_step = std::max<std::int64_t>(1, TimeBatch(1, clock));
}

StepOutputs Rank::Execute(const Batch& batch) {
  for (const BlockCopy& copy : batch.copies) cache_.CopyBlock(copy.from, copy.to);
  for (const BackgroundCopy& copy : batch.background) tiers_->Start(copy);
  StepOutputs outputs(batch, vocabulary_.has_value() ? &*vocabulary_ : nullptr);
  if (batch.items.empty()) return outputs;
  const auto full_row = [&](int request) { return outputs.full_row(request); };
  forward_->Run(batch, outputs.rows(), full_row, [&](int request, absl::Span<const float> logits) {
    if (outputs.full_row(request)) {
      outputs.Take(ops_, batch, request, logits);
    } else {
      outputs.TakePart(ops_, batch, request, communicator_->tensor_rank(), logits);
    }
  });
  return outputs;
}

}  // namespace flotilla::worker
