// CpuBackend and DeferredBackend give the same bits for the same steps, alone, in groups and in
// groups of both. DeferredBackend keeps its own promises, too.
#include "worker/compute/backend.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "model/load_spec.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/encode_weights.h"
#include "tests/support/random.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/decoder_machine.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/compute/decoder/decoder.h"

namespace flotilla::worker {
namespace {

using kernels::Isa;
using kernels::KvFormat;
using model::GgmlType;
using testing::MakeDeferredBackends;
using testing::Random;

constexpr KvFormat kFormats[] = {KvFormat::kBf16, KvFormat::kF32};
constexpr Recipe kRecipes[] = {Recipe::kAccurate, Recipe::kFp32};

Isa BestIsa() { return kernels::DetectIsas().back(); }

// ---- What a step gives, and its comparison.

// The answer to one request on one rank: the row's partial, then the full row if the rank gets it.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> numbers;
};
using Outcome = std::vector<Answer>;            // by request
using RankOutcome = std::vector<Outcome>;       // by step
using GroupOutcome = std::vector<RankOutcome>;  // by rank

// Keeps the full rows of one step.
class Rows final : public RowReceiver {
 public:
  void TakeRow(int request, absl::Span<const float> logits) override {
    const absl::MutexLock lock(&mu_);
    const bool first = rows_.try_emplace(request, logits.begin(), logits.end()).second;
    EXPECT_TRUE(first) << "request " << request << " gets two rows";
  }
  // Returns them by request.
  std::map<int, std::vector<float>> Take() {
    const absl::MutexLock lock(&mu_);
    return std::move(rows_);
  }

 private:
  absl::Mutex mu_;
  std::map<int, std::vector<float>> rows_ ABSL_GUARDED_BY(mu_);
};

Outcome OutcomeOf(const std::vector<RowPartial>& partials, Rows& rows) {
  Outcome outcome;
  for (const RowPartial& partial : partials) {
    Answer& answer = outcome.emplace_back();
    answer = {{partial.winner.token}, {partial.winner.score, partial.logit}};
    for (const kernels::SoftmaxStats& stats : partial.stats) {
      answer.numbers.insert(answer.numbers.end(), {stats.max, stats.sum});
    }
    for (const kernels::TokenScore& token : partial.best) {
      answer.tokens.push_back(token.token);
      answer.numbers.push_back(token.score);
    }
  }
  for (const auto& [request, row] : rows.Take()) {
    std::vector<float>& numbers = outcome.at(request).numbers;
    numbers.insert(numbers.end(), row.begin(), row.end());
  }
  return outcome;
}

// NaN is never right, because the steps read only what was written.
bool SameBits(float expected, float actual) {
  return !std::isnan(expected) &&
         std::bit_cast<std::uint32_t>(expected) == std::bit_cast<std::uint32_t>(actual);
}

void ExpectSameAnswer(const Answer& expected, const Answer& actual) {
  ASSERT_EQ(expected.tokens, actual.tokens);
  ASSERT_EQ(expected.numbers.size(), actual.numbers.size());
  for (std::size_t i = 0; i < expected.numbers.size(); ++i) {
    ASSERT_PRED2(SameBits, expected.numbers[i], actual.numbers[i]) << "number " << i;
  }
}

void ExpectSameOutcome(const Outcome& expected, const Outcome& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t request = 0; request < expected.size(); ++request) {
    SCOPED_TRACE(absl::StrCat("request ", request));
    ASSERT_NO_FATAL_FAILURE(ExpectSameAnswer(expected[request], actual[request]));
  }
}

void ExpectSameGroup(const GroupOutcome& expected, const GroupOutcome& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  std::size_t answers = 0;
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(expected[rank].size(), actual[rank].size());
    for (std::size_t step = 0; step < expected[rank].size(); ++step) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", step ", step));
      ASSERT_NO_FATAL_FAILURE(ExpectSameOutcome(expected[rank][step], actual[rank][step]));
      answers += expected[rank][step].size();
    }
  }
  EXPECT_GT(answers, 0u) << "the comparison says nothing";
}

// ---- The scenario: the steps of all ranks of a group.

