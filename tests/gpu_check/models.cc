#include "tests/gpu_check/models.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/text.h"
#include "kernels/cuda/ops.h"
#include "model/spec.h"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/model_cases.h"
#include "tests/gpu_check/plans.h"
#include "tests/gpu_check/ranks.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/simulated_gpu.h"
#include "worker/compute/backend.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/compute/cuda/nccl_api.h"
#include "worker/compute/model_shard.h"
#include "worker/device/simulated_device.h"

namespace flotilla::kernels::cuda {
namespace {

using worker::BackendMaker;
using worker::ParallelShape;
using worker::RowRequest;

constexpr char kDiskDirectory[] = "/tmp";
constexpr int kSimulatedGpus = 4;

// Whether an unnamed file can be made for the disk tier.
bool DiskTierCanBeMade() {
  const int file = open(kDiskDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
  return file >= 0;
}

NcclGpus NcclGpusOf(ModelTarget target, uint64_t seed) {
  if (target == ModelTarget::kGpu) {
    return {.count = GpuCount(), .open_device = OpenDevice, .open_nccl = [] {
              return worker::OpenNccl();
            }};
  }
  const auto made = std::make_shared<std::atomic<uint64_t>>(1000 * seed);
  const Ops* const ops = target == ModelTarget::kFibers ? &SimulatedOps() : &HostOps();
  return {
      .count = kSimulatedGpus,
      .open_device = [made, ops](int number) -> absl::StatusOr<std::unique_ptr<worker::Device>> {
        return std::make_unique<worker::SimulatedDevice>(worker::SimulatedDeviceOptions{
            .seed = (*made)++, .ops = ops, .id = Cat("simulated GPU ", number), .goes_on = true});
      },
      .open_nccl =
          [made] { return testing::FakeNccl({.seed = (*made)++, .most_looks = 2}).Open(); }};
}

// Where the words differ first; empty if they are the same.
std::string Difference(std::string_view what, const std::vector<uint32_t>& expected,
                       const std::vector<uint32_t>& actual) {
  if (expected.size() != actual.size()) {
    return Cat(what, ": ", actual.size(), " numbers in place of ", expected.size());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == actual[i]) continue;
    return Cat(what, " ", i,
               absl::StrFormat(": 0x%08x in place of 0x%08x", actual[i], expected[i]));
  }
  return "";
}

// Makes backends on GPU number 0, or on simulated ones.
BackendMaker GpusOf(ModelTarget target, uint64_t seed) {
  if (target != ModelTarget::kGpu) {
    return testing::MakeSimulatedGpus(seed, target == ModelTarget::kFibers
                                                ? testing::GpuMode::kFibers
                                                : testing::GpuMode::kQueues);
  }
  return [](const worker::BackendOptions& options) -> std::unique_ptr<worker::Backend> {
    auto device = OpenDevice(0);
    if (!device.ok()) return nullptr;
    return std::make_unique<worker::CudaBackend>(options, *std::move(device));
  };
}

// The check of one model. It stops at the first difference.
class Check {
 public:
  Check(const ModelCase& c, const Model& model, ModelTarget target, uint64_t seed)
      : case_(c),
        target_(target),
        seed_(seed),
        texts_(c, model.spec, seed),
        setup_{.model_case = c,
               .model = model,
               .max_rows = std::max(c.tokens, kSequences * kLongestPart),
               .blocks = Planner(texts_, Wants::kFull).blocks(),
               .tiers = Tiers()},
        result_{.name = c.name, .passed = true} {}

  CheckResult Run() {
    if (!Expect()) return result_;
    RunAlone();
    const auto batch = Batch(texts_, Wants::kMixed, seed_);
    const BackendMaker cpu = worker::MakeCpuBackend, gpu = GpusOf(target_, seed_);
    Group("two ranks of a stage", {2, 1}, batch, {gpu});
    Group("two stages", {1, 2}, batch, {gpu});
    if (!case_.large) {
      Group(Cat("two stages of two ranks, ", SwapName()), {2, 2},
            Swapped(texts_, Wants::kMixed, seed_ + 4, setup_.tier_count()), {gpu});
    }
    if (target_ == ModelTarget::kFibers) return result_;
    Group("a stage of CPU and GPU", {2, 1}, batch, {cpu, gpu});
    Group("a stage on a CPU, then one on a GPU", {1, 2}, batch, {cpu, gpu});
    Group("a stage on a GPU, then one on a CPU", {1, 2}, batch, {gpu, cpu});
    return result_;
  }

  // Compares only ranks that have one of `gpus` each.
  CheckResult RunOverNccl(std::string_view name, ParallelShape shape, const NcclGpus& gpus) {
    result_.name = std::string(name);
    if (Expect()) Group("over NCCL", shape, Preempted(texts_, Wants::kMixed, seed_ + 5), {}, &gpus);
    return result_;
  }

