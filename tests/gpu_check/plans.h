// What is computed of a model: texts, which are its sequences of tokens, and plans, which are steps
// that compute them. Every plan asks the same about a row, however its sequence is computed, so
// that the answers of two plans must have the same bits. All of it is a function of a seed.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/plan.h"
#include "kernels/kv_layout.h"
#include "model/spec.h"
#include "tests/gpu_check/model_cases.h"
#include "tests/support/random.h"
#include "worker/compute/step_inputs.h"

namespace flotilla::kernels::cuda {

inline constexpr int kSequences = 8;
inline constexpr int kBlockTokens = kKvRecordTokens;
inline constexpr int kLongestPart = 40;  // of a sequence in a step of a batch

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
  worker::StepInputs inputs;
  std::vector<Asked> asked;  // by request
};
using Plan = std::vector<PlannedStep>;

// The sequences of a model, and the requests about their rows, which are the same in every plan.
class Texts {
 public:
  Texts(const ModelCase& c, const model::ModelSpec& spec, uint64_t seed);

  int Length(int sequence) const { return static_cast<int>(tokens_[sequence].size()); }
  absl::Span<const TokenId> Tokens(int sequence, int begin, int count) const {
    return absl::MakeConstSpan(tokens_[sequence]).subspan(begin, count);
  }

  // Adds the request about a position, whose row is `row`, if there is one.
  void Ask(int sequence, int position, int row, Wants wants, PlannedStep& step) const;

 private:
  static constexpr int kSegmentKeys = 256;

  TokenId Token(testing::Random& random) const {
    return static_cast<TokenId>(random.Below(vocabulary_));
  }

  void Reduce(testing::Random& random, worker::RowRequest& request,
              worker::StepInputs& inputs) const;

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
  Planner(const Texts& texts, Wants wants, int tiers = 0);

  uint32_t blocks() const { return static_cast<uint32_t>(blocks_); }
  uint32_t slots() const { return blocks() / 2; }  // of each tier
  int Left(int sequence) const { return texts_.Length(sequence) - lengths_[sequence]; }

  void Begin();
  // Adds the next `count` tokens of a sequence to the step, or those that are left.
  void Add(int sequence, int count);
  // Computes `tokens` more tokens of a sequence alone, in chunks.
  void Run(int sequence, int chunk, int tokens);
  // The sequences lose all blocks, and begin again in others.
  void Preempt();
  // The step copies what a sequence has to the tiers. It rests until it is back.
  void SwapOut(int sequence) { Swap(sequence, BackgroundCopy::Kind::kOut); }
  // The step makes both places of a sequence NaN, and copies what it had into the other one. All
  // copies out have ended by then.
  void SwapIn(int sequence);
  // The step starts when the copies of the steps before it have ended.
  void AwaitCopies() { plan_.back().copies_done = copies_; }

  Plan Take() { return std::move(plan_); }

 private:
  static void Grant(const std::vector<int32_t>& table, std::vector<BlockId>& granted);
  void Swap(int sequence, BackgroundCopy::Kind kind);

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
Plan EachAlone(const Texts& texts, Wants wants);

// The first sequence in chunks. Of a large model only its end is.
Plan Chunks(const Texts& texts, Wants wants, int chunk, bool large);

// All sequences together, in steps with a seeded number of tokens of each.
Plan Batch(const Texts& texts, Wants wants, uint64_t seed);

// The first sequence loses its blocks halfway and begins again. Then the others join it.
Plan Preempted(const Texts& texts, Wants wants, uint64_t seed);

// The first sequence and some others go to the tiers and come back, and the rest goes on meanwhile.
Plan Swapped(const Texts& texts, Wants wants, uint64_t seed, int tiers);

}  // namespace flotilla::kernels::cuda
