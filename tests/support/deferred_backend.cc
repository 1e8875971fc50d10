// DeferredBackend itself: the queue of its worker thread, and the calls that fill it.
#include "tests/support/deferred_backend.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/kv_layout.h"
#include "tests/support/deferred_device.h"
#include "worker/compute/model_shard.h"

namespace flotilla::testing {
namespace {

// The longest time from Start to the step's first operation. Most steps' operations are enqueued
// by then.
constexpr std::uint32_t kMaxDelayUs = 300;
// A background copy lets at most this many calls pass.
constexpr std::uint32_t kMaxCopyCalls = 3;
constexpr std::int64_t kNeverFails = std::numeric_limits<std::int64_t>::max();

}  // namespace

DeferredBackend::DeferredBackend(const worker::BackendOptions& options,
                                 const DeferredOptions& deferred)
    : deferred_(deferred),
      exchange_(options.exchange),
      finishes_left_(std::make_shared<std::atomic<std::int64_t>>(kNeverFails)),
      random_(deferred.seed),
      device_(std::make_unique<Device>(options)),
      thread_([this] { Loop(); }) {}

DeferredBackend::~DeferredBackend() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  thread_.join();
}

void DeferredBackend::Loop() {
  while (true) {
    std::optional<PendingCopy> pending;
    Work work;
    bool skip = false;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &DeferredBackend::HasWork));
      if (stopped_) return;
      if (CopyIsDue()) {
        pending = std::move(copies_.front());
        copies_.pop_front();
        copying_ = true;
      } else {
        work = std::move(queue_.front());
        queue_.pop_front();
        skip = !work.always && !failure_.ok() && work.step >= failed_step_;
      }
    }
    if (pending.has_value()) {
      if (absl::Status s = device_->MakeCopy(pending->copy); !s.ok()) Fail(pending->step, s);
      absl::MutexLock lock(&mu_);
      copying_ = false;
      copies_done_.push_back(pending->copy.id);
    } else if (!skip) {
      if (absl::Status s = work.run(); !s.ok()) Fail(work.step, s);
    }
  }
}

void DeferredBackend::Fail(std::uint64_t step, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (!failure_.ok() && failed_step_ <= step) return;
  failure_ = status;
  failed_step_ = step;
  if (exchange_ != nullptr) exchange_->Abort();
}

void DeferredBackend::Misuse(std::string_view message) {
  Fail(last_step_, absl::FailedPreconditionError(absl::StrCat(
                       "the caller breaks the contract of Backend: ", std::string(message))));
}

void DeferredBackend::Push(Work work) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(work));
}

void DeferredBackend::Enqueue(std::string_view operation, bool valid,
                              std::function<absl::Status()> run) {
  const auto name = std::string(operation);
  if (!open_) return Misuse(absl::StrCat(name, " outside of a step"));
  if (steps_.back()->rows == 0) return Misuse(absl::StrCat(name, " in a step without rows"));
  if (!valid) return Misuse(absl::StrCat(name, " of a handle that names nothing of the kind"));
  Push({.step = last_step_, .always = false, .run = [name, run = std::move(run)] {
          const absl::Status status = run();
          return status.ok()
                     ? status
                     : absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
        }});
}

void DeferredBackend::Start(StepInputs inputs, worker::RowReceiver* receiver) {
  if (open_) Seal();
  ++last_step_;
  if (steps_.size() >= deferred_.max_started) {
    Misuse(absl::StrCat("more than ", deferred_.max_started, " steps are started"));
  }
  auto made = std::make_unique<Step>();
  Step* const step = made.get();
  step->rows = inputs.rows();
  step->partials.resize(inputs.requests.size());
  step->receiver = receiver;
  steps_.push_back(std::move(made));
  open_ = true;
  {
    absl::MutexLock lock(&mu_);
    CountDown();
    for (BackgroundCopy& copy : inputs.background) {
      copies_.push_back({.copy = std::move(copy),
                         .step = last_step_,
                         .calls_left = random_.Below(kMaxCopyCalls + 1)});
    }
  }
  step->inputs = std::move(inputs);
  // Such a step fails before its first operation.
  if (finishes_left_->load() <= static_cast<std::int64_t>(steps_.size())) {
    Fail(last_step_, absl::InternalError("the backend failed, as the test asked"));
  }
  Push({.step = last_step_,
        .always = true,
        .run = [this, step, number = last_step_, delay_us = random_.Below(kMaxDelayUs + 1)] {
          {
            absl::MutexLock lock(&mu_);
            mu_.AwaitWithTimeout(absl::Condition(&stopped_), absl::Microseconds(delay_us));
          }
          const absl::Status status = device_->Begin(*step);
          absl::MutexLock lock(&mu_);
          begun_steps_ = number;
          return status;
        }});
}