constexpr int kSequences = 3;
constexpr int kSteps = 15;
constexpr int kLongestChunk = 9;  // after the first step
// The longest sequence has at most 39 + 13 * kLongestChunk positions.
constexpr int kBlocksPerSequence = 10;
constexpr std::uint32_t kBlocks = 80;
constexpr int kMaxRows = 256, kMaxPositions = 16 * kBlocksPerSequence;

constexpr int kRowsToAllStep = 3;  // its full rows go to all ranks of the stage
constexpr int kEmptyStep = 5;
// The first block of sequence 1 goes through the host tier to another block, and then through the
// disk tier to the block from which the sequence goes on. That of sequence 2 goes through the disk
// tier. Two blocks are in the same slot of both tiers at a time.
constexpr int kTierStep = 7, kTierWaitStep = 9, kReturnStep = 12;
constexpr BlockId kBlockFromHost{70}, kBlockOfSequence1{71}, kBlockOfSequence2{72};
constexpr std::uint32_t kHostTier = 0, kDiskTier = 1, kTierBlocks = 4;
const std::vector<std::uint64_t> kTierCopies{7, 8, 9, 10, 11, 12};  // their ids
// The first block of sequence 0 is copied to another, and the sequence goes on from there.
constexpr int kMoveStep = 10;
constexpr BlockId kMovedBlock{60};

class Scenario {
 public:
  Scenario(std::uint32_t vocabulary, std::uint64_t seed)
      : vocabulary_(vocabulary), seed_(seed), random_(seed), tables_(kSequences) {
    for (int block = 0; block < kSequences * kBlocksPerSequence; ++block) {
      tables_[block / kBlocksPerSequence].push_back(block + 1);
    }
  }

  std::vector<StepInputs> Steps() {
    std::vector<StepInputs> steps(kSteps);
    for (int step = 0; step < kSteps; ++step) {
      if (step == kEmptyStep) continue;
      ChangeBlocks(step, steps[step]);
      AddRows(step, steps[step]);
      AddRequests(step, steps[step]);
      steps[step].full_rows_to_all = step == kRowsToAllStep;
    }
    return steps;
  }

 private:
  BlockId FirstBlock(int sequence) const { return BlockId(tables_[sequence][0]); }
  TokenId Token() { return static_cast<TokenId>(random_.Below(vocabulary_)); }

  void ChangeBlocks(int step, StepInputs& inputs) {
    if (step == 0) {
      for (const auto& table : tables_) {
        for (const std::int32_t block : table) inputs.granted.push_back(BlockId(block));
      }
    }
    if (step == kTierStep) AddTierCopies(inputs);
    if (step == kMoveStep) {
      left_block_ = FirstBlock(0);
      inputs.granted.push_back(kMovedBlock);
      inputs.copies.push_back({left_block_, kMovedBlock});
      tables_[0][0] = kMovedBlock.value();
    }
    // The blocks that sequences have left lose their contents.
    if (step == kMoveStep + 1) inputs.granted.push_back(left_block_);
    if (step == kReturnStep) {
      inputs.granted.insert(inputs.granted.end(), {FirstBlock(1), FirstBlock(2)});
      tables_[1][0] = kBlockOfSequence1.value();
      tables_[2][0] = kBlockOfSequence2.value();
    }
  }

  void AddTierCopies(StepInputs& inputs) {
    constexpr auto kOut = BackgroundCopy::Kind::kOut, kIn = BackgroundCopy::Kind::kIn;
    const auto add = [&](BackgroundCopy::Kind kind, std::uint32_t tier, BlockId block,
                         std::uint32_t slot) {
      const std::uint64_t id = kTierCopies.at(inputs.background.size());
      inputs.background.push_back({.id = id, .kind = kind, .tier = tier, .moves = {{block, slot}}});
    };
    add(kOut, kHostTier, FirstBlock(1), 2);
    add(kOut, kDiskTier, FirstBlock(2), 2);
    add(kIn, kHostTier, kBlockFromHost, 2);
    add(kOut, kDiskTier, kBlockFromHost, 1);
    add(kIn, kDiskTier, kBlockOfSequence1, 1);
    add(kIn, kDiskTier, kBlockOfSequence2, 2);
  }

