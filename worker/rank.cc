#include "worker/rank.h"

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "worker/cpu_quota.h"
#include "worker/draft_model.h"

namespace flotilla {
namespace {

constexpr std::uint32_t kBlockTokens = kernels::kKvBlockTokens;
// Rows of the warm-up prefill: enough to be bound by arithmetic, as prefill is.
constexpr int kWarmUpRows = 32;
// Bounds of the options, far above what a machine holds.
constexpr std::uint32_t kMaxStepTokens = 1 << 16;
constexpr std::uint32_t kMaxKvBlocks = 1 << 30;

absl::Status CheckSpeculation(const RankOptions& options, const ModelConfig& config) {
  if (options.speculation == Speculation::kOff) return absl::OkStatus();
  if (options.draft_tokens == 0 || options.draft_tokens > Rank::kMaxDraftTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("draft_tokens is outside 1..", Rank::kMaxDraftTokens));
  }
  if (options.draft_layers > config.layers) {
    return absl::InvalidArgumentError(absl::StrCat("a draft of ", options.draft_layers,
                                                   " layers; the model has ", config.layers));
  }
  const NgramOptions& ngram = options.ngram;
  if (ngram.min_n == 0 || ngram.min_n > ngram.max_n || ngram.max_n > kMaxNgram) {
    return absl::InvalidArgumentError(absl::StrCat("n-grams of ", ngram.min_n, " to ", ngram.max_n,
                                                   " tokens; 1 to ", kMaxNgram, " are possible"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const RankOptions& options, const ModelConfig& config) {
  if (options.max_step_tokens == 0 || options.max_step_tokens > kMaxStepTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_step_tokens is outside 1..", kMaxStepTokens));
  }
  if (options.max_context > config.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context,
                                                   " exceeds the model's ", config.context_length));
  }
  if (options.kv_blocks > kMaxKvBlocks) {
    return absl::InvalidArgumentError(absl::StrCat("kv_blocks exceeds ", kMaxKvBlocks));
  }
  if (options.max_branches == 0) return absl::InvalidArgumentError("max_branches is 0");
  return CheckSpeculation(options, config);
}

}  // namespace

Rank::Rank(const RankOptions& options, ModelConfig config, int threads)
    : options_(options),
      config_(std::move(config)),
      ops_(kernels::GetOps(options.isa)),
      pool_(threads) {}

absl::StatusOr<std::unique_ptr<Rank>> Rank::Create(const GgufFile& file, const RankOptions& options,
                                                   const Clock& clock) {
  auto config = LoadConfig(file);
  if (!config.ok()) return config.status();
  absl::Status status = CheckOptions(options, *config);
  if (!status.ok()) return status;
  const int threads = options.threads > 0 ? options.threads : AvailableCpus();
  auto rank = std::unique_ptr<Rank>(new Rank(options, *std::move(config), threads));
  status = rank->Load(file, clock);
  if (!status.ok()) return status;
  rank->WarmUp(clock);
  return rank;
}

absl::Status Rank::Load(const GgufFile& file, const Clock& clock) {
  auto weights = LoadWeights(file, config_, pool_);
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  Describe();

  const KvShape shape{options_.kv_format, static_cast<int>(config_.layers),
                      static_cast<int>(config_.kv_heads), static_cast<int>(config_.head_dim)};
  description_.groups = {{.kind = KvGroup::Kind::kFull,
                          .tokens_per_block = kBlockTokens,
                          .bytes_per_block = static_cast<std::uint64_t>(shape.bytes_per_block())}};
  description_.block_count = options_.kv_blocks > 0
                                 ? options_.kv_blocks + 1
                                 : DefaultBlockCount(shape, description_.max_context);
  auto cache = KvCache::Create(shape, description_.block_count);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  auto tiers = TierStore::Create(options_.tiers, cache_, clock);
  if (!tiers.ok()) return tiers.status();
  tiers_ = *std::move(tiers);
  description_.tiers = tiers_->tiers();

  forward_ = std::make_unique<Forward>(
      Forward::Options{.recipe = options_.recipe,
                       .max_rows = static_cast<int>(options_.max_step_tokens),
                       .max_positions = static_cast<int>(description_.max_context)},
      config_, weights_, ops_, cache_, pool_);
  return absl::OkStatus();
}

void Rank::Describe() {
  description_.model_id = options_.model_id;
  description_.vocab_size = config_.vocab;
  description_.max_context =
      options_.max_context > 0 ? options_.max_context : config_.context_length;
  // All that a result's bits depend on, threads excluded.
  const std::string numerics = absl::StrCat(
      weights_.content_hash, "|", std::string(RecipeName(options_.recipe)), "|",
      std::string(ops_.name), "|", options_.kv_format == kernels::KvFormat::kF32 ? "fp32" : "bf16",
      "|", FLOTILLA_BUILD);
  description_.numerics_id = XXH3_64bits(numerics.data(), numerics.size());
  description_.exactness = Exactness::kBitwise;
  description_.max_branches = options_.max_branches;
  description_.max_step_tokens = options_.max_step_tokens;
  description_.lag = 1;
  const bool guesses = options_.speculation != Speculation::kOff;
  description_.max_draft_tokens = guesses ? options_.draft_tokens : 0;
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
      options_.draft_layers > 0 ? options_.draft_layers : std::max(1u, config_.layers / 3);
  return std::make_unique<DraftModel>(static_cast<int>(layers), forward_.get(), &ops_);
}

std::int64_t Rank::TimeBatch(int rows, const Clock& clock) {
  // Every position lies in the null block: written by padding, never granted.
  const std::vector<std::int32_t> table(rows / kBlockTokens + 1, 0);
  const SamplingParams sampling;
  const LogprobSpec logprobs;
  Batch batch;
  batch.tokens.assign(rows, 0);
  batch.items = {{.row_count = static_cast<std::uint32_t>(rows),
                  .samples = true,
                  .sampling = &sampling,
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

void Rank::ListLogitRows(const Batch& batch) {
  logit_rows_.clear();
  requests_.clear();
  outputs_.resize(batch.items.size());
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const BatchItem& item = batch.items[i];
    outputs_[i] = ItemOutput{};
    outputs_[i].prompt.resize(item.prompt_targets.size());
    for (std::size_t t = 0; t < item.prompt_targets.size(); ++t) {
      logit_rows_.push_back(static_cast<std::int32_t>(item.row_begin + t));
      requests_.push_back({.item = static_cast<std::int32_t>(i),
                           .kind = LogitRequest::Kind::kPrompt,
                           .at = static_cast<std::uint32_t>(t)});
    }
    if (!item.samples && item.candidates == 0) continue;
    if (item.samples) outputs_[i].sampled.resize(1 + item.drafts);
    const std::uint32_t first = item.row_begin + item.row_count - 1 - item.drafts;
    for (std::uint32_t at = 0; at <= item.drafts; ++at) {
      logit_rows_.push_back(static_cast<std::int32_t>(first + at));
      requests_.push_back(
          {.item = static_cast<std::int32_t>(i),
           .kind = item.samples ? LogitRequest::Kind::kSample : LogitRequest::Kind::kCandidates,
           .at = at});
    }
  }
}

void Rank::TakeLogits(const Batch& batch, int request, absl::Span<const float> logits) {
  LogitRequest& wanted = requests_[request];
  const BatchItem& item = batch.items[wanted.item];
  ItemOutput& output = outputs_[wanted.item];
  if (wanted.kind == LogitRequest::Kind::kSample) {
    auto token = SampleRow(ops_, logits, *item.sampling, *item.logprobs,
                           {item.index, item.output_index + wanted.at});
    wanted.failed = !token.ok();
    if (token.ok()) output.sampled[wanted.at] = *std::move(token);
  } else if (wanted.kind == LogitRequest::Kind::kCandidates) {
    auto candidates = RowCandidates(ops_, logits, item.candidates);
    wanted.failed = !candidates.ok();
    if (candidates.ok()) output.candidates = *std::move(candidates);
  } else {
    auto token =
        RowLogprobs(ops_, logits, item.prompt_targets[wanted.at], item.logprobs->prompt_top);
    wanted.failed = !token.ok();
    if (token.ok()) output.prompt[wanted.at] = *std::move(token);
  }
}

void Rank::TakeFailures() {
  for (const LogitRequest& request : requests_) {
    if (!request.failed) continue;
    ItemOutput& output = outputs_[request.item];
    output.failed = true;
    if (request.kind == LogitRequest::Kind::kSample && request.at < output.sampled.size()) {
      output.sampled.resize(request.at);
    }
  }
}

absl::Span<const ItemOutput> Rank::Execute(const Batch& batch) {
  for (const BlockCopy& copy : batch.copies) cache_.CopyBlock(copy.from, copy.to);
  for (const BackgroundCopy& copy : batch.background) tiers_->Start(copy);
  ListLogitRows(batch);
  if (batch.items.empty()) return outputs_;
  forward_->Run(batch, logit_rows_, [&](int request, absl::Span<const float> logits) {
    TakeLogits(batch, request, logits);
  });
  TakeFailures();
  return outputs_;
}

}  // namespace flotilla
