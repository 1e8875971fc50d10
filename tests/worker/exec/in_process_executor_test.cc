// InProcessExecutor on a tiny model, driven by plans made by hand, with each backend.
#include "worker/exec/in_process_executor.h"

#include <algorithm>
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/types/digest.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"
#include "tests/support/with_kv_scales.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/device/simulated_device.h"

namespace flotilla::worker {
namespace {

// Collects events; waits for a number of them.
class Recorder : public ExecutorListener {
 public:
  void OnReady(Epoch epoch, const ExecutorDescription& description) override {
    absl::MutexLock lock(&mu_);
    ready_.push_back({epoch, description});
  }
  void OnResult(StepResult result) override {
    absl::MutexLock lock(&mu_);
    results_.push_back(std::move(result));
  }
  void OnLost(const Lost& lost) override {
    absl::MutexLock lock(&mu_);
    lost_.push_back(lost);
  }

  ExecutorDescription WaitReady(Epoch epoch) { return Wait(ready_, epoch.value()).second; }
  StepResult WaitResult(size_t number) { return Wait(results_, number); }
  Lost WaitLost(size_t number) { return Wait(lost_, number); }
  // Waits for the first of the two, and says whether it is the result.
  bool ResultComesBeforeLoss(size_t result, size_t loss) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return results_.size() >= result || lost_.size() >= loss; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60)));
    return results_.size() >= result;
  }

 private:
  template <class T>
  T Wait(const std::deque<T>& events, size_t number) {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return events.size() >= number; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(60)));
    return events.at(number - 1);
  }

  absl::Mutex mu_;
  std::deque<std::pair<Epoch, ExecutorDescription>> ready_;
  std::deque<StepResult> results_;
  std::deque<Lost> lost_;
};

// Plans for one greedy sequence with all its blocks, as a scheduler would make them.
class OneSequence {
 public:
  OneSequence(Epoch epoch, std::vector<TokenId> prompt, uint32_t max_tokens)
      : epoch_(epoch), prompt_(std::move(prompt)), max_tokens_(max_tokens) {}

  StepPlan Prefill() {
    StepPlan plan = Next();
    OpenSequence open{.sequence = kHandle,
                      .request = kRequest,
                      .tokens = prompt_,
                      .prompt_tokens = static_cast<uint32_t>(prompt_.size())};
    open.sampling.temperature = 0;
    open.stop.max_tokens = max_tokens_;
    open.logprobs.output_top = 2;
    digest_.Open(kHandle, kRequest, SequenceIndex{0});
    GrantBlocks grant{.sequence = kHandle};
    for (uint32_t i = 0; i <= (prompt_.size() + max_tokens_) / 16; ++i) {
      grant.blocks.push_back(BlockId{i + 1});
      digest_.AddBlock(kHandle, GroupIndex{0}, i, grant.blocks.back());
    }
    const auto count = static_cast<uint32_t>(prompt_.size());
    plan.ops = {open, grant, Run{.sequence = kHandle, .count = count, .sample = true}};
    digest_.AddRun(plan.step, kHandle, count);
    plan.digest = digest_.value();
    return plan;
  }

  StepPlan Decode() {  // an empty plan: the sequence decodes by default
    StepPlan plan = Next();
    plan.digest = digest_.value();
    return plan;
  }

 private:
  static constexpr SequenceHandle kHandle{3};
  static constexpr RequestId kRequest{1, 2};

  StepPlan Next() { return {.epoch = epoch_, .step = Step{++step_}}; }

  Epoch epoch_;
  std::vector<TokenId> prompt_;
  uint32_t max_tokens_;
  uint64_t step_ = 0;
  PlanDigest digest_;
};

const std::vector<TokenId> kPrompt = {5, 60, 7, 80, 9, 100, 11};
constexpr uint64_t kSeed = 11;  // of the deferred backend's delays