  // Adds a chunk or a decode of most sequences.
  void AddRows(int step, StepInputs& inputs) {
    for (int sequence = 0; sequence < kSequences; ++sequence) {
      if (step > 0 && random_.OneIn(4)) continue;
      const bool chunk = random_.OneIn(3);
      const int later_count = chunk ? random_.Int(1, kLongestChunk) : 1;
      std::vector<TokenId> tokens(step == 0 ? 5 + 17 * sequence : later_count);
      for (TokenId& token : tokens) token = Token();
      AddSequence(SequenceHandle(static_cast<std::uint32_t>(sequence)), lengths_[sequence], tokens,
                  {tables_[sequence]}, inputs);
      lengths_[sequence] += static_cast<int>(tokens.size());
    }
  }

  // Adds requests of all kinds for most rows.
  void AddRequests(int step, StepInputs& inputs) {
    for (int row = 0; row < inputs.rows(); ++row) {
      if (random_.OneIn(4)) continue;
      RowRequest request{.row = row};
      request.full_row = step % 3 == 0 && random_.OneIn(2);
      request.top = random_.Int(-1, 20);
      request.pick = static_cast<RowRequest::Pick>(random_.Below(4));
      request.token = Token();
      request.inverse_temperature = 0.7f;
      request.noise = kernels::MakeNoiseKey(seed_, static_cast<std::uint64_t>(row));
      request.edits_begin = static_cast<std::int32_t>(inputs.edits.size());
      for (int edits = random_.Int(0, 5); edits > 0; --edits) {
        inputs.edits.push_back({.token = Token(),
                                .kind = static_cast<LogitEdit::Kind>(random_.Below(3)),
                                .value = 3 * random_.Unit()});
      }
      request.edits_end = static_cast<std::int32_t>(inputs.edits.size());
      inputs.requests.push_back(request);
    }
  }

  const std::uint32_t vocabulary_;
  const std::uint64_t seed_;
  Random random_;
  std::vector<std::vector<std::int32_t>> tables_;
  int lengths_[kSequences] = {};
  BlockId left_block_{0};
};

// ---- Ranks and groups that run the scenario.

struct Model {
  explicit Model(const testing::TinyModelOptions& options) : bytes(testing::TinyGguf(options)) {
    file = model::ParseCheckpoint(bytes).value();
    spec = model::LoadSpec(*file).value();
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Checkpoint> file;
  model::ModelSpec spec;
};

struct Case {
  const Model& model;
  Recipe recipe;
  KvFormat format;
  ParallelShape shape;
  std::uint64_t seed;
  Isa isa = BestIsa();
  std::size_t lag = 1;  // steps that are not finished when the next starts
};

std::string Describe(Recipe recipe, KvFormat format) {
  return absl::StrCat("recipe ", std::string(RecipeName(recipe)), ", KV of ",
                      format == KvFormat::kF32 ? "fp32" : "bf16");
}

std::string Describe(const Case& c) {
  return absl::StrCat("seed ", c.seed, ", vocabulary ", c.model.spec.vocab, ", ",
                      Describe(c.recipe, c.format), ", ", c.shape.tensor, " x ", c.shape.pipeline,
                      " ranks, ", std::string(kernels::GetOps(c.isa).name));
}

BackendMaker Deferred(const Case& c) {
  return MakeDeferredBackends(c.seed, static_cast<std::uint32_t>(c.lag + 1));
}

// One rank of a group.
class ScenarioRank {
 public:
  ScenarioRank(const Case& c, std::uint32_t rank, Exchange* exchange, const BackendMaker& make)
      : case_(c),
        rank_(rank),
        backend_(make({.recipe = c.recipe,
                       .isa = c.isa,
                       .threads = 1,
                       .max_rows = kMaxRows,
                       .max_positions = kMaxPositions,
                       .clock = &clock_,
                       .exchange = exchange,
                       .tensor_ranks = c.shape.tensor,
                       .tensor_rank = rank % c.shape.tensor})) {}

  absl::Status Run(absl::Span<const ModelShard> shards) {
    if (absl::Status s = Load(shards); !s.ok()) return s;
    const bool last_stage = rank_ / case_.shape.tensor + 1 == case_.shape.pipeline;
    int step = 0;
    for (StepInputs& inputs : Scenario(case_.model.spec.vocab, case_.seed).Steps()) {
      if (absl::Status s = TakeCopiesBefore(step++); !s.ok()) return s;
      if (!last_stage) inputs.requests.clear();
      receivers_.emplace_back();
      decoder_->Start(std::move(inputs), &receivers_.back());
      ExpectCallsOnHost();
      if (absl::Status s = FinishAllBut(case_.lag); !s.ok()) return s;
    }
    if (absl::Status s = FinishAllBut(0); !s.ok()) return s;
    EXPECT_EQ(copies_done_, kTierCopies);
    backend_->ForgetCopies();
    return absl::OkStatus();
  }

