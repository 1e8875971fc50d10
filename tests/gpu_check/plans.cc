#include "tests/gpu_check/plans.h"

#include <algorithm>

namespace flotilla::kernels::cuda {
namespace {

using testing::Random;
using worker::RowRequest;
using worker::StepInputs;

// Positions of a sequence whose logits are compared, where not all are.
constexpr int kSomePositions = 12, kLastPositions = 3;
// Of a long sequence so many chunks are short; what is before them is one chunk.
constexpr int kShortChunks = 24;
constexpr int kSwaps = 2;  // of a sequence

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

}  // namespace

Texts::Texts(const ModelCase& c, const model::ModelSpec& spec, uint64_t seed)
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

void Texts::Ask(int sequence, int position, int row, Wants wants, PlannedStep& step) const {
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

void Texts::Reduce(Random& random, RowRequest& request, StepInputs& inputs) const {
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

Planner::Planner(const Texts& texts, Wants wants, int tiers)
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

void Planner::Begin() {
  PlannedStep& step = plan_.emplace_back();
  step.inputs.granted = std::exchange(granted_, {});
}

void Planner::Add(int sequence, int count) {
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

void Planner::Run(int sequence, int chunk, int tokens) {
  for (int end = lengths_[sequence] + tokens; Left(sequence) > 0 && lengths_[sequence] < end;) {
    Begin();
    Add(sequence, std::min(chunk, end - lengths_[sequence]));
  }
}

void Planner::Preempt() {
  for (int s = 0; s < kSequences; ++s) {
    Grant(tables_[places_[s]][s], granted_);
    places_[s] = 1 - places_[s];
    lengths_[s] = 0;
  }
}

void Planner::SwapIn(int sequence) {
  for (const auto& place : tables_) Grant(place[sequence], plan_.back().inputs.granted);
  places_[sequence] = 1 - places_[sequence];
  Swap(sequence, BackgroundCopy::Kind::kIn);
}

void Planner::Grant(const std::vector<int32_t>& table, std::vector<BlockId>& granted) {
  for (const int32_t block : table) granted.push_back(BlockId(static_cast<uint32_t>(block)));
}

void Planner::Swap(int sequence, BackgroundCopy::Kind kind) {
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

Plan EachAlone(const Texts& texts, Wants wants) {
  Planner planner(texts, wants);
  for (int s = 0; s < kSequences; ++s) planner.Run(s, texts.Length(s), texts.Length(s));
  return planner.Take();
}

Plan Chunks(const Texts& texts, Wants wants, int chunk, bool large) {
  Planner planner(texts, wants);
  const int length = texts.Length(0);
  const int whole = large ? std::max(0, length - kShortChunks * chunk) : 0;
  planner.Run(0, length, whole);
  planner.Run(0, chunk, length);
  return planner.Take();
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

}  // namespace flotilla::kernels::cuda
