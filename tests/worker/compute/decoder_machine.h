// A Decoder with a backend, and sequences that run through it step by step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/backend.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/compute/decoder/decoder.h"
#include "worker/compute/model_shard.h"

namespace flotilla::worker {

// A decoder of the whole model on one rank. Blocks hold NaN until they are written.
struct Machine {
  Machine(const model::Checkpoint& file, const model::ModelSpec& spec, Recipe recipe,
          kernels::KvFormat format, kernels::Isa isa, int threads,
          const BackendMaker& make = MakeCpuBackend)
      : shard(WholeModel(spec)),
        spec(spec),
        groups(static_cast<uint32_t>(spec.kv_groups.size())),
        backend(make({.recipe = recipe,
                      .isa = isa,
                      .threads = threads,
                      .max_rows = 512,
                      .max_positions = 512,
                      .clock = &clock})) {
    auto loaded = Decoder::Load(file, spec, {&shard, 1}, {}, 0, *backend);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    decoder.emplace(*std::move(loaded));
    const absl::Status made = backend->CreateKv(
        KvShapeOf(spec, format, shard.layers, spec.attention().kv_heads), kBlocks * groups + 1, {});
    EXPECT_TRUE(made.ok()) << made;
    StepInputs poison;
    for (uint32_t b = 0; b <= kBlocks * groups; ++b) poison.granted.push_back(BlockId{b});
    decoder->Start(std::move(poison), nullptr);
    EXPECT_TRUE(backend->Finish().ok());
  }

  // The leading blocks that no row from `position` on sees.
  uint32_t UnneededBlocks(uint32_t group, size_t position) const {
    const uint32_t window = spec.kv_groups[group].window;
    return KvGroup{.kind = window > 0 ? KvGroup::Kind::kWindow : KvGroup::Kind::kFull,
                   .window = window,
                   .tokens_per_block = 16}
        .UnneededBlocks(static_cast<uint32_t>(position));
  }

  static constexpr uint32_t kBlocks = 128;  // of each KV group
  const SteadyClock clock;
  const ModelShard shard;
  const model::ModelSpec& spec;
  const uint32_t groups;
  const std::unique_ptr<Backend> backend;
  std::optional<Decoder> decoder;
};

// A sequence, the blocks that it owns in the first KV group, and the logits seen so far. In group g
// it owns those that follow kBlocks * g later. What its rows do not see any more, it has given
// back: those entries name a block of NaN, the last one.
struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<int32_t> table;
  size_t length = 0;
  std::vector<std::vector<float>> logits;  // by position
};

inline Sequence MakeSequence(size_t length, uint32_t vocab, uint64_t seed, int32_t first_block) {
  std::mt19937_64 random(seed);
  Sequence s;
  for (size_t i = 0; i < length; ++i) s.tokens.push_back(static_cast<TokenId>(random() % vocab));
  // Blocks in descending order, so that position and block id never agree.
  for (size_t i = 0; i <= length / 16; ++i) {
    s.table.push_back(first_block + static_cast<int32_t>(length / 16 - i));
  }
  s.logits.resize(length);
  return s;
}

// Runs one step with the next counts[i] tokens of each sequence.
inline void Step(Machine& machine, std::vector<Sequence*> sequences,
                 const std::vector<size_t>& counts) {
  struct Rows final : RowReceiver {
    void TakeRow(int request, absl::Span<const float> logits) override {
      of[request].first->logits[of[request].second].assign(logits.begin(), logits.end());
    }
    std::vector<std::pair<Sequence*, size_t>> of;
  } rows;
  StepInputs inputs;
  inputs.group_count = machine.groups;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    if (counts[i] == 0) continue;
    const size_t first = std::exchange(s.length, s.length + counts[i]);
    for (size_t position = first; position < s.length; ++position) {
      RowRequest& request = inputs.requests.emplace_back();
      request.row = inputs.rows() + static_cast<int>(position - first);
      request.full_row = true;
      rows.of.push_back({&s, position});
    }
    std::vector<std::vector<int32_t>> tables(machine.groups, s.table);
    for (uint32_t g = 0; g < machine.groups; ++g) {
      for (int32_t& block : tables[g]) block += static_cast<int32_t>(g * Machine::kBlocks);
      std::fill_n(tables[g].begin(), machine.UnneededBlocks(g, first),
                  static_cast<int32_t>(machine.groups * Machine::kBlocks));
    }
    AddSequence(SequenceHandle(static_cast<std::uint32_t>(i)), static_cast<int>(first),
                absl::MakeConstSpan(s.tokens).subspan(first, counts[i]),
                std::vector<absl::Span<const int32_t>>(tables.begin(), tables.end()), inputs);
  }
  machine.decoder->Start(std::move(inputs), &rows);
  EXPECT_TRUE(machine.backend->Finish().ok());
}

// Runs `s` alone in chunks of `chunk`, and returns the bits of all its logits.
inline std::vector<std::vector<float>> RunAlone(Machine& machine, const Sequence& s, size_t chunk) {
  Sequence run = s;
  while (run.length < run.tokens.size()) {
    Step(machine, {&run}, {std::min(chunk, run.tokens.size() - run.length)});
  }
  return run.logits;
}

inline void ExpectSameBits(const std::vector<std::vector<float>>& expected,
                           const std::vector<std::vector<float>>& actual, const std::string& what) {
  for (size_t p = 0; p < expected.size(); ++p) {
    ASSERT_EQ(expected[p].size(), actual[p].size()) << what << ", position " << p;
    ASSERT_EQ(0,
              std::memcmp(expected[p].data(), actual[p].data(), expected[p].size() * sizeof(float)))
        << what << ": logits differ at position " << p;
  }
}

}  // namespace flotilla::worker