// A table for all positions that the file states could take more memory than there is.
TEST(Rank, TheBackendHasNoMorePositionsThanThePool) {
  testing::TinyModelOptions model;
  model.context_length = 1 << 24;
  const std::vector<std::byte> bytes = testing::TinyGguf(model);
  for (const std::uint32_t blocks : {4u, 64u}) {
    int positions = 0;
    RankOptions options{.model_id = "tiny", .threads = 1, .kv_blocks = blocks};
    options.make_backend = [&](const BackendOptions& backend) {
      positions = backend.max_positions;
      return MakeCpuBackend(backend);
    };
    const SteadyClock clock;
    InProcessExecutor executor(*model::ParseCheckpoint(bytes), options, &clock);
    Recorder recorder;
    ASSERT_TRUE(executor.Start(&recorder).ok());
    EXPECT_EQ(positions, static_cast<int>(16 * blocks));
    executor.Stop();
  }
}

// With the backend of CPUs, the deferred one, and that of GPUs over a simulated one.
class InProcessExecutorTest : public ::testing::TestWithParam<std::string> {
 protected:
  bool deferred() const { return GetParam() == "Deferred"; }
  bool gpu() const { return GetParam().starts_with("Gpu"); }

  // The options with the backend of this test.
  RankOptions WithBackend(RankOptions options) const {
    if (deferred()) options.make_backend = testing::MakeDeferredBackends(kSeed, 2, control_);
    for (const testing::SimulatedGpus& gpus : testing::AllSimulatedGpus()) {
      if (gpus.name == GetParam()) options.make_backend = testing::MakeSimulatedGpus(gpus);
    }
    // A pool of the default size takes the simulated GPU's memory, which takes long to fill.
    if (gpu() && options.kv_blocks == 0) options.kv_blocks = 64;
    return options;
  }