  RankOutcome TakeOutcomes() { return std::move(outcomes_); }

 private:
  absl::Status Load(absl::Span<const ModelShard> shards) {
    const model::ModelSpec& spec = case_.model.spec;
    auto decoder = Decoder::Load(*case_.model.file, spec, shards, case_.shape, rank_, *backend_);
    if (!decoder.ok()) return decoder.status();
    decoder_.emplace(*std::move(decoder));
    EXPECT_GT(backend_->weight_bytes(), 0);
    EXPECT_GT(backend_->buffer_bytes(), 0);
    const KvShape kv =
        KvShapeOf(spec, case_.format, shards[rank_].layers, OwnKvHeads(spec, shards[rank_]).size());
    absl::Status made =
        backend_->CreateKv(kv, kBlocks, {.host_blocks = kTierBlocks, .disk_blocks = kTierBlocks});
    EXPECT_EQ(backend_->tiers().size(), 2u);
    return made;
  }

  absl::Status TakeCopies(bool wait) {
    const auto ids = backend_->TakeCopiesDone(wait);
    if (!ids.ok()) return ids.status();
    if (wait && ids->empty()) return absl::InternalError("no copy is under way");
    copies_done_.insert(copies_done_.end(), ids->begin(), ids->end());
    return absl::OkStatus();
  }

  absl::Status TakeCopiesBefore(int step) {
    absl::Status status = TakeCopies(/*wait=*/false);
    while (step == kTierWaitStep && status.ok() && copies_done_.size() < kTierCopies.size()) {
      status = TakeCopies(/*wait=*/true);
    }
    return status;
  }

  void ExpectCallsOnHost() {
    std::atomic<int> calls[7] = {};
    backend_->OnHost(std::size(calls), [&](std::int64_t i) { ++calls[i]; });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  }

  // Finishes the oldest steps until `count` are left.
  absl::Status FinishAllBut(std::size_t count) {
    while (receivers_.size() > count) {
      auto partials = backend_->Finish();
      if (!partials.ok()) return partials.status();
      outcomes_.push_back(OutcomeOf(*partials, receivers_.front()));
      receivers_.pop_front();
    }
    return absl::OkStatus();
  }

  const Case& case_;
  const std::uint32_t rank_;
  const SteadyClock clock_;
  std::deque<Rows> receivers_;  // of the steps that are not finished
  const std::unique_ptr<Backend> backend_;
  std::optional<Decoder> decoder_;
  RankOutcome outcomes_;
  std::vector<std::uint64_t> copies_done_;
};

// Runs the scenario on a group whose ranks use the makers in turn. After an error, which fails the
// test, outcomes are missing.
GroupOutcome RunGroup(const Case& c, const std::vector<BackendMaker>& makers) {
  const auto shards = ShardModel(*c.model.file, c.model.spec, c.shape, ShardBalance::kStep).value();
  const CommLimits limits = ExchangeLimits(c.model.spec, shards, c.shape, kMaxRows);
  const auto region = std::make_shared<SharedRegion>(
      SharedRegion::Create(SharedMemoryCommunicator::RegionBytes(c.shape, limits)).value());
  GroupOutcome outcomes(c.shape.ranks());
  const auto run = [&](std::uint32_t rank) {
    SCOPED_TRACE(absl::StrCat(Describe(c), ", rank ", rank));
    SharedMemoryCommunicator exchange(region, c.shape, rank, limits, /*spin=*/false);
    const bool alone = c.shape.ranks() == 1;
    ScenarioRank one(c, rank, alone ? nullptr : &exchange, makers[rank % makers.size()]);
    const absl::Status status = one.Run(shards);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) exchange.Abort();
    outcomes[rank] = one.TakeOutcomes();
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < c.shape.ranks(); ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// ---- The scenario gives the same everywhere.

const testing::TinyModelOptions kModels[] = {
    {.hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16},
    {.hidden = 96,
     .heads = 6,
     .kv_heads = 3,
     .head_dim = 16,
     .ffn = 416,
     .vocab = 2100,
     .tied_embedding = false,
     .matrix_type = GgmlType::kQ8_0,
     .embedding_type = GgmlType::kF16},
    {.hidden = 64,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 20,
     .value_dim = 32,
     .vocab = 1300,
     .matrix_type = GgmlType::kF32,
     .embedding_type = GgmlType::kF32},
};

class BackendsTest : public ::testing::TestWithParam<ParallelShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, BackendsTest,
                         ::testing::Values(ParallelShape{1, 1}, ParallelShape{2, 1},
                                           ParallelShape{1, 2}, ParallelShape{2, 2},
                                           ParallelShape{3, 1}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.tensor, "x", info.param.pipeline);
                         });

