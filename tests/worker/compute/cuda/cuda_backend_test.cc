// CudaBackend over a simulated device: the bits of the CPU.
#include "worker/compute/cuda/cuda_backend.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/decoder_machine.h"

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
