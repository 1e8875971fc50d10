// CudaBackend over a simulated device: the bits of the CPU.
#include "worker/compute/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/decoder_machine.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/device/simulated_device.h"

namespace flotilla::worker {
namespace {

using model::GgmlType;
using testing::GpuMode;

struct TinyModel {
  explicit TinyModel(const testing::TinyModelOptions& options)
      : bytes(testing::TinyGguf(options)),
        file(*model::ParseCheckpoint(bytes)),
        spec(*model::LoadSpec(*file)) {}

  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Checkpoint> file;
  model::ModelSpec spec;
};

void ExpectTheBitsOfTheCpu(const TinyModel& model, Recipe recipe, kernels::KvFormat format,
                           GpuMode mode, std::uint64_t seed, std::size_t length) {
  SCOPED_TRACE(absl::StrCat("seed ", seed, ", recipe ", std::string(RecipeName(recipe))));
  Machine cpu(*model.file, model.spec, recipe, format, kernels::DetectIsas().back(), 1);
  Machine gpu(*model.file, model.spec, recipe, format, kernels::DetectIsas().back(), 1,
              testing::MakeSimulatedGpus(seed, mode));
  const Sequence s = MakeSequence(length, model.spec.vocab, seed, 1);
  const auto expected = RunAlone(cpu, s, length);
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, length}) {
    ExpectSameBits(expected, RunAlone(gpu, s, chunk), absl::StrCat("chunks of ", chunk));
  }
}

constexpr GgmlType kTypes[] = {GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16,
                               GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ8_0};

TEST(CudaBackendTest, QueuesGiveTheBitsOfTheCpu) {
  std::uint64_t seed = 1;
  for (const GgmlType type : kTypes) {
    const TinyModel model({.head_dim = 16, .matrix_type = type});
    for (const Recipe recipe : {Recipe::kAccurate, Recipe::kFp32}) {
      ExpectTheBitsOfTheCpu(model, recipe, kernels::KvFormat::kBf16, GpuMode::kQueues, seed++, 90);
    }
    ExpectTheBitsOfTheCpu(model, Recipe::kFp32, kernels::KvFormat::kF32, GpuMode::kQueues, seed++,
                          90);
  }
}

TEST(CudaBackendTest, FibersGiveTheBitsOfTheCpu) {
  const TinyModel model({.head_dim = 16, .matrix_type = GgmlType::kQ4_1});
  ExpectTheBitsOfTheCpu(model, Recipe::kAccurate, kernels::KvFormat::kBf16, GpuMode::kFibers, 1,
                        20);
}

// ---- Steps that overlap each other, and copies of tiers beside them.

// A backend and a decoder of the whole model, with a tier of 4 blocks.
class Tiered {
 public:
  Tiered(const TinyModel& model, const BackendMaker& make)
      : shard_(WholeModel(model.spec)),
        backend_(make({.isa = kernels::DetectIsas().back(),
                       .max_rows = 64,
                       .max_positions = 128,
                       .max_sequences = 4,
                       .max_steps = 3,
                       .clock = &clock_})),
        decoder_(Decoder::Load(*model.file, model.spec, {&shard_, 1}, {}, 0, *backend_).value()) {
    const KvShape shape = KvShapeOf(model.spec, kernels::KvFormat::kBf16, shard_.layers,
                                    model.spec.attention().kv_heads);
    const absl::Status made = backend_->CreateKv(shape, kBlocks, {.host_blocks = 4});
    EXPECT_TRUE(made.ok()) << made;
    StepInputs all;
    for (std::uint32_t b = 0; b < kBlocks; ++b) all.granted.push_back(BlockId{b});
    Start(std::move(all));
    Finish();
  }

  void Start(StepInputs inputs) {
    receivers_.emplace_back(std::make_unique<Rows>());
    decoder_.Start(std::move(inputs), receivers_.back().get());
  }
  // Finishes all steps, and returns the rows of logits since the last call.
  std::vector<std::vector<float>> Finish() {
    std::vector<std::vector<float>> rows;
    for (const std::unique_ptr<Rows>& receiver : receivers_) {
      const auto partials = backend_->Finish();
      EXPECT_TRUE(partials.ok()) << partials.status();
      for (std::vector<float>& row : receiver->rows) rows.push_back(std::move(row));
    }
    receivers_.clear();
    return rows;
  }
  void AwaitCopies(std::size_t count) {
    for (std::size_t done = 0; done < count;) {
      const auto ids = backend_->TakeCopiesDone(/*wait=*/true);
      ASSERT_TRUE(ids.ok() && !ids->empty()) << ids.status();
      done += ids->size();
    }
  }

 private:
  static constexpr std::uint32_t kBlocks = 8;
  struct Rows final : RowReceiver {
    void TakeRow(int request, absl::Span<const float> logits) override {
      const absl::MutexLock lock(&mu);
      if (rows.size() <= static_cast<std::size_t>(request)) rows.resize(request + 1ul);
      rows[request].assign(logits.begin(), logits.end());
    }
    absl::Mutex mu;
    std::vector<std::vector<float>> rows;
  };