TEST_P(BackendsTest, GiveTheSameBits) {
  const ParallelShape shape = GetParam();
  std::uint64_t seed = 100 * shape.tensor + 10 * shape.pipeline;
  for (const testing::TinyModelOptions& options : kModels) {
    if (options.kv_heads < shape.tensor) continue;
    const Model model(options);
    for (const Recipe recipe : kRecipes) {
      for (const KvFormat format : kFormats) {
        Case c{.model = model, .recipe = recipe, .format = format, .shape = shape, .seed = seed++};
        SCOPED_TRACE(Describe(c));
        const GroupOutcome expected = RunGroup(c, {MakeCpuBackend});
        ExpectSameGroup(expected, RunGroup(c, {Deferred(c)}));
        for (const testing::SimulatedGpus& gpus : testing::AllSimulatedGpus()) {
          if (!CudaBackend::CheckModel(model.spec).ok()) break;
          SCOPED_TRACE(gpus.name);
          ExpectSameGroup(expected, RunGroup(c, {testing::MakeSimulatedGpus(gpus)}));
          ExpectSameGroup(expected,
                          RunGroup(c, {MakeCpuBackend, testing::MakeSimulatedGpus(gpus)}));
        }
        c.lag = shape.ranks() > 1 ? shape.pipeline : 3;
        ExpectSameGroup(expected, shape.ranks() > 1 ? RunGroup(c, {Deferred(c), MakeCpuBackend})
                                                    : RunGroup(c, {Deferred(c)}));
        if (HasFailure()) return;
      }
    }
  }
}

class BackendPathsTest : public ::testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(Isas, BackendPathsTest, ::testing::ValuesIn(kernels::DetectIsas()),
                         [](const auto& info) {
                           return std::string(kernels::GetOps(info.param).name);
                         });

TEST_P(BackendPathsTest, GiveTheSameBits) {
  const Model model(kModels[1]);
  for (const Recipe recipe : kRecipes) {
    for (const KvFormat format : kFormats) {
      const Case c{.model = model,
                   .recipe = recipe,
                   .format = format,
                   .shape = {2, 1},
                   .seed = 1,
                   .isa = GetParam()};
      SCOPED_TRACE(Describe(c));
      ExpectSameGroup(RunGroup(c, {MakeCpuBackend}), RunGroup(c, {Deferred(c)}));
    }
  }
}

// ---- Operations without a decoder, for what the models above do not have: norms of heads, parts
// of several formats in one matrix, other formats, and rows from the middle of a tensor.

constexpr int kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kVocabulary = 300;
constexpr int kDirectRows = 40;

struct OwnedTensor {
  std::vector<std::byte> bytes;
  model::Tensor tensor;
};

// Blocks of Q5_0: an fp16 scale of about 0.03, then 20 bytes of quants.
std::vector<std::byte> RandomQ5_0(std::size_t values, Random& random) {
  std::vector<std::byte> bytes;
  for (std::size_t block = 0; block < values / 32; ++block) {
    bytes.push_back(std::byte(random.Below(256)));
    bytes.push_back(std::byte{0x28});
    for (int i = 0; i < 20; ++i) bytes.push_back(std::byte(random.Below(256)));
  }
  return bytes;
}

OwnedTensor RandomTensor(GgmlType type, std::uint64_t rows, Random& random) {
  OwnedTensor owned;
  const std::size_t values = rows * kHidden;
  owned.bytes = type == GgmlType::kQ5_0 ? RandomQ5_0(values, random)
                                        : testing::EncodeTensor(type, random.Floats(values, 0.5f));
  owned.tensor = {"tensor", 2, {kHidden, rows, 1, 1}, type, owned.bytes};
  return owned;
}