 private:
  worker::TierOptions Tiers() const {
    const uint32_t slots = Planner(texts_, Wants::kFull).slots();
    return {.host_blocks = slots,
            .disk_blocks = DiskTierCanBeMade() ? slots : 0,
            .disk_directory = kDiskDirectory};
  }
  std::string_view SwapName() const {
    return setup_.tier_count() > 1 ? "swapped to host and disk" : "swapped to the host";
  }

  // Computes what is right, on the CPU.
  bool Expect() {
    Begin();
    Machine machine(setup_, worker::MakeCpuBackend);
    for (const Wants wants : {Wants::kFull, Wants::kReduced}) {
      auto answers = machine.Run(EachAlone(texts_, wants), 0);
      if (!answers.ok()) return Fail("the CPU", answers.status().ToString());
      for (auto& [asked, answer] : *answers) expected_.emplace(asked, std::move(answer));
    }
    End("the CPU");
    return true;
  }

  void RunAlone() {
    Begin();
    Machine machine(setup_, GpusOf(target_, seed_));
    const auto run = [&](std::string_view way, const Plan& plan, size_t lag) {
      if (!result_.passed) return;
      Compare(way, machine.Run(plan, lag));
      Begin();
    };
    for (const Wants wants : {Wants::kFull, Wants::kReduced}) {
      run(wants == Wants::kFull ? "alone, full rows" : "alone, reduced rows",
          EachAlone(texts_, wants), 0);
    }
    for (const int chunk : {1, 7, 33}) {
      if (target_ == ModelTarget::kFibers && chunk == 1) continue;
      run(Cat("chunks of ", chunk), Chunks(texts_, Wants::kMixed, chunk, case_.large), 0);
    }
    run("in a batch", Batch(texts_, Wants::kMixed, seed_ + 1), 1);
    run("preempted", Preempted(texts_, Wants::kMixed, seed_ + 2), 1);
    run(SwapName(), Swapped(texts_, Wants::kMixed, seed_ + 3, setup_.tier_count()), 1);
  }

  void Group(std::string_view way, ParallelShape shape, const Plan& plan,
             const std::vector<BackendMaker>& makers, const NcclGpus* gpus = nullptr) {
    if (!result_.passed) return;
    Begin();
    Compare(way, RunGroup(setup_, shape, plan, makers, gpus));
  }

  void Compare(std::string_view way, absl::StatusOr<Answers> answers) {
    if (!answers.ok()) {
      Fail(way, answers.status().ToString());
      return;
    }
    if (answers->empty()) Fail(way, "nothing was compared");
    for (const auto& [asked, answer] : *answers) {
      const Answer& expected = expected_.at(asked);
      std::string difference = Difference("logit", expected.row, answer.row);
      if (difference.empty() && !answer.partial.empty()) {
        difference = Difference("reduced number", expected.partial, answer.partial);
      }
      if (difference.empty()) {
        difference = Difference("concluded number", expected.conclusion, answer.conclusion);
      }
      ++result_.cases;
      if (difference.empty()) continue;
      Fail(way, Cat("sequence ", asked.sequence, ", position ", asked.position, ", ", difference));
      return;
    }
    End(way);
  }

  bool Fail(std::string_view way, std::string_view why) {
    result_.passed = false;
    result_.difference = Cat("seed ", seed_, ", ", way, ": ", why);
    return false;
  }

  void Begin() { begin_ = std::chrono::steady_clock::now(); }
  void End(std::string_view way) const {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    std::fputs(
        Cat("  ", result_.name, ", ", way, absl::StrFormat(": %.2f s\n", took.count())).c_str(),
        stderr);
  }