  const SteadyClock clock_;
  const ModelShard shard_;
  const std::unique_ptr<Backend> backend_;
  Decoder decoder_;
  std::vector<std::unique_ptr<Rows>> receivers_;
};

// The next tokens of a sequence whose blocks are `table`; all logits of the last one are wanted.
StepInputs NextTokens(int first, std::vector<TokenId> tokens, std::vector<std::int32_t> table) {
  StepInputs inputs;
  const absl::Span<const std::int32_t> tables[] = {table};
  AddSequence(SequenceHandle{0}, first, tokens, tables, inputs);
  inputs.requests = {{.row = static_cast<int>(tokens.size()) - 1, .full_row = true}};
  return inputs;
}

// A prompt in block 1; while that is computed, a fork of it to block 2, which goes on and is copied
// out in one step; block 2 is lost, and its content comes back as block 3, while the sequence in
// block 1 goes on.
std::vector<std::vector<float>> ForkAndSwap(Tiered& machine) {
  using Kind = BackgroundCopy::Kind;
  std::vector<std::vector<float>> logits;
  const auto finish = [&] {
    for (std::vector<float>& row : machine.Finish()) logits.push_back(std::move(row));
  };
  machine.Start(NextTokens(0, {5, 60, 7, 80, 9, 100, 11, 3, 4, 5}, {1}));
  StepInputs fork = NextTokens(10, {12}, {1});
  fork.copies = {{.from = BlockId{1}, .to = BlockId{2}}};
  fork.background = {{.id = 1, .kind = Kind::kOut, .moves = {{BlockId{2}, 0}}}};
  machine.Start(std::move(fork));
  machine.Start(NextTokens(11, {13}, {1}));
  // Only the thread of the tiers goes on with the queues now.
  machine.AwaitCopies(1);
  finish();
  StepInputs back = NextTokens(12, {14}, {1});
  back.granted = {BlockId{2}, BlockId{3}};
  back.background = {{.id = 2, .kind = Kind::kIn, .moves = {{BlockId{3}, 0}}}};
  machine.Start(std::move(back));
  machine.Start(NextTokens(13, {15}, {1}));
  finish();
  machine.AwaitCopies(1);
  machine.Start(NextTokens(10, {90}, {3}));
  machine.Start(NextTokens(14, {16}, {1}));
  machine.Start(NextTokens(11, {91}, {3}));
  finish();
  return logits;
}

TEST(CudaBackendTest, ForksAndSwapsBesideStepsInFlightGiveTheBitsOfTheCpu) {
  const TinyModel model({.head_dim = 16, .matrix_type = GgmlType::kQ4_1});
  Tiered cpu(model, MakeCpuBackend);
  const std::vector<std::vector<float>> expected = ForkAndSwap(cpu);
  ASSERT_EQ(expected.size(), 8u);
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Tiered gpu(model, testing::MakeSimulatedGpus(seed));
    ExpectSameBits(expected, ForkAndSwap(gpu), "steps");
    if (::testing::Test::HasFailure()) return;
  }
}