struct LayerTypes {
  GgmlType embedding, query, key, value, output, head;
};

// One layer of attention, whose weights depend on the types alone.
struct DirectLayer {
  explicit DirectLayer(const LayerTypes& types)
      : random(7),
        embedding(RandomTensor(types.embedding, kVocabulary, random)),
        query(RandomTensor(types.query, kHeads * kHeadDim, random)),
        key(RandomTensor(types.key, 48, random)),
        value(RandomTensor(types.value, 40, random)),
        output(RandomTensor(types.output, kHidden, random)),
        head(RandomTensor(types.head, kVocabulary, random)),
        norm(random.Floats(kHidden)),
        query_norm(random.Floats(kHeadDim)),
        key_norm(random.Floats(kHeadDim)),
        frequencies(random.Floats(kHeadDim / 2)) {}

  Random random;
  OwnedTensor embedding, query, key, value, output, head;
  std::vector<float> norm, query_norm, key_norm, frequencies;
};

StepInputs DirectStep() {
  StepInputs inputs;
  std::vector<TokenId> tokens;
  for (int row = 0; row < kDirectRows; ++row) tokens.push_back(3 * row);
  const std::vector<std::int32_t> table{4, 2, 7};
  AddSequence(SequenceHandle{0}, 0, tokens, {table}, inputs);
  for (int row = 0; row < kDirectRows; ++row) {
    inputs.requests.push_back(
        {.row = row, .full_row = row % 2 == 0, .top = 5, .pick = RowRequest::Pick::kGreedy});
  }
  return inputs;
}

Outcome RunDirectly(Backend& backend, const DirectLayer& layer, KvFormat format) {
  constexpr model::NormSpec kHeadNorm{.eps = 1e-6f};
  constexpr model::RowMap kHalves{.head = kHeadDim, .pairs = kHeadDim};
  const BufferHandle residual = backend.AddBuffer(kHidden), normed = backend.AddBuffer(kHidden);
  const BufferHandle qkv = backend.AddBuffer((kHeads + 2 * kKvHeads) * kHeadDim);
  const BufferHandle attended = backend.AddBuffer(kHeads * kHeadDim);
  const NormOp norm{{.eps = 1e-5f}, backend.AddVector(layer.norm), {}};
  const AttentionOp attention{.layer = 0,
                              .group = GroupIndex{0},
                              .heads = kHeads,
                              .kv_heads = kKvHeads,
                              .projected_heads = kHeads,
                              .projected_kv_heads = kKvHeads,
                              .dims = kernels::KvDims::Equal(kHeadDim),
                              .head_dim = kHeadDim,
                              .result_dim = kHeadDim,
                              .scale = 0.25f,
                              .rope = backend.AddRope({layer.frequencies}),
                              .head_norms = model::HeadNorms::kShared,
                              .query_norm = {kHeadNorm, backend.AddVector(layer.query_norm)},
                              .key_norm = {kHeadNorm, backend.AddVector(layer.key_norm)},
                              .head_places = {0, 16, 32, 48}};
  const EmbeddingHandle embedding = backend.AddEmbedding({.table = &layer.embedding.tensor});
  const MatrixHandle qkv_matrix =
      backend
          .AddMatrix({{&layer.query.tensor, {0, kHeads * kHeadDim}, kHalves},
                      {&layer.key.tensor, {16, 16 + kKvHeads * kHeadDim}, kHalves},
                      {&layer.value.tensor, {5, 5 + kKvHeads * kHeadDim}}},
                     {})
          .value();
  const ProjectionHandle output =
      backend
          .AddProjection(
              {.tensor = &layer.output.tensor, .split_ends = {32, kHidden}, .splits = {{0, 2}}})
          .value();
  const VocabularyShards vocabulary(std::vector<IndexRange>{{0, kVocabulary}}, kVocabulary);
  const HeadHandle head = backend
                              .AddHead({.part = {&layer.head.tensor, {0, kVocabulary}},
                                        .shard = vocabulary.shard(0),
                                        .vocabulary = kVocabulary})
                              .value();
  EXPECT_TRUE(backend.Load().ok());
  EXPECT_TRUE(backend
                  .CreateKv(KvShape::Equal(format, /*layers=*/1, kKvHeads,
                                           kernels::KvDims::Equal(kHeadDim)),
                            10, {})
                  .ok());

  Rows rows;
  backend.Start(DirectStep(), &rows);
  backend.Embed(embedding, residual);
  backend.Norm(residual, norm, qkv_matrix, normed);
  backend.Multiply(normed, qkv_matrix, qkv);
  backend.RopeAndStore(attention, qkv);
  backend.Attend(attention, qkv, attended);
  backend.AddProjection(attended, output, residual);
  backend.Head(residual, norm, head);
  auto partials = backend.Finish();
  EXPECT_TRUE(partials.ok()) << partials.status();
  return partials.ok() ? OutcomeOf(*partials, rows) : Outcome();
}