void DeferredBackend::Seal() {
  open_ = false;
  Push({.step = last_step_, .always = true, .run = [this, step = steps_.back().get()] {
          device_->End();
          absl::MutexLock lock(&mu_);
          step->done = true;
          return absl::OkStatus();
        }});
}

absl::StatusOr<std::vector<RowPartial>> DeferredBackend::Finish() {
  if (steps_.empty()) {
    Misuse("Finish of a step that is not started");
    absl::MutexLock lock(&mu_);
    return failure_;
  }
  if (steps_.size() == 1 && open_) Seal();
  const std::unique_ptr<Step> step = std::move(steps_.front());
  steps_.pop_front();
  const std::uint64_t number = last_step_ - steps_.size();
  if (finishes_left_->fetch_sub(1) <= 1) {
    Fail(number, absl::InternalError("the backend failed, as the test asked"));
  }
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&step->done));
  if (!failure_.ok() && failed_step_ <= number) return failure_;
  return std::move(step->partials);
}

void DeferredBackend::Embed(EmbeddingHandle table, BufferHandle out) {
  Enqueue("Embed", device_->Has(table) && device_->Has(out),
          [=, this] { return device_->Embed(table, out); });
}

void DeferredBackend::ReceiveResidual(BufferHandle x) {
  Enqueue("ReceiveResidual", device_->Has(x), [=, this] { return device_->ReceiveResidual(x); });
}

void DeferredBackend::SendResidual(BufferHandle x) {
  Enqueue("SendResidual", device_->Has(x), [=, this] { return device_->SendResidual(x); });
}

void DeferredBackend::NormInPlace(BufferHandle x, const NormOp& norm) {
  Enqueue("NormInPlace", device_->Has(x) && device_->Has(norm),
          [=, this] { return device_->NormInPlace(x, norm); });
}

void DeferredBackend::Norm(BufferHandle x, const NormOp& norm, MatrixHandle next,
                           BufferHandle out) {
  Enqueue("Norm", device_->Has(x) && device_->Has(norm) && device_->Has(next) && device_->Has(out),
          [=, this] { return device_->NormFor(x, norm, next, out); });
}

void DeferredBackend::Prepare(BufferHandle x, MatrixHandle next, BufferHandle out) {
  Enqueue("Prepare", device_->Has(x) && device_->Has(next) && device_->Has(out),
          [=, this] { return device_->NormFor(x, std::nullopt, next, out); });
}

void DeferredBackend::Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out) {
  Enqueue("Multiply", device_->Has(x) && device_->Has(matrix) && device_->Has(out),
          [=, this] { return device_->Multiply(x, matrix, out); });
}

void DeferredBackend::GateUp(BufferHandle x, MatrixHandle gate_up, const worker::FfnOp& ffn,
                             BufferHandle out) {
  Enqueue("GateUp", device_->Has(x) && device_->Has(gate_up) && device_->Has(out),
          [=, this] { return device_->GateUp(x, gate_up, ffn, out); });
}

void DeferredBackend::AddProjection(BufferHandle x, ProjectionHandle projection,
                                    BufferHandle residual) {
  Enqueue("AddProjection", device_->Has(x) && device_->Has(projection) && device_->Has(residual),
          [=, this] { return device_->RunProjection(x, projection, true, residual); });
}

void DeferredBackend::Project(BufferHandle x, ProjectionHandle projection, BufferHandle out) {
  Enqueue("Project", device_->Has(x) && device_->Has(projection) && device_->Has(out),
          [=, this] { return device_->RunProjection(x, projection, false, out); });
}

void DeferredBackend::RouteRows(BufferHandle x, const std::optional<NormOp>& norm,
                                ExpertsHandle experts, BufferHandle out) {
  Enqueue("RouteRows",
          device_->Has(x) && (!norm.has_value() || device_->Has(*norm)) && device_->Has(experts) &&
              device_->Has(out),
          [=, this] { return device_->RouteRows(x, norm, experts, out); });
}

void DeferredBackend::GateUpExperts(BufferHandle x, ExpertsHandle experts, const worker::FfnOp& ffn,
                                    BufferHandle out) {
  Enqueue("GateUpExperts", device_->Has(x) && device_->Has(experts) && device_->Has(out),
          [=, this] { return device_->GateUpExperts(x, experts, ffn, out); });
}