  const ModelCase& case_;
  const ModelTarget target_;
  const uint64_t seed_;
  const Texts texts_;
  const Setup setup_;
  std::map<Asked, Answer> expected_;
  std::chrono::steady_clock::time_point begin_;
  CheckResult result_;
};

}  // namespace

std::vector<ModelCheck> ModelChecks(ModelTarget target, uint64_t seed, bool few,
                                    std::string_view only) {
  std::vector<ModelCase> cases = TinyModels(target, seed);
  if (few) {
    cases = {cases[9], cases[12], cases[23]};
  } else if (target == ModelTarget::kFibers) {
    // One of each type of weights and recipe; the formats of K and V take turns.
    std::vector<ModelCase> some;
    for (size_t i = 0; i < cases.size(); i += 2) some.push_back(cases[i + i / 4 % 2]);
    cases = std::move(some);
  }
  if (!few && target != ModelTarget::kFibers) {
    for (ModelCase& c : LargeModels(target, seed)) cases.push_back(std::move(c));
  }
  std::vector<ModelCheck> checks;
  for (ModelCase& c : cases) {
    if (!only.empty() && c.name != only) continue;
    const auto shared = std::make_shared<ModelCase>(std::move(c));
    // Weights of large models take seconds.
    const auto made = std::make_shared<std::future<std::unique_ptr<Model>>>(
        std::async(shared->large ? std::launch::async : std::launch::deferred,
                   [shared] { return std::make_unique<Model>(shared->options); }));
    checks.push_back({shared->name, [shared, made, target, seed] {
                        const std::unique_ptr<Model> model = made->get();
                        return Check(*shared, *model, target, seed).Run();
                      }});
  }
  return checks;
}

absl::StatusOr<std::vector<StepTime>> MeasureSteps(ModelTarget target, uint64_t seed) {
  constexpr int kSteps = 20;
  std::vector<StepTime> times;
  for (ModelCase& c : LargeModels(target, seed)) {
    const Model model(c.options);
    const model::ModelSpec& spec = model.spec;
    // A prompt fills a step, and decodes see as many tokens.
    const int context = std::min(512, c.tokens - 1), rows = std::max(context, kSequences);
    const int blocks = context / kBlockTokens + 1;  // of a sequence
    const Setup setup{.model_case = c,
                      .model = model,
                      .max_rows = rows,
                      .blocks = static_cast<uint32_t>(1 + kSequences * blocks)};
    const worker::ModelShard shard = worker::WholeModel(spec);
    Rank rank(setup, {1, 1}, 0);
    absl::Status loaded = rank.Load({&shard, 1}, nullptr, GpusOf(target, seed));
    if (!loaded.ok()) return loaded;
    // The next `count` tokens of so many sequences, of which the last one answers.
    const auto step = [&](int sequences, int first, int count) {
      PlannedStep planned;
      for (int s = 0; s < sequences; ++s) {
        std::vector<int32_t> table(blocks);
        for (int i = 0; i < blocks; ++i) table[i] = 1 + s * blocks + i;
        const absl::Span<const int32_t> tables[] = {table};
        AddSequence(SequenceHandle(static_cast<uint32_t>(s)), first, std::vector<TokenId>(count, 7),
                    tables, planned.inputs);
        planned.inputs.requests.push_back(
            {.row = planned.inputs.rows() - 1, .pick = RowRequest::Pick::kGreedy});
      }
      return planned;
    };
    const auto measure = [&](std::string shape, const PlannedStep& planned,
                             int64_t bytes) -> absl::Status {
      if (const auto once = rank.Run({planned}, 0); !once.ok()) return once.status();
      const auto begin = std::chrono::steady_clock::now();
      const auto all = rank.Run(Plan(kSteps, planned), 1);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      if (all.ok()) times.push_back({c.name, std::move(shape), took.count() / kSteps, bytes});
      return all.status();
    };
    const auto& attention = spec.attention();
    const int64_t record = KvRecordBytes(c.format == KvFormat::kBf16 ? KvType::kBf16 : KvType::kF32,
                                         static_cast<int>(c.options.head_dim));
    const int64_t kv = record * context / kKvRecordTokens * attention.kv_heads *
                       static_cast<int64_t>(spec.layers.size());
    absl::Status status = measure(Cat("a prompt of ", context, " tokens"), step(1, 0, context), 0);
    for (const int sequences : {1, kSequences}) {
      if (!status.ok()) break;
      status = measure(Cat(sequences, sequences == 1 ? " sequence" : " sequences", " behind ",
                           context, " tokens"),
                       step(sequences, context, 1), rank.weight_bytes() + sequences * kv);
    }
    if (!status.ok()) return status;
  }
  return times;
}

absl::StatusOr<NcclChecks> MakeNcclChecks(ModelTarget target, uint64_t seed,
                                          std::string_view only) {
  const auto gpus = std::make_shared<const NcclGpus>(NcclGpusOf(target, seed));
  if (gpus->count < 2) {
    return absl::FailedPreconditionError(
        Cat("it needs two GPUs, and this machine has ", gpus->count));
  }
  const auto nccl = gpus->open_nccl();
  if (!nccl.ok()) return nccl.status();
  NcclChecks found{.gpus = gpus->count, .version = (*nccl)->version, .checks = {}};
  for (ModelCase& c : NcclModels(target, seed)) {
    const auto shared = std::make_shared<const ModelCase>(std::move(c));
    const auto model = std::make_shared<const Model>(shared->options);
    const uint32_t splits = std::min(model->spec.attention_splits(), model->spec.ffn_splits());
    for (const ParallelShape shape : {ParallelShape{2, 1}, {1, 2}, {3, 1}, {2, 2}}) {
      if (static_cast<int>(shape.ranks()) > gpus->count || shape.tensor > splits) continue;
      const std::string name = Cat(shared->name, ", tp ", shape.tensor, ", pp ", shape.pipeline);
      if (!only.empty() && name != only) continue;
      found.checks.push_back(
          {name,
           [=] { return Check(*shared, *model, target, seed).RunOverNccl(name, shape, *gpus); }});
    }
  }
  return found;
}

}  // namespace flotilla::kernels::cuda
