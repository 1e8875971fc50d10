#include "tests/gpu_check/models.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "common/types/text.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "model/spec.h"
#include "tests/gpu_check/gpu.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/random.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/compute/backend.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/cuda/cuda_backend.h"
#include "worker/compute/cuda/nccl_api.h"
#include "worker/compute/cuda/nccl_exchange.h"
#include "worker/compute/decoder/decoder.h"
#include "worker/compute/model_shard.h"
#include "worker/compute/row_partials.h"
#include "worker/device/simulated_device.h"

namespace flotilla::kernels::cuda {
namespace {

using model::GgmlType;
using testing::Random;
using worker::BackendMaker;
using worker::ParallelShape;
using worker::Recipe;
using worker::RowPartial;
using worker::RowRequest;
using worker::StepInputs;

constexpr int kSequences = 8;
constexpr int kBlockTokens = kKvRecordTokens;
constexpr int kLongestPart = 40;  // of a sequence in a step of a batch
// Positions of a sequence whose logits are compared, where not all are.
constexpr int kSomePositions = 12, kLastPositions = 3;
// Of a long sequence so many chunks are short; what is before them is one chunk.
constexpr int kShortChunks = 24;
constexpr int kSwaps = 2;  // of a sequence
constexpr char kDiskDirectory[] = "/tmp";
constexpr int kSimulatedGpus = 4;
// Over NCCL, sums of more rows are made in slices, so that plans have sums of both sorts.
constexpr int64_t kWholeRows = 10;
// The stage has a minute.
constexpr absl::Duration kNcclCallLimit = absl::Seconds(30);

struct ModelCase {
  std::string name;
  testing::TinyModelOptions options;
  Recipe recipe = Recipe::kAccurate;
  KvFormat format = KvFormat::kBf16;
  int tokens = 0;            // of the first sequence
  int neighbour_tokens = 0;  // the most of another
  bool large = false;        // logits of some positions are compared, not of all
};

struct Model {
  explicit Model(const testing::TinyModelOptions& options) : bytes(testing::TinyGguf(options)) {
    file = model::ParseCheckpoint(bytes).value();
    spec = model::LoadSpec(*file).value();
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Checkpoint> file;
  model::ModelSpec spec;
};

// Whether an unnamed file can be made for the disk tier.
bool DiskTierCanBeMade() {
  const int file = open(kDiskDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
  return file >= 0;
}

int Cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// ---- What is computed: sequences, and steps that compute them.

// What is asked about the rows of a plan.
enum class Wants : uint8_t { kFull, kReduced, kMixed };

// One row that something is asked about.
struct Asked {
  int sequence = 0, position = 0;
  bool full = false;

  auto operator<=>(const Asked&) const = default;
};

struct PlannedStep {
  int copies_done = 0;  // so many background copies of the plan have ended before the step starts
  StepInputs inputs;
  std::vector<Asked> asked;  // by request
};
using Plan = std::vector<PlannedStep>;

// The sequences of a model, and the requests about their rows, which are the same in every plan.
class Texts {
 public:
  Texts(const ModelCase& c, const model::ModelSpec& spec, uint64_t seed)
      : seed_(seed), vocabulary_(spec.vocab), tokens_(kSequences), positions_(kSequences) {
    Random random(seed);
    for (int s = 0; s < kSequences; ++s) {
      tokens_[s].resize(s == 0 ? c.tokens : random.Int(1, c.neighbour_tokens));
      for (TokenId& token : tokens_[s]) token = Token(random);
      const int length = Length(s);
      for (int p = 0; p < length; ++p) {
        if (!c.large || p + kLastPositions >= length) positions_[s].insert(p);
      }
      // The first rows behind the ends of segments of keys.
      for (int p = kSegmentKeys; c.large && p < length; p += kSegmentKeys) positions_[s].insert(p);
      for (int i = static_cast<int>(positions_[s].size()); s == 0 && i < kSomePositions; ++i) {
        positions_[s].insert(random.Int(0, length - 1));
      }
    }
  }

  int Length(int sequence) const { return static_cast<int>(tokens_[sequence].size()); }
  absl::Span<const TokenId> Tokens(int sequence, int begin, int count) const {
    return absl::MakeConstSpan(tokens_[sequence]).subspan(begin, count);
  }

  // Adds the request about a position, whose row is `row`, if there is one.
  void Ask(int sequence, int position, int row, Wants wants, PlannedStep& step) const {
    if (!positions_[sequence].contains(position)) return;
    const uint64_t place = static_cast<uint64_t>(sequence) << 32 | static_cast<uint64_t>(position);
    Random random(testing::MixBits(seed_) ^ place);
    const bool mixed_full = random.OneIn(2);
    RowRequest request{.row = row};
    request.full_row = wants == Wants::kFull || (wants == Wants::kMixed && mixed_full);
    if (!request.full_row) Reduce(random, request, step.inputs);
    step.inputs.requests.push_back(request);
    step.asked.push_back({sequence, position, request.full_row});
  }

 private:
  static constexpr int kSegmentKeys = 256;

  TokenId Token(Random& random) const { return static_cast<TokenId>(random.Below(vocabulary_)); }

  void Reduce(Random& random, RowRequest& request, StepInputs& inputs) const {
    request.top = random.Int(-1, 20);
    request.pick = static_cast<RowRequest::Pick>(random.Below(4));
    request.token = Token(random);
    request.inverse_temperature = 0.7f;
    request.noise = MakeNoiseKey(seed_, random.Next());
    request.edits_begin = static_cast<int64_t>(inputs.edits.size());
    for (int edits = random.OneIn(2) ? random.Int(1, 5) : 0; edits > 0; --edits) {
      inputs.edits.push_back({.token = Token(random),
                              .kind = static_cast<worker::LogitEdit::Kind>(random.Below(3)),
                              .value = 3 * random.Unit()});
    }
    request.edits_end = static_cast<int64_t>(inputs.edits.size());
  }

  const uint64_t seed_;
  const uint32_t vocabulary_;
  std::vector<std::vector<TokenId>> tokens_;
  std::vector<std::set<int>> positions_;  // with a request
};

// Writes plans. Each sequence has blocks of two places: those that it begins in, and those that it
// goes on in after it lost the first. All blocks are NaN before the first step. Block i of a
// sequence has a slot of its own in the tiers, which are numbered 0 to tiers - 1.
class Planner {
 public:
  Planner(const Texts& texts, Wants wants, int tiers = 0)
      : texts_(texts), wants_(wants), tiers_(tiers) {
    for (int place = 0; place < 2; ++place) {
      for (int s = 0; s < kSequences; ++s) {
        std::vector<int32_t>& table = tables_[place][s];
        for (int i = 0; i < texts.Length(s); i += kBlockTokens) table.push_back(blocks_++);
        // So that position and block id never agree.
        std::reverse(table.begin(), table.end());
      }
    }
    for (uint32_t block = 0; block < blocks(); ++block) granted_.push_back(BlockId(block));
  }

  uint32_t blocks() const { return static_cast<uint32_t>(blocks_); }
  uint32_t slots() const { return blocks() / 2; }  // of each tier
  int Left(int sequence) const { return texts_.Length(sequence) - lengths_[sequence]; }

  void Begin() {
    PlannedStep& step = plan_.emplace_back();
    step.inputs.granted = std::exchange(granted_, {});
  }
  // Adds the next `count` tokens of a sequence to the step, or those that are left.
  void Add(int sequence, int count) {
    count = std::min(count, Left(sequence));
    if (count == 0) return;
    PlannedStep& step = plan_.back();
    const int row = step.inputs.rows(), first = lengths_[sequence];
    for (int i = 0; i < count; ++i) texts_.Ask(sequence, first + i, row + i, wants_, step);
    AddSequence(SequenceHandle(static_cast<uint32_t>(sequence)), first,
                texts_.Tokens(sequence, first, count), {tables_[places_[sequence]][sequence]},
                step.inputs);
    lengths_[sequence] += count;
  }
  // Computes `tokens` more tokens of a sequence alone, in chunks.
  void Run(int sequence, int chunk, int tokens) {
    for (int end = lengths_[sequence] + tokens; Left(sequence) > 0 && lengths_[sequence] < end;) {
      Begin();
      Add(sequence, std::min(chunk, end - lengths_[sequence]));
    }
  }
  // The sequences lose all blocks, and begin again in others.
  void Preempt() {
    for (int s = 0; s < kSequences; ++s) {
      Grant(tables_[places_[s]][s], granted_);
      places_[s] = 1 - places_[s];
      lengths_[s] = 0;
    }
  }
  // The step copies what a sequence has to the tiers. It rests until it is back.
  void SwapOut(int sequence) { Swap(sequence, BackgroundCopy::Kind::kOut); }
  // The step makes both places of a sequence NaN, and copies what it had into the other one. All
  // copies out have ended by then.
  void SwapIn(int sequence) {
    for (const auto& place : tables_) Grant(place[sequence], plan_.back().inputs.granted);
    places_[sequence] = 1 - places_[sequence];
    Swap(sequence, BackgroundCopy::Kind::kIn);
  }
  // The step starts when the copies of the steps before it have ended.
  void AwaitCopies() { plan_.back().copies_done = copies_; }

  Plan Take() { return std::move(plan_); }

 private:
  static void Grant(const std::vector<int32_t>& table, std::vector<BlockId>& granted) {
    for (const int32_t block : table) granted.push_back(BlockId(static_cast<uint32_t>(block)));
  }
  void Swap(int sequence, BackgroundCopy::Kind kind) {
    std::vector<BackgroundCopy>& copies = plan_.back().inputs.background;
    const int blocks = (lengths_[sequence] + kBlockTokens - 1) / kBlockTokens;
    for (int tier = 0; tier < tiers_; ++tier) {
      BackgroundCopy copy{
          .id = static_cast<uint64_t>(copies_), .kind = kind, .tier = static_cast<uint32_t>(tier)};
      for (int i = 0; i < blocks; ++i) {
        const int32_t slot = tables_[0][sequence][i] - 1;
        if (slot % tiers_ != tier) continue;
        const auto block = static_cast<uint32_t>(tables_[places_[sequence]][sequence][i]);
        copy.moves.push_back({.block = BlockId(block), .slot = static_cast<uint32_t>(slot)});
      }
      if (copy.moves.empty()) continue;
      copies.push_back(std::move(copy));
      ++copies_;
    }
  }

  const Texts& texts_;
  const Wants wants_;
  const int tiers_;
  int32_t blocks_ = 1;  // block 0 belongs to nobody
  std::vector<int32_t> tables_[2][kSequences];
  int places_[kSequences] = {};
  int lengths_[kSequences] = {};
  int copies_ = 0;  // in the background, so far
  std::vector<BlockId> granted_;
  Plan plan_;
};

// Every sequence by itself, in one chunk each.
Plan EachAlone(const Texts& texts, Wants wants) {
  Planner planner(texts, wants);
  for (int s = 0; s < kSequences; ++s) planner.Run(s, texts.Length(s), texts.Length(s));
  return planner.Take();
}

// The first sequence in chunks. Of a large model only its end is.
Plan Chunks(const Texts& texts, Wants wants, int chunk, bool large) {
  Planner planner(texts, wants);
  const int length = texts.Length(0);
  const int whole = large ? std::max(0, length - kShortChunks * chunk) : 0;
  planner.Run(0, length, whole);
  planner.Run(0, chunk, length);
  return planner.Take();
}

// Adds steps until the first sequence ends, with a seeded number of tokens of each sequence.
void AddBatches(Random& random, Planner& planner) {
  while (planner.Left(0) > 0) {
    planner.Begin();
    for (int s = 0; s < kSequences; ++s) {
      if (s > 0 && random.OneIn(4)) continue;
      planner.Add(s, random.OneIn(2) ? 1 : random.Int(2, kLongestPart));
    }
  }
}
Plan Batch(const Texts& texts, Wants wants, uint64_t seed) {
  Random random(seed);
  Planner planner(texts, wants);
  // A long sequence would take many steps, so that all but its end is one chunk.
  if (const int most = 300; planner.Left(0) > most) {
    planner.Begin();
    planner.Add(0, planner.Left(0) - most);
  }
  AddBatches(random, planner);
  return planner.Take();
}

Plan Preempted(const Texts& texts, Wants wants, uint64_t seed) {
  Random random(seed);
  Planner planner(texts, wants);
  const int half = texts.Length(0) / 2;
  planner.Run(0, 33, half);
  planner.Preempt();
  planner.Run(0, half + 1, half + 1);
  AddBatches(random, planner);
  return planner.Take();
}

// The first sequence and some others go to the tiers and come back, and the rest goes on meanwhile.
Plan Swapped(const Texts& texts, Wants wants, uint64_t seed, int tiers) {
  Random random(seed);
  Planner planner(texts, wants, tiers);
  for (int swap = 0; swap < kSwaps; ++swap) {
    const int part = texts.Length(0) / (kSwaps + 1);
    planner.Run(0, part, part);
    bool away[kSequences] = {true};
    for (int s = 1; s < kSequences; ++s) away[s] = random.OneIn(2);
    planner.Begin();
    for (int s = 1; s < kSequences; ++s) planner.Add(s, random.Int(1, 20));
    const auto go_on = [&](bool those_away) {
      for (int s = 0; s < kSequences; ++s) {
        if (away[s] == those_away) planner.Add(s, 1);
      }
    };
    const auto swap_all = [&](void (Planner::*copy)(int)) {
      for (int s = 0; s < kSequences; ++s) {
        if (away[s]) (planner.*copy)(s);
      }
    };
    planner.Begin();
    swap_all(&Planner::SwapOut);
    go_on(false);
    planner.Begin();
    go_on(false);
    planner.Begin();
    planner.AwaitCopies();
    swap_all(&Planner::SwapIn);
    go_on(false);
    planner.Begin();
    go_on(false);
    planner.Begin();
    planner.AwaitCopies();
    go_on(true);
  }
  AddBatches(random, planner);
  return planner.Take();
}

// ---- What steps give.

// Takes the full rows of one step.
class Rows final : public worker::RowReceiver {
 public:
  void TakeRow(int request, absl::Span<const float> logits) override {
    const absl::MutexLock lock(&mu_);
    rows_.try_emplace(request, logits.begin(), logits.end());
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

struct StepOutcome {
  std::vector<RowPartial> partials;  // by request
  std::map<int, std::vector<float>> rows;
};
using RankOutcome = std::vector<StepOutcome>;  // by step

// The answer to one request, as bits.
struct Answer {
  std::vector<uint32_t> row;         // the logits
  std::vector<uint32_t> partial;     // of a rank that has the whole vocabulary
  std::vector<uint32_t> conclusion;  // of all ranks: token, log-probabilities
};

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

// ---- Ranks that compute.

struct Setup {
  const ModelCase& model_case;
  const Model& model;
  int max_rows = 0;
  uint32_t blocks = 0;
  worker::TierOptions tiers = {};

  int tier_count() const { return (tiers.host_blocks > 0) + (tiers.disk_blocks > 0); }
};

// One rank of a group. One thread uses it.
class Rank {
 public:
  Rank(const Setup& setup, ParallelShape shape, uint32_t rank)
      : setup_(setup), shape_(shape), rank_(rank) {}

  absl::Status Load(absl::Span<const worker::ModelShard> shards, worker::Exchange* exchange,
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
    auto decoder =
        worker::Decoder::Load(*setup_.model.file, spec, shards, shape_, rank_, *backend_);
    if (!decoder.ok()) return decoder.status();
    decoder_.emplace(*std::move(decoder));
    return backend_->CreateKv(
        worker::KvShapeOf(spec, setup_.model_case.format, shards[rank_].layers,
                          worker::OwnKvHeads(spec, shards[rank_]).size()),
        setup_.blocks, setup_.tiers);
  }

  int64_t weight_bytes() const { return backend_->weight_bytes(); }

  // Runs a plan. `lag` steps are not finished when the next starts.
  absl::StatusOr<RankOutcome> Run(const Plan& plan, size_t lag) {
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

 private:
  // Waits until so many copies have ended; `done` counts them.
  absl::Status AwaitCopies(int count, int& done) {
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

  absl::Status FinishAllBut(size_t count, RankOutcome& outcome) {
    while (receivers_.size() > count) {
      auto partials = backend_->Finish();
      if (!partials.ok()) return partials.status();
      outcome.push_back({*std::move(partials), receivers_.front().Take()});
      receivers_.pop_front();
    }
    return absl::OkStatus();
  }

  const Setup& setup_;
  const ParallelShape shape_;
  const uint32_t rank_;
  const SteadyClock clock_;
  std::deque<Rows> receivers_;  // of the steps that are not finished
  std::unique_ptr<worker::Backend> backend_;
  std::optional<worker::Decoder> decoder_;
};

using Answers = std::vector<std::pair<Asked, Answer>>;

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

// The only rank of a model.
class Machine {
 public:
  Machine(const Setup& setup, const BackendMaker& make)
      : setup_(setup),
        shard_(worker::WholeModel(setup.model.spec)),
        rank_(setup, {1, 1}, 0),
        loaded_(rank_.Load({&shard_, 1}, nullptr, make)) {}

  absl::StatusOr<Answers> Run(const Plan& plan, size_t lag) {
    if (!loaded_.ok()) return loaded_;
    auto outcome = rank_.Run(plan, lag);
    if (!outcome.ok()) return outcome.status();
    return Join(setup_, plan, {1, 1}, {&shard_, 1}, {*std::move(outcome)});
  }

 private:
  const Setup& setup_;
  const worker::ModelShard shard_;
  Rank rank_;
  const absl::Status loaded_;
};

// GPUs for ranks that have one each, and NCCL, over which these exchange.
struct NcclGpus {
  int count = 0;
  // Opens a GPU by its number. Any thread calls it.
  std::function<absl::StatusOr<std::unique_ptr<worker::Device>>(int)> open_device;
  // Opens NCCL for one group.
  std::function<absl::StatusOr<std::shared_ptr<const worker::NcclApi>>()> open_nccl;
};

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

// Runs a plan on a group of ranks, which are threads. They use the makers in turn; or, where there
// are `gpus`, one of these each.
absl::StatusOr<Answers> RunGroup(const Setup& setup, ParallelShape shape, const Plan& plan,
                                 const std::vector<BackendMaker>& makers,
                                 const NcclGpus* gpus = nullptr) {
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

// ---- The comparison.

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

// ---- The models.

std::string_view NameOf(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return "F32";
    case GgmlType::kF16:
      return "F16";
    case GgmlType::kBF16:
      return "BF16";
    case GgmlType::kQ4_0:
      return "Q4_0";
    case GgmlType::kQ4_1:
      return "Q4_1";
    default:
      return "Q8_0";
  }
}

ModelCase MakeCase(std::string_view shape, ModelCase c) {
  c.name = Cat(shape, ", ", NameOf(c.options.matrix_type), ", ", RecipeName(c.recipe), ", KV ",
               c.format == KvFormat::kF32 ? "fp32" : "bf16");
  return c;
}

ModelCase MakeTinyCase(ModelCase c) {
  const testing::TinyModelOptions& options = c.options;
  const std::string shape =
      Cat("tiny, ", options.head_norms ? "norms of q and k, " : "", options.heads, " heads of ",
          options.head_dim, " over ", options.kv_heads);
  return MakeCase(shape, std::move(c));
}

// Every type of weights with every recipe and both formats of K and V. The sizes of heads and of
// their groups go round, and so do norms of q and k.
std::vector<ModelCase> TinyModels(ModelTarget target, uint64_t seed) {
  constexpr GgmlType kTypes[] = {GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16,
                                 GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ8_0};
  constexpr GgmlType kEmbeddings[] = {GgmlType::kQ8_0, GgmlType::kF16, GgmlType::kF32,
                                      GgmlType::kBF16, GgmlType::kQ4_0};
  constexpr uint32_t kHeadDims[] = {32, 64, 128};
  const bool fibers = target == ModelTarget::kFibers;
  std::vector<ModelCase> cases;
  uint32_t number = 0;
  for (const GgmlType type : kTypes) {
    for (const Recipe recipe : {Recipe::kAccurate, Recipe::kFp32}) {
      for (const KvFormat format : {KvFormat::kBf16, KvFormat::kF32}) {
        const uint32_t n = number++;
        const uint32_t head_dim = kHeadDims[n % 3], group = 1 + n % 4;
        ModelCase c{.recipe = recipe, .format = format};
        c.options = {.hidden = fibers ? 64u : 128u,
                     .heads = 2 * group,
                     .kv_heads = 2,
                     .head_dim = head_dim,
                     .vocab = !fibers && n % 2 == 0 ? 2100u : 300u,
                     .head_norms = n % 5 == 3,
                     .tied_embedding = n % 3 == 0,
                     .matrix_type = type,
                     .embedding_type = kEmbeddings[n % std::size(kEmbeddings)],
                     .seed = seed + n};
        c.tokens = fibers ? 20 : n % 5 == 0 ? 300 : 90;
        c.neighbour_tokens = fibers ? 6 : 60;
        cases.push_back(MakeTinyCase(std::move(c)));
      }
    }
  }
  return cases;
}

// Q4_1; bf16 that is computed in fp32; and norms of q and k, with KV heads for three ranks.
std::vector<ModelCase> NcclModels(ModelTarget target, uint64_t seed) {
  std::vector<ModelCase> tiny = TinyModels(target, seed);
  ModelCase norms = tiny[13];
  norms.options.heads = 6;
  norms.options.kv_heads = 3;
  // NCCL has other ways for longer messages.
  if (target == ModelTarget::kGpu) norms.options.hidden = 1024;
  return {std::move(tiny[16]), std::move(tiny[10]), MakeTinyCase(std::move(norms))};
}

std::vector<ModelCase> LargeModels(ModelTarget target, uint64_t seed) {
  const bool whole = target == ModelTarget::kGpu;
  ModelCase smol{.tokens = whole ? 1100 : 300, .neighbour_tokens = 60, .large = true};
  smol.options = {.hidden = 576,
                  .layers = whole ? 30u : 2u,
                  .heads = 9,
                  .kv_heads = 3,
                  .head_dim = 64,
                  .ffn = 1536,
                  .vocab = whole ? 49152u : 4096u,
                  .context_length = 2048,
                  .matrix_type = GgmlType::kQ4_1,
                  .seed = seed};
  ModelCase llama{.tokens = whole ? 200 : 40, .neighbour_tokens = 40, .large = true};
  llama.options = {.hidden = whole ? 4096u : 512u,
                   .layers = whole ? 4u : 2u,
                   .heads = whole ? 32u : 8u,
                   .kv_heads = whole ? 8u : 2u,
                   .head_dim = 128,
                   .ffn = whole ? 14336u : 1792u,
                   .vocab = whole ? 16384u : 2048u,
                   .rope_base = 500000.0f,
                   .tied_embedding = false,
                   .matrix_type = GgmlType::kQ4_0,
                   .seed = seed + 1};
  ModelCase bf16 = llama;
  bf16.recipe = Recipe::kFp32;
  bf16.tokens = 100;
  bf16.options.layers = 2;
  bf16.options.matrix_type = bf16.options.embedding_type = GgmlType::kBF16;
  std::vector<ModelCase> cases;
  cases.push_back(MakeCase("SmolLM2's shape", smol));
  cases.push_back(MakeCase("layers of Llama 3 8B's shape", llama));
  cases.push_back(MakeCase("layers of Llama 3 8B's shape", bf16));
  return cases;
}

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
