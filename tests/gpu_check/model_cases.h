// The models that are compared and measured. A ModelCase says how one is made and computed, and a
// Model is what is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kv_layout.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "tests/gpu_check/target.h"
#include "tests/support/tiny_gguf.h"
#include "worker/compute/recipe.h"

namespace flotilla::kernels::cuda {

struct ModelCase {
  std::string name;
  testing::TinyModelOptions options;
  worker::Recipe recipe = worker::Recipe::kAccurate;
  KvFormat format = KvFormat::kBf16;
  int tokens = 0;            // of the first sequence
  int neighbour_tokens = 0;  // the most of another
  bool large = false;        // logits of some positions are compared, not of all
};

struct Model {
  explicit Model(const testing::TinyModelOptions& options);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Checkpoint> file;
  model::ModelSpec spec;
};

// Every type of weights with every recipe and both formats of K and V. The sizes of heads and of
// their groups go round, and so do norms of q and k.
std::vector<ModelCase> TinyModels(ModelTarget target, uint64_t seed);

// Q4_1; bf16 that is computed in fp32; and norms of q and k, with KV heads for three ranks.
std::vector<ModelCase> NcclModels(ModelTarget target, uint64_t seed);

// The shapes of models that people use. In a simulation they are smaller.
std::vector<ModelCase> LargeModels(ModelTarget target, uint64_t seed);

}  // namespace flotilla::kernels::cuda