// A device that fails, at load or in a step, gives an error and no answer.
TEST(CudaBackendTest, ADeviceThatFailsEndsAllSteps) {
  const TinyModel model({.head_dim = 16});
  const ModelShard shard = WholeModel(model.spec);
  const SteadyClock clock;
  int failed_loads = 0, failed_steps = 0;
  for (std::int64_t pieces = 1; pieces < 400; pieces += 23) {
    SCOPED_TRACE(absl::StrCat("after ", pieces, " pieces of work"));
    const auto failure = std::make_shared<std::atomic<std::int64_t>>(pieces);
    const auto backend = testing::MakeSimulatedGpus(
        1, GpuMode::kQueues, failure)({.max_rows = 16, .max_positions = 64, .clock = &clock});
    auto decoder = Decoder::Load(*model.file, model.spec, {&shard, 1}, {}, 0, *backend);
    absl::Status status = decoder.status();
    if (status.ok()) {
      status = backend->CreateKv(KvShapeOf(model.spec, kernels::KvFormat::kBf16, shard.layers,
                                           model.spec.attention().kv_heads),
                                 8, {});
    }
    failed_loads += status.ok() ? 0 : 1;
    for (int step = 0; status.ok() && step < 100; ++step) {
      const std::vector<TokenId> tokens = {5, 6, 7};
      const std::vector<std::int32_t> table = {1};
      const absl::Span<const std::int32_t> tables[] = {table};
      StepInputs inputs;
      AddSequence(SequenceHandle{0}, 0, tokens, tables, inputs);
      inputs.requests = {{.row = 2, .pick = RowRequest::Pick::kGreedy}};
      decoder->Start(std::move(inputs), nullptr);
      status = backend->Finish().status();
      if (status.ok()) continue;
      ++failed_steps;
      decoder->Start({}, nullptr);
      EXPECT_FALSE(backend->Finish().ok());
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  }
  EXPECT_GT(failed_loads, 0);
  EXPECT_GT(failed_steps, 0);
}

// A pool of the default size takes what the device has left, but for a stated reserve, and the
// largest steps then allocate nothing.
TEST(CudaBackendTest, ThePoolLeavesRoomForTheLargestSteps) {
  constexpr std::int64_t kMemory = std::int64_t{1} << 30;
  constexpr std::int64_t kReserve = std::int64_t{64} << 20;  // the backend's kDriverReserve
  constexpr int kRows = 40, kSequences = 40, kPositions = 4096, kSteps = 3;
  const TinyModel model({.head_dim = 16});
  const ModelShard shard = WholeModel(model.spec);
  const KvShape shape = KvShapeOf(model.spec, kernels::KvFormat::kBf16, shard.layers,
                                  model.spec.attention().kv_heads);
  const SteadyClock clock;
  auto owned = std::make_unique<SimulatedDevice>(
      SimulatedDeviceOptions{.seed = 1, .ops = &kernels::cuda::HostOps(), .memory_bytes = kMemory});
  SimulatedDevice& device = *owned;
  CudaBackend backend({.max_rows = kRows,
                       .max_positions = kPositions,
                       .max_sequences = kSequences,
                       .max_steps = kSteps,
                       .clock = &clock},
                      std::move(owned));
  auto decoder = Decoder::Load(*model.file, model.spec, {&shard, 1}, {}, 0, backend);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  const std::int64_t before = device.FreeBytes();
  const std::uint32_t blocks = backend.DefaultBlockCount(shape, {.one_sequence = 1}).count;
  EXPECT_EQ(blocks, (before - kReserve) / shape.bytes_per_block());
  EXPECT_GT(blocks * shape.bytes_per_block(), before / 10 * 9);
  EXPECT_EQ(backend.DefaultBlockCount(shape, {.one_sequence = 1, .sharers = 2}).count,
            (before / 2 - kReserve) / shape.bytes_per_block());
  ASSERT_TRUE(backend.CreateKv(shape, blocks, {}).ok());
  const std::int64_t after = device.FreeBytes();
  EXPECT_EQ(after, before - blocks * shape.bytes_per_block());

  struct Rows final : RowReceiver {
    void TakeRow(int, absl::Span<const float>) override { ++taken; }
    std::atomic<int> taken = 0;
  } rows;
  // Small steps first, which must not leave arenas in pieces; then full rows and lists in turn.
  for (const int sequences : {1, kSequences, kSequences}) {
    for (int step = 0; step < kSteps; ++step) {
      StepInputs inputs;
      const std::vector<std::int32_t> table(kPositions / 16, 1);
      const absl::Span<const std::int32_t> tables[] = {table};
      const std::vector<TokenId> tokens = {7};
      for (int i = 0; i < sequences; ++i) {
        AddSequence(SequenceHandle(static_cast<std::uint32_t>(i)), kPositions - 1, tokens, tables,
                    inputs);
      }
      // Each row is wanted, and every sequence that begins behind the last one wants it, too.
      for (int i = 0; i < sequences + kSequences - 1; ++i) {
        inputs.requests.push_back({.row = std::min(i, sequences - 1),
                                   .full_row = step == 1,
                                   .top = 64,
                                   .pick = RowRequest::Pick::kGumbel});
      }
      decoder->Start(std::move(inputs), &rows);
      EXPECT_EQ(device.FreeBytes(), after);
    }
    for (int step = 0; step < kSteps; ++step) {
      const auto partials = backend.Finish();
      ASSERT_TRUE(partials.ok()) << partials.status();
    }
  }
  EXPECT_GT(rows.taken, kSequences);
  EXPECT_EQ(device.FreeBytes(), after);

  const absl::Status refused = backend.CreateKv(shape, 2 * blocks, {});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("bytes are free"), std::string::npos) << refused;
  EXPECT_NE(refused.message().find("a smaller --kv-blocks"), std::string::npos) << refused;
}

// What GPUs lack is refused by name.
TEST(CudaBackendTest, RefusesWhatItLacksByName) {
  const SteadyClock clock;
  const auto load = [&](const testing::TinyModelOptions& options) {
    const TinyModel model(options);
    const ModelShard shard = WholeModel(model.spec);
    const auto backend =
        testing::MakeSimulatedGpus(1)({.max_rows = 16, .max_positions = 64, .clock = &clock});
    return Decoder::Load(*model.file, model.spec, {&shard, 1}, {}, 0, *backend).status();
  };
  EXPECT_TRUE(load({}).ok());
  const absl::Status format =
      load({.hidden = 256, .head_dim = 64, .ffn = 768, .matrix_type = GgmlType::kQ6_K});
  EXPECT_EQ(format.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(format.message().find("Q4_0, Q4_1 and Q8_0"), std::string::npos) << format;
  EXPECT_NE(format.message().find("blk.0."), std::string::npos) << format;
  const absl::Status experts = load({.experts = 4});
  EXPECT_EQ(experts.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(experts.message().find("mixtures of experts"), std::string::npos) << experts;
}

}  // namespace
}  // namespace flotilla::worker
