#include "tests/gpu_check/ranks.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <thread>

#include "absl/time/time.h"
#include "kernels/row_scores.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/compute/cuda/nccl_exchange.h"

namespace flotilla::kernels::cuda {
namespace {

using worker::BackendMaker;
using worker::ParallelShape;
using worker::RowPartial;
using worker::RowRequest;
using worker::StepInputs;

// Over NCCL, sums of more rows are made in slices, so that plans have sums of both sorts.
constexpr int64_t kWholeRows = 10;
// The stage has a minute.
constexpr absl::Duration kNcclCallLimit = absl::Seconds(30);

int Cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

class Words {
 public:
  void Add(float value) { words_.push_back(std::bit_cast<uint32_t>(value)); }
  void AddWord(uint32_t word) { words_.push_back(word); }
  void Add(const absl::Status& status) {
    words_.push_back(~static_cast<uint32_t>(status.raw_code()));
  }
  void Add(const TokenScore& token) {
    AddWord(static_cast<uint32_t>(token.token));
    Add(token.score);
  }
  void Add(const std::vector<TopLogprob>& top) {
    for (const TopLogprob& each : top) {
      AddWord(static_cast<uint32_t>(each.token));
      Add(each.logprob);
    }
  }
  std::vector<uint32_t> Take() { return std::move(words_); }