void DeferredBackend::AddMixture(BufferHandle x, ExpertsHandle experts, BufferHandle residual) {
  Enqueue("AddMixture", device_->Has(x) && device_->Has(experts) && device_->Has(residual),
          [=, this] { return device_->RunMixture(x, experts, true, residual); });
}

void DeferredBackend::Mix(BufferHandle x, ExpertsHandle experts, BufferHandle out) {
  Enqueue("Mix", device_->Has(x) && device_->Has(experts) && device_->Has(out),
          [=, this] { return device_->RunMixture(x, experts, false, out); });
}

void DeferredBackend::ScaleShared(ExpertsHandle experts, BufferHandle x) {
  Enqueue("ScaleShared", device_->Has(experts) && device_->Has(x),
          [=, this] { return device_->ScaleShared(experts, x); });
}

void DeferredBackend::AddScaled(BufferHandle x, float factor, BufferHandle residual) {
  Enqueue("AddScaled", device_->Has(x) && device_->Has(residual),
          [=, this] { return device_->AddScaled(x, factor, residual); });
}

void DeferredBackend::Absorb(const worker::LatentOp& op, BufferHandle queries, BufferHandle latent,
                             BufferHandle qkv) {
  Enqueue("Absorb",
          device_->Has(op.keys) && device_->Has(op.norm) && device_->Has(queries) &&
              device_->Has(latent) && device_->Has(qkv),
          [=, this] { return device_->Absorb(op, queries, latent, qkv); });
}

void DeferredBackend::MultiplyHeads(BufferHandle x, HeadMatricesHandle matrices,
                                    const std::vector<std::int32_t>& places, BufferHandle out) {
  Enqueue("MultiplyHeads", device_->Has(x) && device_->Has(matrices) && device_->Has(out),
          [=, this] { return device_->MultiplyHeads(x, matrices, places, out); });
}

void DeferredBackend::RopeAndStore(const AttentionOp& attention, BufferHandle qkv) {
  Enqueue("RopeAndStore", device_->Has(attention) && device_->Has(qkv),
          [=, this] { return device_->RopeAndStore(attention, qkv); });
}

void DeferredBackend::Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out) {
  Enqueue("Attend", device_->Has(attention) && device_->Has(qkv) && device_->Has(out),
          [=, this] { return device_->Attend(attention, qkv, out); });
}

void DeferredBackend::Head(BufferHandle x, const NormOp& norm, HeadHandle head) {
  Enqueue("Head", device_->Has(x) && device_->Has(norm) && device_->Has(head),
          [=, this] { return device_->Head(x, norm, head); });
}

// ---- What is added before the first step.

absl::Status DeferredBackend::Check(const model::ModelSpec& spec) const {
  return kernels::CheckKvDims(worker::KvDimsOf(spec.attention()));
}

bool DeferredBackend::MayAdd(std::string_view what) {
  if (last_step_ == 0) return true;
  Misuse(absl::StrCat(std::string(what), " after the first step"));
  return false;
}

BufferHandle DeferredBackend::AddBuffer(std::int64_t width) {
  return MayAdd("AddBuffer") ? device_->AddBuffer(width) : BufferHandle();
}

VectorHandle DeferredBackend::AddVector(std::vector<float> values) {
  return MayAdd("AddVector") ? device_->AddVector(std::move(values)) : VectorHandle();
}

RopeHandle DeferredBackend::AddRope(const model::RopeSpec& rope) {
  return MayAdd("AddRope") ? device_->AddRope(rope) : RopeHandle();
}

EmbeddingHandle DeferredBackend::AddEmbedding(const worker::EmbeddingSource& source) {
  return MayAdd("AddEmbedding") ? device_->AddEmbedding(source) : EmbeddingHandle();
}

absl::StatusOr<MatrixHandle> DeferredBackend::AddMatrix(std::vector<worker::MatrixPart> parts,
                                                        std::vector<float> bias) {
  if (!MayAdd("AddMatrix")) return MatrixHandle();
  return device_->AddMatrix(std::move(parts), std::move(bias));
}

absl::StatusOr<HeadMatricesHandle> DeferredBackend::AddHeadMatrices(
    std::vector<worker::MatrixPart> parts) {
  if (!MayAdd("AddHeadMatrices")) return HeadMatricesHandle();
  return device_->AddHeadMatrices(std::move(parts));
}

absl::StatusOr<ProjectionHandle> DeferredBackend::AddProjection(
    const worker::ProjectionSource& source) {
  if (!MayAdd("AddProjection")) return ProjectionHandle();
  return device_->AddProjection(source);
}

absl::StatusOr<ExpertsHandle> DeferredBackend::AddExperts(const worker::ExpertsSource& source) {
  if (!MayAdd("AddExperts")) return ExpertsHandle();
  return device_->AddExperts(source);
}