TEST_P(BackendPathsTest, GiveTheSameBitsWithoutADecoder) {
  using enum GgmlType;
  const LayerTypes all_types[] = {
      {kF16, kQ4_1, kQ8_0, kF16, kQ5_0, kQ8_0},
      {kQ5_0, kQ5_0, kF32, kF32, kF16, kQ5_0},
      {kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ4_1, kF16},
  };
  const SteadyClock clock;
  for (std::size_t i = 0; i < std::size(all_types); ++i) {
    const DirectLayer layer(all_types[i]);
    for (const Recipe recipe : kRecipes) {
      for (const KvFormat format : kFormats) {
        SCOPED_TRACE(absl::StrCat("types ", i, ", ", Describe(recipe, format)));
        const BackendOptions options{.recipe = recipe,
                                     .isa = GetParam(),
                                     .max_rows = kDirectRows,
                                     .max_positions = kDirectRows,
                                     .clock = &clock};
        const auto cpu = MakeCpuBackend(options);
        const auto deferred = MakeDeferredBackends(/*seed=*/i, /*max_started=*/1)(options);
        ExpectSameOutcome(RunDirectly(*cpu, layer, format), RunDirectly(*deferred, layer, format));
      }
    }
  }
}

// ---- What DeferredBackend promises to tests.

// A backend with one of each thing that a breach needs.
struct DeferredParts {
  DeferredParts() {
    EXPECT_TRUE(backend->Load().ok());
    EXPECT_TRUE(backend
                    ->CreateKv(KvShape::Equal(KvFormat::kBf16, 1, 1, kernels::KvDims::Equal(16)),
                               kPartsBlocks, {})
                    .ok());
  }
  // Starts a step with one row.
  void StartRow(std::int32_t block = 1) {
    StepInputs inputs;
    const std::vector<TokenId> tokens{5};
    const std::vector<std::int32_t> table{block};
    AddSequence(SequenceHandle{0}, 0, tokens, {table}, inputs);
    backend->Start(std::move(inputs), nullptr);
  }

  static constexpr std::int32_t kPartsBlocks = 8;
  static constexpr std::uint32_t kMaxStarted = 2;
  Random random{3};
  const OwnedTensor weights = RandomTensor(GgmlType::kF32, kHidden, random);
  const std::shared_ptr<testing::DeferredControl> control =
      std::make_shared<testing::DeferredControl>();
  const std::unique_ptr<Backend> backend = MakeDeferredBackends(
      /*seed=*/5, kMaxStarted, control)({.max_rows = 4, .max_positions = 64});
  const BufferHandle x = backend->AddBuffer(kHidden), out = backend->AddBuffer(kHidden);
  const BufferHandle narrow = backend->AddBuffer(kHidden - 1);
  const NormOp norm{{}, backend->AddVector(std::vector<float>(kHidden, 1.0f)), {}};
  const EmbeddingHandle embedding = backend->AddEmbedding({.table = &weights.tensor});
  const MatrixHandle matrix = backend->AddMatrix({{&weights.tensor, {0, kHidden}}}, {}).value();
};