  void Start(RankOptions options = {}) {
    options = WithBackend(std::move(options));
    auto file = model::ParseCheckpoint(bytes_);
    ASSERT_TRUE(file.ok());
    options.model_id = "tiny";
    options.threads = 2;
    if (options.kv_blocks == 0) options.kv_blocks = 64;
    options.poison_blocks = true;
    executor_.emplace(*std::move(file), options, &clock_);
    const absl::Status status = executor_->Start(&recorder_);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Generates greedily in a new sequence of `epoch`, and returns the tokens. Results are numbered
  // from `number`.
  std::vector<TokenId> Generate(Epoch epoch, uint32_t max_tokens, size_t number) {
    OneSequence sequence(epoch, kPrompt, max_tokens);
    std::vector<TokenId> tokens;
    EXPECT_TRUE(executor_->Execute(sequence.Prefill()).ok());
    for (uint32_t i = 0; i < max_tokens; ++i) {
      const StepResult result = recorder_.WaitResult(number + i);
      EXPECT_EQ(result.sequences.size(), 1u);
      EXPECT_EQ(result.sequences[0].tokens.size(), 1u);
      EXPECT_EQ(result.sequences[0].tokens[0].top[0].token, result.sequences[0].tokens[0].token);
      EXPECT_EQ(result.sequences[0].finished.has_value(), i + 1 == max_tokens);
      EXPECT_GT(result.timings.compute_ns, 0);
      tokens.push_back(result.sequences[0].tokens[0].token);
      if (i + 1 == max_tokens) break;
      EXPECT_TRUE(executor_->Execute(sequence.Decode()).ok());
    }
    return tokens;
  }

  const std::vector<std::byte> bytes_ = testing::TinyGguf();
  const std::shared_ptr<testing::DeferredControl> control_ =
      std::make_shared<testing::DeferredControl>();
  const SteadyClock clock_;
  Recorder recorder_;
  std::optional<InProcessExecutor> executor_;
};

std::vector<std::string> Backends() {
  std::vector<std::string> backends = {"Cpu", "Deferred"};
  for (const testing::SimulatedGpus& gpus : testing::AllSimulatedGpus()) {
    backends.push_back(gpus.name);
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Backends, InProcessExecutorTest, ::testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param; });

TEST_P(InProcessExecutorTest, DescribesWhatItServes) {
  Start({.max_context = 100, .max_step_tokens = 33, .max_sequences = 9});
  const ExecutorDescription d = recorder_.WaitReady(Epoch{1});
  EXPECT_EQ(d.model_id, "tiny");
  EXPECT_EQ(d.vocab_size, 320u);
  EXPECT_EQ(d.max_context, 100u);
  EXPECT_EQ(d.max_step_tokens, 33u);
  EXPECT_EQ(d.max_sequences, 9u);
  EXPECT_EQ(d.block_count, 65u);
  EXPECT_EQ(d.lag, 1u);
  ASSERT_EQ(d.groups.size(), 1u);
  EXPECT_EQ(d.groups[0].tokens_per_block, 16u);
  EXPECT_EQ(d.groups[0].bytes_per_block, 2u * 2 * 2 * 2 * 16 * 32);  // bf16, layers, heads, K+V
  EXPECT_GT(d.prefill_ns_per_token, 0);
  EXPECT_GT(d.decode_ns_per_step, 0);
}

TEST_P(InProcessExecutorTest, NumericsIdTellsWhatChangesBits) {
  const auto id = [&](const RankOptions& options, const std::vector<model::KvScales>& scales = {}) {
    Recorder recorder;
    const auto file =
        std::make_shared<testing::WithKvScales>(*model::ParseCheckpoint(bytes_), scales);
    InProcessExecutor executor(file, WithBackend(options), &clock_);
    EXPECT_TRUE(executor.Start(&recorder).ok());
    return recorder.WaitReady(Epoch{1}).numerics_id;
  };
  const uint64_t base = id({});
  EXPECT_EQ(base, id({.threads = 1, .kv_blocks = 9, .max_step_tokens = 1}));
  for (const kernels::Isa isa : kernels::DetectIsas()) EXPECT_EQ(base, id({.isa = isa}));
  EXPECT_NE(base, id({.recipe = Recipe::kFp32}));
  std::set<uint64_t> ids = {base};
  using enum kernels::KvType;
  for (const kernels::KvFormat& kv : {kernels::KvFormat{kF32, kF32},
                                      {kF16, kF16},
                                      {kInt8, kInt8},
                                      {kFp8, kFp8},
                                      {kFp8E5m2, kFp8E5m2},
                                      {kInt8, kInt4},
                                      {kInt4, kInt4},
                                      {kInt4, kInt2},
                                      {kInt8, kF16},
                                      {kF16, kInt8},
                                      {kBf16, kF16}}) {
    if (deferred() && kv.has_runs()) continue;  // it has none
    // GPUs have these two.
    if (gpu() && kv != kernels::KvFormat::kF32 && kv != kernels::KvFormat::kBf16) continue;
    EXPECT_TRUE(ids.insert(id({.kv_format = kv})).second) << kernels::KvFormatName(kv);
  }
  KvFormats layers = kernels::KvFormat::kBf16;
  if (gpu()) return;
  EXPECT_EQ(base, id({}, {{0.5f, 0.5f}}));
  EXPECT_TRUE(ids.insert(id({.kv_format = kernels::KvFormat{kFp8, kFp8}}, {{0.5f, 0.5f}})).second);
  for (const IndexRange range : {IndexRange{0, 1}, IndexRange{1, 2}, IndexRange{0, 2}}) {
    layers.some = {{range, {kInt8, kInt8}}};
    EXPECT_TRUE(ids.insert(id({.kv_format = layers})).second) << layers.Name();
  }
}

TEST_P(InProcessExecutorTest, GeneratesAndEnds) {
  Start();
  recorder_.WaitReady(Epoch{1});
  EXPECT_EQ(Generate(Epoch{1}, 20, 1).size(), 20u);
  EXPECT_EQ(executor_->probe().steps, 20u);
  EXPECT_EQ(executor_->probe().rows, 7u + 19);
  EXPECT_EQ(executor_->probe().decode_rows, 19u);
}

TEST_P(InProcessExecutorTest, WrongDigestEndsTheEpochAndTheNextAnswersTheSame) {
  Start();
  recorder_.WaitReady(Epoch{1});
  const auto tokens = Generate(Epoch{1}, 5, 1);
  OneSequence other(Epoch{1}, {1, 2, 3}, 4);
  EXPECT_TRUE(executor_->Execute(other.Decode()).ok());  // step 1 again
  const Lost lost = recorder_.WaitLost(1);
  EXPECT_EQ(lost.epoch, Epoch{1});
  EXPECT_EQ(lost.cause, Lost::Cause::kInvalidPlan);
  EXPECT_TRUE(lost.started.empty());
  recorder_.WaitReady(Epoch{2});
  EXPECT_EQ(executor_->Execute(other.Decode()).code(), absl::StatusCode::kFailedPrecondition);

  OneSequence drifted(Epoch{2}, {1, 2, 3}, 4);
  StepPlan plan = drifted.Prefill();
  plan.digest ^= 1;
  EXPECT_TRUE(executor_->Execute(plan).ok());
  EXPECT_EQ(recorder_.WaitLost(2).cause, Lost::Cause::kDigest);
  recorder_.WaitReady(Epoch{3});
  EXPECT_EQ(Generate(Epoch{3}, 5, 6), tokens);
  EXPECT_EQ(executor_->probe().epochs_lost, 2u);
}

TEST_P(InProcessExecutorTest, RefusesMoreThanTwoUnansweredPlans) {
  // A listener that keeps the executor inside its first result.
  class Blocker : public ExecutorListener {
   public:
    void OnReady(Epoch, const ExecutorDescription&) override { ready.Notify(); }
    void OnResult(StepResult) override {
      entered.TryNotify();
      leave.WaitForNotification();
    }
    void OnLost(const Lost&) override {}
    struct Once : absl::Notification {
      void TryNotify() {
        if (!HasBeenNotified()) Notify();
      }
    };
    absl::Notification ready, leave;
    Once entered;
  } blocker;
  auto file = model::ParseCheckpoint(bytes_);
  ASSERT_TRUE(file.ok());
  InProcessExecutor executor(*std::move(file), WithBackend({.threads = 1, .kv_blocks = 8}),
                             &clock_);
  OneSequence sequence(Epoch{1}, {1, 2, 3}, 10);
  EXPECT_EQ(executor.Execute(sequence.Prefill()).code(), absl::StatusCode::kFailedPrecondition)
      << "before Start";
  ASSERT_TRUE(executor.Start(&blocker).ok());
  blocker.ready.WaitForNotification();
  sequence = OneSequence(Epoch{1}, {1, 2, 3}, 10);
  EXPECT_TRUE(executor.Execute(sequence.Prefill()).ok());
  blocker.entered.WaitForNotification();
  EXPECT_TRUE(executor.Execute(sequence.Decode()).ok());
  EXPECT_TRUE(executor.Execute(sequence.Decode()).ok());
  EXPECT_EQ(executor.Execute(sequence.Decode()).code(), absl::StatusCode::kResourceExhausted);
  blocker.leave.Notify();
  executor.Stop();
  EXPECT_EQ(executor.Execute(sequence.Decode()).code(), absl::StatusCode::kFailedPrecondition);
  executor.Stop();
}

TEST_P(InProcessExecutorTest, StartRefusesWhatCannotBeServed) {
  const auto start = [&](const std::vector<std::byte>& bytes, const RankOptions& options) {
    auto file = model::ParseCheckpoint(bytes);
    EXPECT_TRUE(file.ok());
    InProcessExecutor executor(*std::move(file), WithBackend(options), &clock_);
    return executor.Start(&recorder_).code();
  };
  EXPECT_EQ(start(bytes_, {.max_context = 513}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(start(bytes_, {.max_step_tokens = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(start(bytes_, {.max_sequences = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(start(bytes_, {.kv_blocks = 1u << 30}), absl::StatusCode::kResourceExhausted);
  testing::GgufBuilder other;
  other.AddString("general.architecture", "mamba");
  EXPECT_EQ(start(other.Build(), {}), absl::StatusCode::kUnimplemented);
}

TEST_P(InProcessExecutorTest, EveryBackendGeneratesTheSame) {
  Start();
  recorder_.WaitReady(Epoch{1});
  const auto tokens = Generate(Epoch{1}, 20, 1);
  const auto file = model::ParseCheckpoint(bytes_);
  Recorder recorder;
  InProcessExecutor other(*file, {.isa = kernels::Isa::kReference, .threads = 1, .kv_blocks = 64},
                          &clock_);
  ASSERT_TRUE(other.Start(&recorder).ok());
  recorder.WaitReady(Epoch{1});
  OneSequence sequence(Epoch{1}, kPrompt, 20);
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(other.Execute(i == 0 ? sequence.Prefill() : sequence.Decode()).ok());
    EXPECT_EQ(recorder.WaitResult(i + 1).sequences[0].tokens[0].token, tokens[i]);
  }
}

// The GPUs of ranks that load themselves, and the devices that were made.
RankOptions OnSimulatedGpus(std::vector<SimulatedDevice*>* devices) {
  RankOptions options{.device = {.kind = DeviceChoice::Kind::kCuda}, .threads = 1, .kv_blocks = 64};
  options.make_device = [devices](const DeviceChoice&,
                                  int rank) -> absl::StatusOr<std::unique_ptr<Device>> {
    static absl::Mutex mu;
    auto device = std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{
        .seed = kSeed, .ops = &kernels::cuda::HostOps(), .id = absl::StrCat(rank)});
    absl::MutexLock lock(&mu);
    devices->push_back(device.get());
    return device;
  };
  return options;
}

// In a process whose GPU has failed no GPU works again.
TEST(GpuExecutor, AnErrorOfAGpuEndsTheProcess) {
  const auto bytes = testing::TinyGguf();
  const SteadyClock clock;
  std::vector<SimulatedDevice*> devices;
  RankOptions options = OnSimulatedGpus(&devices);
  std::string why;
  options.end_process = [&](const std::string& detail) { why = detail; };
  Recorder recorder;
  InProcessExecutor executor(*model::ParseCheckpoint(bytes), options, &clock);
  ASSERT_TRUE(executor.Start(&recorder).ok());
  recorder.WaitReady(Epoch{1});
  ASSERT_EQ(devices.size(), 1u);
  devices[0]->FailAfter(5);
  ASSERT_TRUE(executor.Execute(OneSequence(Epoch{1}, kPrompt, 4).Prefill()).ok());
  EXPECT_EQ(recorder.WaitLost(1).cause, Lost::Cause::kDied);
  EXPECT_EQ(why, "the backend failed: the simulated GPU fails, as the test wants it");
  executor.Stop();
}

// No rank waits for the one whose GPU has failed, and what is loaded anew is right.
TEST(GpuExecutor, NobodyWaitsForAGpuThatFailsInAStep) {
  const auto bytes = testing::TinyGguf();
  const SteadyClock clock;
  std::vector<TokenId> expected;
  for (const ParallelShape shape : {ParallelShape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    for (const std::int64_t pieces : {1, 30, 75}) {
      SCOPED_TRACE(absl::StrCat("tp ", shape.tensor, ", pp ", shape.pipeline, ", ", pieces));
      std::vector<SimulatedDevice*> devices;
      RankOptions options = OnSimulatedGpus(&devices);
      options.shape = shape;
      Recorder recorder;
      InProcessExecutor executor(*model::ParseCheckpoint(bytes), options, &clock);
      ASSERT_TRUE(executor.Start(&recorder).ok());
      recorder.WaitReady(Epoch{1});
      size_t results = 0;
      const auto generate = [&](Epoch epoch, size_t losses) {
        OneSequence sequence(epoch, kPrompt, 20);
        std::vector<TokenId> tokens;
        for (int i = 0; tokens.size() < 6; ++i) {
          EXPECT_TRUE(executor.Execute(i == 0 ? sequence.Prefill() : sequence.Decode()).ok());
          if (!recorder.ResultComesBeforeLoss(results + 1, losses + 1)) break;
          const StepResult result = recorder.WaitResult(++results);
          if (!result.sequences.empty()) tokens.push_back(result.sequences[0].tokens[0].token);
        }
        return tokens;
      };
      devices.back()->FailAfter(pieces);
      EXPECT_LT(generate(Epoch{1}, 0).size(), 6u);
      EXPECT_EQ(recorder.WaitLost(1).cause, Lost::Cause::kDied);
      recorder.WaitReady(Epoch{2});
      const std::vector<TokenId> tokens = generate(Epoch{2}, 1);
      if (expected.empty()) expected = tokens;
      EXPECT_EQ(tokens.size(), 6u);
      EXPECT_EQ(tokens, expected);
      executor.Stop();
    }
  }
}

// See LocalGroup.
TEST(GpuExecutor, RanksOfOneProcessExchangeThroughTheHost) {
  const auto bytes = testing::TinyGguf();
  const SteadyClock clock;
  std::vector<SimulatedDevice*> devices;
  RankOptions options = OnSimulatedGpus(&devices);
  options.shape = {.tensor = 2, .pipeline = 1};
  Recorder recorder;
  InProcessExecutor executor(*model::ParseCheckpoint(bytes), options, &clock);
  ASSERT_TRUE(executor.Start(&recorder).ok());
  EXPECT_EQ(executor.device().exchange, "host");
  EXPECT_EQ(executor.device().no_nccl, "rank 0: the ranks share a process");
  executor.Stop();
}

// A backend that has failed is not used again: the model is loaded anew, and the next epoch gives
// the answers of the first. No rank waits for the one whose backend has failed.
class FailedBackendTest : public ::testing::TestWithParam<ParallelShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, FailedBackendTest,
                         ::testing::Values(ParallelShape{1, 1}, ParallelShape{2, 1},
                                           ParallelShape{1, 2}, ParallelShape{2, 2}),
                         [](const auto& info) {
                           return absl::StrCat("tp", info.param.tensor, "pp", info.param.pipeline);
                         });

TEST_P(FailedBackendTest, IsReplaced) {
  const auto bytes = testing::TinyGguf();
  const auto file = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const ParallelShape shape = GetParam();
  const auto ranks = static_cast<int>(shape.ranks());
  const auto control = std::make_shared<testing::DeferredControl>();
  const SteadyClock clock;
  Recorder recorder;
  InProcessExecutor executor(
      *file,
      {.shape = shape,
       .threads = 1,
       .kv_blocks = 64,
       .make_backend = testing::MakeDeferredBackends(kSeed, shape.pipeline + 1, control)},
      &clock);
  ASSERT_TRUE(executor.Start(&recorder).ok());
  recorder.WaitReady(Epoch{1});
  EXPECT_EQ(control->made(), ranks);

  // Runs plans of one sequence, which decodes in every plan of its micro-batch, until 9 results or
  // a loss. Returns the tokens.
  size_t results = 0, losses = 0;
  const auto generate = [&](Epoch epoch) {
    OneSequence sequence(epoch, kPrompt, 20);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 9; ++i) {
      EXPECT_TRUE(executor.Execute(i == 0 ? sequence.Prefill() : sequence.Decode()).ok());
      if (!recorder.ResultComesBeforeLoss(results + 1, losses + 1)) break;
      const StepResult result = recorder.WaitResult(++results);
      if (!result.sequences.empty()) tokens.push_back(result.sequences[0].tokens[0].token);
    }
    return tokens;
  };
  const auto tokens = generate(Epoch{1});
  ASSERT_GE(tokens.size(), 9 / shape.pipeline);
  // The first epoch ends, so that the plans of the second are steps 1, 2 ...
  EXPECT_TRUE(executor.Execute(OneSequence(Epoch{1}, kPrompt, 4).Decode()).ok());
  EXPECT_EQ(recorder.WaitLost(++losses).cause, Lost::Cause::kInvalidPlan);
  recorder.WaitReady(Epoch{2});
  EXPECT_EQ(control->made(), ranks);

  control->FailAfter(3);
  const auto before = generate(Epoch{2});
  EXPECT_LT(before.size(), tokens.size());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), tokens.begin()));
  const Lost lost = recorder.WaitLost(++losses);
  EXPECT_EQ(lost.epoch, Epoch{2});
  EXPECT_EQ(lost.cause, Lost::Cause::kDied);
  EXPECT_THAT(lost.started, ::testing::Contains(Step{3}));
  recorder.WaitReady(Epoch{3});
  EXPECT_EQ(control->made(), 2 * ranks);
  EXPECT_EQ(generate(Epoch{3}), tokens);
  executor.Stop();
}

// Weights of 2 bytes stay so in memory.
TEST(WeightMemoryTest, TwoByteWeightsTakeTheFilesSize) {
  for (const model::GgmlType type : {model::GgmlType::kF16, model::GgmlType::kBF16}) {
    const std::vector<std::byte> bytes =
        testing::TinyGguf({.hidden = 256, .ffn = 768, .matrix_type = type, .embedding_type = type});
    const auto file = model::ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const SteadyClock clock;
    Recorder recorder;
    InProcessExecutor executor(*file, {.threads = 1, .kv_blocks = 8}, &clock);
    ASSERT_TRUE(executor.Start(&recorder).ok());
    EXPECT_LE(executor.probe().weight_bytes, static_cast<int64_t>(bytes.size() * 105 / 100));
    executor.Stop();
  }
}

}  // namespace
}  // namespace flotilla::worker
