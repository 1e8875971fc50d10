// LayerRunner: runs a model layer by layer over many tokens, so that only one layer is in memory.
//
// Each layer is a stage of a pipeline by itself (worker/compute/decoder): it takes the residuals
// that the layer before has left for all tokens, and leaves its own. K and V are in fp32.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "common/types/ids.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/model_shard.h"
#include "worker/compute/recipe.h"

namespace flotilla::quantize {

// Texts as tokens, and the residuals behind the layers that have run.
struct Stream {
  std::vector<std::vector<TokenId>> texts;
  std::vector<float> residuals;  // [tokens of all texts, hidden]

  int64_t tokens() const;
};

// Tokens and their log-probabilities, the most probable one first.
using BestTokens = std::array<std::pair<TokenId, double>, 5>;

// How well a model predicts texts.
struct TextScores {
  // Of each token but the first of a text, by those before it.
  double perplexity = 0;
  // The mean of |log-probability - the reference's|, over the five tokens that the reference takes
  // for the most probable at each place; 0 without a reference.
  double top5_error = 0;
  std::vector<BestTokens> best;  // at each place, in order
  std::vector<double> next;      // log-probabilities of the tokens that follow, in the same order
};

// What a matrix multiplies, rows of `inputs` floats one every `stride`.
using InputObserver = std::function<absl::Status(const std::string& matrix, const float* x,
                                                 int64_t rows, int64_t stride)>;

class LayerRunner {
 public:
  // `spec` is that of the files that Run gets. All arguments outlive it.
  LayerRunner(const model::ModelSpec& spec, kernels::Isa isa, int threads, const Clock& clock,
              worker::Recipe recipe = worker::Recipe::kFp32);

  // Runs layer `layer` of `file`. Layer 0 begins with the tokens; the last layer leaves the
  // residuals as they are. The observer gets the inputs of
  // the matrices of the layer, by the names of their tensors: of Q, K and V together by that of Q,
  // and of gate and up by that of gate. Null: nobody wants them. With `keep` false the residuals
  // stay those before the layer. Errors as Decoder::Load; UNIMPLEMENTED: the inputs of a layer with
  // experts or a latent are wanted.
  absl::Status Run(const model::Checkpoint& file, uint32_t layer, Stream& stream,
                   const InputObserver* observer, bool keep);

  // Runs the last layer and the head. `reference`: what another model takes for the most probable
  // at each place of the same texts; null: there is none. INVALID_ARGUMENT: no text has two tokens,
  // or the vocabulary has fewer than five.
  absl::StatusOr<TextScores> Score(const model::Checkpoint& file, Stream& stream,
                                   const std::vector<BestTokens>* reference);

 private:
  class TokenScorer;

  absl::Status RunLayer(const model::Checkpoint& file, uint32_t layer, Stream& stream,
                        const InputObserver* observer, bool keep, TokenScorer* scorer);

  const model::ModelSpec& spec_;
  const kernels::Isa isa_;
  const int threads_;
  const Clock& clock_;
  const worker::Recipe recipe_;
  std::vector<worker::ModelShard> shards_;  // a stage for each layer
};

}  // namespace flotilla::quantize