absl::StatusOr<HeadHandle> DeferredBackend::AddHead(const worker::HeadSource& source) {
  if (!MayAdd("AddHead")) return HeadHandle();
  return device_->AddHead(source);
}

absl::Status DeferredBackend::Load() { return MayAdd("Load") ? device_->Load() : absl::OkStatus(); }

// ---- KV memory and tiers.

worker::BlockChoice DeferredBackend::DefaultBlockCount(const worker::KvShape&,
                                                       const worker::BlockNeeds& needs) const {
  constexpr std::uint64_t kBlocks = 4096;
  return {.count = static_cast<std::uint32_t>(std::max(kBlocks, needs.one_sequence) + 1),
          .reason = "what a test takes"};
}

absl::Status DeferredBackend::CreateKv(const worker::KvShape& shape, std::uint32_t blocks,
                                       const worker::TierOptions& options) {
  if (!MayAdd("CreateKv")) return absl::OkStatus();
  std::vector<KvTier> tiers;
  if (options.host_blocks > 0) {
    if (absl::Status s = CheckMemory(shape, options.host_blocks); !s.ok()) return s;
    tiers.push_back({.kind = KvTier::Kind::kHost,
                     .block_count = options.host_blocks,
                     .out_ns_per_block = 2'000,
                     .in_ns_per_block = 1'000});
  }
  if (options.disk_blocks > 0) {
    const std::string directory = options.disk_directory.empty() ? "/tmp" : options.disk_directory;
    if (access(directory.c_str(), W_OK | X_OK) != 0) {
      return absl::UnavailableError(
          absl::StrCat("no file for KV blocks can be made in '", directory, "'"));
    }
    if (absl::Status s = CheckMemory(shape, options.disk_blocks); !s.ok()) return s;
    tiers.push_back({.kind = KvTier::Kind::kDisk,
                     .block_count = options.disk_blocks,
                     .out_ns_per_block = 20'000,
                     .in_ns_per_block = 10'000});
  }
  if (absl::Status s = device_->CreateKv(shape, blocks, tiers.size()); !s.ok()) return s;
  tiers_ = std::move(tiers);
  return absl::OkStatus();
}

void DeferredBackend::CountDown() {
  for (PendingCopy& pending : copies_) {
    if (pending.calls_left > 0) --pending.calls_left;
  }
}

absl::StatusOr<std::vector<std::uint64_t>> DeferredBackend::TakeCopiesDone(bool wait) {
  absl::MutexLock lock(&mu_);
  CountDown();
  if (wait) {
    if (copies_done_.empty() && !copies_.empty()) copies_.front().calls_left = 0;
    mu_.Await(absl::Condition(this, &DeferredBackend::HasNews));
  }
  std::sort(copies_done_.begin(), copies_done_.end());
  return std::exchange(copies_done_, {});
}

void DeferredBackend::ForgetCopies() {
  absl::MutexLock lock(&mu_);
  copies_.clear();
  mu_.Await(absl::Condition(this, &DeferredBackend::NoCopyRuns));
  copies_done_.clear();
}

// ---- The host's side.

void DeferredBackend::OnHost(std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) {
  std::atomic<std::int64_t> next{0};
  const auto run = [&] {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) fn(i);
  };
  if (count <= 0) return;
  std::thread first(run), second(run);
  first.join();
  second.join();
}

std::int64_t DeferredBackend::weight_bytes() const { return device_->weight_bytes(); }
std::int64_t DeferredBackend::buffer_bytes() const { return device_->buffer_bytes(); }

// ---- The maker.

int DeferredControl::made() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(made_.size());
}

void DeferredControl::FailAfter(std::int64_t n) {
  absl::MutexLock lock(&mu_);
  made_.back()->store(n);
}

void DeferredControl::Add(FinishesLeft finishes_left) {
  absl::MutexLock lock(&mu_);
  made_.push_back(std::move(finishes_left));
}

worker::BackendMaker MakeDeferredBackends(std::uint64_t seed, std::uint32_t max_started,
                                          std::shared_ptr<DeferredControl> control) {
  if (control == nullptr) control = std::make_shared<DeferredControl>();
  return [=](const worker::BackendOptions& options) {
    const auto number = static_cast<std::uint64_t>(control->made());
    auto backend = std::make_unique<DeferredBackend>(
        options, DeferredOptions{.seed = MixBits(seed + number) + options.tensor_rank,
                                 .max_started = max_started});
    control->Add(backend->finishes_left());
    return backend;
  };
}

}  // namespace flotilla::testing