TEST(DeferredBackendTest, ABreachOfTheContractIsAnErrorThatNamesIt) {
  struct Breach {
    std::string message;  // part of it
    std::function<void(DeferredParts&)> make;
  };
  const Breach breaches[] = {
      {"Embed outside of a step",
       [](DeferredParts& parts) {
         parts.backend->Embed(parts.embedding, parts.x);
         parts.StartRow();
       }},
      {"SendResidual in a step without rows",
       [](DeferredParts& parts) {
         parts.backend->Start({}, nullptr);
         parts.backend->SendResidual(parts.x);
       }},
      {"Embed of a handle that names nothing of the kind",
       [](DeferredParts& parts) {
         parts.StartRow();
         parts.backend->Embed(parts.embedding, BufferHandle(parts.norm.weight.index()));
       }},
      {"Norm: the sizes do not fit",
       [](DeferredParts& parts) {
         parts.StartRow();
         parts.backend->Norm(parts.x, parts.norm, parts.matrix, parts.narrow);
       }},
      {"Multiply: the last Norm was not for this product",
       [](DeferredParts& parts) {
         parts.StartRow();
         parts.backend->Embed(parts.embedding, parts.x);
         parts.backend->Multiply(parts.x, parts.matrix, parts.out);
       }},
      {"AddBuffer after the first step",
       [](DeferredParts& parts) {
         parts.StartRow();
         EXPECT_FALSE(parts.backend->AddBuffer(1).valid());
       }},
      {"the sizes do not fit: a block of a table",
       [](DeferredParts& parts) { parts.StartRow(DeferredParts::kPartsBlocks); }},
      {"Finish of a step that is not started", [](DeferredParts&) {}},
  };
  for (const Breach& breach : breaches) {
    SCOPED_TRACE(breach.message);
    DeferredParts parts;
    breach.make(parts);
    const absl::Status status = parts.backend->Finish().status();
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(breach.message));
  }
}

TEST(DeferredBackendTest, TheStepThatIsOneTooManyFails) {
  DeferredParts parts;
  for (std::uint32_t step = 0; step <= DeferredParts::kMaxStarted; ++step) parts.StartRow();
  for (std::uint32_t step = 0; step < DeferredParts::kMaxStarted; ++step) {
    EXPECT_TRUE(parts.backend->Finish().ok());
  }
  EXPECT_THAT(std::string(parts.backend->Finish().status().message()),
              ::testing::HasSubstr("more than 2 steps are started"));
}

TEST(DeferredBackendTest, AfterTheFinishThatFailsAllFail) {
  DeferredParts parts;
  parts.control->FailAfter(2);
  for (const bool fails : {false, true, true}) {
    parts.StartRow();
    EXPECT_EQ(parts.backend->Finish().status().code(),
              fails ? absl::StatusCode::kInternal : absl::StatusCode::kOk);
  }
}

TEST(DeferredBackendTest, AGrantedBlockReadsAsNanUntilItIsWritten) {
  const Model model(kModels[0]);
  Machine machine(*model.file, model.spec, Recipe::kAccurate, KvFormat::kBf16, BestIsa(), 1,
                  MakeDeferredBackends(/*seed=*/6, /*max_started=*/1));
  Sequence sequence = MakeSequence(8, model.spec.vocab, /*seed=*/1, /*first_block=*/1);
  Step(machine, {&sequence}, {4});
  Step(machine, {&sequence}, {1});
  StepInputs grant;
  grant.granted.push_back(BlockId(sequence.table[0]));
  machine.decoder->Start(grant, nullptr);
  EXPECT_TRUE(machine.backend->Finish().ok());
  Step(machine, {&sequence}, {1});
  for (std::size_t position = 0; position < sequence.length; ++position) {
    EXPECT_EQ(std::isnan(sequence.logits[position][0]), position == 5) << position;
  }
}

TEST(DeferredBackendTest, RefusesTiersAndBlocksThatCannotBe) {
  const KvShape shape = KvShape::Equal(KvFormat::kBf16, 2, 2, kernels::KvDims::Equal(16));
  const auto backend = MakeDeferredBackends(/*seed=*/7, /*max_started=*/1)({});
  const TierOptions nowhere{.disk_blocks = 1, .disk_directory = "/does/not/exist"};
  EXPECT_EQ(backend->CreateKv(shape, 8, nowhere).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(backend->tiers().empty());
  constexpr auto kTooMany = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(backend->CreateKv(shape, kTooMany, {}).code(), absl::StatusCode::kResourceExhausted);
}

// It neither waits for the steps nor hangs.
TEST(DeferredBackendTest, IsDestroyedWithUnfinishedSteps) {
  DeferredParts parts;
  parts.StartRow();
  parts.backend->Embed(parts.embedding, parts.x);
  parts.StartRow();
}

}  // namespace
}  // namespace flotilla::worker