 private:
  std::vector<uint32_t> words_;
};

std::vector<uint32_t> WordsOf(const RowPartial& partial) {
  Words words;
  for (const SoftmaxStats& stats : partial.stats) {
    words.Add(stats.max);
    words.Add(stats.sum);
  }
  words.Add(partial.winner);
  words.Add(partial.logit);
  for (const TokenScore& token : partial.best) words.Add(token);
  return words.Take();
}

std::vector<uint32_t> Conclude(const RowPartial& row, const RowRequest& request,
                               const worker::VocabularyShards& vocabulary) {
  Words words;
  if (request.pick == RowRequest::Pick::kNone) {
    const auto top = ConcludeCandidates(row, vocabulary, std::max(0, request.top));
    words.Add(top.status());
    if (top.ok()) words.Add(*top);
  } else {
    const auto token = ConcludeToken(row, vocabulary, request.top);
    words.Add(token.status());
    if (token.ok()) {
      words.AddWord(static_cast<uint32_t>(token->token));
      words.Add(token->logprob);
      words.Add(token->top);
    }
  }
  return words.Take();
}

// Joins what the ranks of the last stage gave.
absl::StatusOr<Answers> Join(const Setup& setup, const Plan& plan, ParallelShape shape,
                             absl::Span<const worker::ModelShard> shards,
                             std::vector<RankOutcome> outcomes) {
  const worker::VocabularyShards vocabulary =
      worker::ShardVocabulary(setup.model.spec, shards, shape);
  Answers answers;
  for (size_t step = 0; step < plan.size(); ++step) {
    for (size_t i = 0; i < plan[step].asked.size(); ++i) {
      auto& [asked, answer] = answers.emplace_back();
      asked = plan[step].asked[i];
      std::optional<RowPartial> joined;
      for (uint32_t rank = shape.ranks() - shape.tensor; rank < shape.ranks(); ++rank) {
        StepOutcome& outcome = outcomes[rank][step];
        if (outcome.partials.size() != plan[step].asked.size()) {
          return absl::InternalError("a step answered another number of requests than it had");
        }
        if (asked.full) {
          const auto row = outcome.rows.find(static_cast<int>(i));
          if (row == outcome.rows.end()) continue;
          Words words;
          for (const float logit : row->second) {
            if (std::isnan(logit)) return absl::InternalError("a logit is no number");
            words.Add(logit);
          }
          answer.row = words.Take();
        } else if (!joined.has_value()) {
          joined = std::move(outcome.partials[i]);
          if (shape.tensor == 1) answer.partial = WordsOf(*joined);
        } else {
          worker::Append(std::move(outcome.partials[i]), *joined);
        }
      }
      if (joined.has_value()) {
        answer.conclusion = Conclude(*joined, plan[step].inputs.requests[i], vocabulary);
      } else if (answer.row.empty()) {
        return absl::InternalError("a step gave no full row for a request that wants one");
      }
    }
  }
  return answers;
}

// The NCCL of one group, whose ranks join with `id`.
struct OpenedNccl {
  std::shared_ptr<const worker::NcclApi> api;
  worker::NcclApi::UniqueId id = {};
  std::shared_ptr<std::atomic<int64_t>> sends;  // so far, by all ranks
};

absl::StatusOr<OpenedNccl> OpenFor(const NcclGpus& gpus) {
  const auto opened = gpus.open_nccl();
  if (!opened.ok()) return opened.status();
  OpenedNccl nccl{.sends = std::make_shared<std::atomic<int64_t>>(0)};
  const auto api = std::make_shared<worker::NcclApi>(**opened);
  api->send = [send = (*opened)->send, sends = nccl.sends](auto... args) {
    ++*sends;
    return send(args...);
  };
  nccl.api = api;
  if (api->get_unique_id(&nccl.id) != worker::NcclApi::kSuccess) {
    return absl::InternalError("NCCL makes no id of a communicator");
  }
  return nccl;
}

// Loads a rank on the GPU of its number, and joins it to the others.
absl::Status LoadOverNccl(const Setup& setup, const NcclGpus& gpus, const OpenedNccl& nccl,
                          ParallelShape shape, absl::Span<const worker::ModelShard> shards,
                          worker::SharedMemoryCommunicator& ranks, Rank& rank) {
  auto device = gpus.open_device(static_cast<int>(ranks.rank()));
  if (!device.ok()) return device.status();
  worker::CudaBackend* backend = nullptr;
  absl::Status status = rank.Load(shards, &ranks, [&](const worker::BackendOptions& options) {
    auto made = std::make_unique<worker::CudaBackend>(options, *std::move(device));
    backend = made.get();
    return made;
  });
  if (!status.ok()) return status;
  auto exchange = std::make_unique<worker::NcclExchange>(
      worker::NcclExchangeOptions{.api = nccl.api,
                                  .shape = shape,
                                  .rank = ranks.rank(),
                                  .ended = [&ranks] { return ranks.aborted(); },
                                  .whole_floats = kWholeRows * setup.model.spec.hidden,
                                  .call_limit = kNcclCallLimit},
      backend->device());
  worker::NcclExchange& joined = *exchange;
  status = backend->UseExchange(std::move(exchange));
  return status.ok() ? joined.Join(nccl.id) : status;
}

}  // namespace

void Rows::TakeRow(int request, absl::Span<const float> logits) {
  const absl::MutexLock lock(&mu_);
  rows_.try_emplace(request, logits.begin(), logits.end());
}

std::map<int, std::vector<float>> Rows::Take() {
  const absl::MutexLock lock(&mu_);
  return std::move(rows_);
}

absl::Status Rank::Load(absl::Span<const worker::ModelShard> shards, worker::Exchange* exchange,
                        const BackendMaker& make) {
  const model::ModelSpec& spec = setup_.model.spec;
  backend_ = make({.recipe = setup_.model_case.recipe,
                   .isa = DetectIsas().back(),
                   .threads = std::max(1, Cores() / static_cast<int>(shape_.ranks())),
                   .max_rows = setup_.max_rows,
                   .max_positions = setup_.model_case.tokens,
                   .max_sequences = kSequences,
                   .clock = &clock_,
                   .exchange = exchange,
                   .tensor_ranks = shape_.tensor,
                   .tensor_rank = rank_ % shape_.tensor});
  if (backend_ == nullptr) return absl::UnavailableError("the GPU cannot be used");
  auto decoder = worker::Decoder::Load(*setup_.model.file, spec, shards, shape_, rank_, *backend_);
  if (!decoder.ok()) return decoder.status();
  decoder_.emplace(*std::move(decoder));
  return backend_->CreateKv(worker::KvShapeOf(spec, setup_.model_case.format, shards[rank_].layers,
                                              worker::OwnKvHeads(spec, shards[rank_]).size()),
                            setup_.blocks, setup_.tiers);
}

absl::StatusOr<RankOutcome> Rank::Run(const Plan& plan, size_t lag) {
  RankOutcome outcome;
  const bool last_stage = rank_ / shape_.tensor + 1 == shape_.pipeline;
  int copies_done = 0;
  for (const PlannedStep& step : plan) {
    if (absl::Status s = AwaitCopies(step.copies_done, copies_done); !s.ok()) return s;
    StepInputs inputs = step.inputs;
    if (!last_stage) inputs.requests.clear();
    receivers_.emplace_back();
    decoder_->Start(std::move(inputs), &receivers_.back());
    if (absl::Status s = FinishAllBut(lag, outcome); !s.ok()) return s;
  }
  if (absl::Status s = FinishAllBut(0, outcome); !s.ok()) return s;
  return outcome;
}

absl::Status Rank::AwaitCopies(int count, int& done) {
  while (done < count) {
    const auto ended = backend_->TakeCopiesDone(/*wait=*/true);
    if (!ended.ok()) return ended.status();
    if (ended->empty()) return absl::InternalError("a background copy has never ended");
    for (const uint64_t id : *ended) {
      if (id != static_cast<uint64_t>(done++)) {
        return absl::InternalError("background copies do not end in their order");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Rank::FinishAllBut(size_t count, RankOutcome& outcome) {
  while (receivers_.size() > count) {
    auto partials = backend_->Finish();
    if (!partials.ok()) return partials.status();
    outcome.push_back({*std::move(partials), receivers_.front().Take()});
    receivers_.pop_front();
  }
  return absl::OkStatus();
}

Machine::Machine(const Setup& setup, const BackendMaker& make)
    : setup_(setup),
      shard_(worker::WholeModel(setup.model.spec)),
      rank_(setup, {1, 1}, 0),
      loaded_(rank_.Load({&shard_, 1}, nullptr, make)) {}

absl::StatusOr<Answers> Machine::Run(const Plan& plan, size_t lag) {
  if (!loaded_.ok()) return loaded_;
  auto outcome = rank_.Run(plan, lag);
  if (!outcome.ok()) return outcome.status();
  return Join(setup_, plan, {1, 1}, {&shard_, 1}, {*std::move(outcome)});
}

absl::StatusOr<Answers> RunGroup(const Setup& setup, ParallelShape shape, const Plan& plan,
                                 const std::vector<BackendMaker>& makers, const NcclGpus* gpus) {
  const auto shards =
      worker::ShardModel(*setup.model.file, setup.model.spec, shape, worker::ShardBalance::kStep);
  if (!shards.ok()) return shards.status();
  const worker::CommLimits limits =
      worker::ExchangeLimits(setup.model.spec, *shards, shape, setup.max_rows);
  auto created =
      worker::SharedRegion::Create(worker::SharedMemoryCommunicator::RegionBytes(shape, limits));
  if (!created.ok()) return created.status();
  const auto region = std::make_shared<worker::SharedRegion>(*std::move(created));
  absl::StatusOr<OpenedNccl> nccl = OpenedNccl();
  if (gpus != nullptr) nccl = OpenFor(*gpus);
  if (!nccl.ok()) return nccl.status();
  std::vector<RankOutcome> outcomes(shape.ranks());
  std::vector<absl::Status> statuses(shape.ranks());
  std::latch ended(shape.ranks());
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < shape.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      worker::SharedMemoryCommunicator exchange(region, shape, rank, limits, /*spin=*/false);
      Rank one(setup, shape, rank);
      statuses[rank] = gpus == nullptr
                           ? one.Load(*shards, &exchange, makers[rank % makers.size()])
                           : LoadOverNccl(setup, *gpus, *nccl, shape, *shards, exchange, one);
      if (statuses[rank].ok()) {
        auto outcome = one.Run(plan, shape.pipeline);
        statuses[rank] = outcome.status();
        if (outcome.ok()) outcomes[rank] = *std::move(outcome);
      }
      if (!statuses[rank].ok()) exchange.Abort();
      // A GPU may still read from the memory of another one.
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // UNAVAILABLE says of most ranks only that another one has failed.
  for (const bool any : {false, true}) {
    for (const absl::Status& status : statuses) {
      if (!status.ok() && (any || !absl::IsUnavailable(status))) return status;
    }
  }
  if (gpus != nullptr && *nccl->sends == 0) {
    return absl::InternalError("the ranks sent nothing over NCCL");
  }
  return Join(setup, plan, shape, *shards, std::move(outcomes));
}

}  // namespace flotilla::kernels::cuda
