// A Forward with all that it needs, and sequences that run through it step by step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/forward.h"
#include "worker/compute/kv_cache.h"
#include "worker/compute/weights.h"

namespace flotilla::worker {

// A Forward and its KV cache. Every block is poisoned.
struct Machine {
  Machine(const model::Checkpoint& file, const model::ModelSpec& spec, Recipe recipe,
          kernels::KvFormat format, kernels::Isa isa, int threads)
      : pool(threads) {
    auto loaded = LoadWeights(file, spec, WholeModel(spec), pool);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    weights = *std::move(loaded);
    auto made = KvCache::Create(
        {format, static_cast<int>(spec.layers.size()), static_cast<int>(spec.attention().kv_heads),
         static_cast<int>(spec.attention().head_dim)},
        kBlocks);
    EXPECT_TRUE(made.ok()) << made.status();
    cache = *std::move(made);
    for (uint32_t b = 0; b < kBlocks; ++b) cache.Poison(BlockId{b});
    forward.emplace(Forward::Options{.recipe = recipe, .max_rows = 512, .max_positions = 512}, spec,
                    weights, kernels::GetOps(isa), cache, pool);
  }

  static constexpr uint32_t kBlocks = 128;
  ThreadPool pool;
  Weights weights;
  KvCache cache;
  std::optional<Forward> forward;
};

// A sequence, the blocks it owns and the logits seen so far.
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
  Batch batch;
  batch.group_count = 1;
  std::vector<std::pair<Sequence*, size_t>> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    if (counts[i] == 0) continue;
    batch.items.push_back({.first_position = static_cast<uint32_t>(s.length),
                           .row_begin = static_cast<uint32_t>(batch.tokens.size()),
                           .row_count = static_cast<uint32_t>(counts[i])});
    batch.tables.push_back(s.table);
    for (size_t t = 0; t < counts[i]; ++t, ++s.length) {
      batch.tokens.push_back(s.tokens[s.length]);
      rows.push_back({&s, s.length});
    }
  }
  std::vector<int32_t> logit_rows(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) logit_rows[r] = static_cast<int32_t>(r);
  const auto whole = [](int) { return true; };
  machine.forward->Run(batch, logit_rows, whole, [&](int request, absl::Span<const float> logits) {
    rows[request].first->logits[rows[request].second].assign(logits.begin(), logits.end());
  });
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
