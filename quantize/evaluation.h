// How much worse a quantised model predicts texts than the model that it has been made of.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "common/types/ids.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "quantize/layer_runner.h"

namespace flotilla::quantize {

// Texts to measure the perplexity of.
struct Evaluation {
  std::string name;
  std::vector<std::vector<TokenId>> texts;  // at least one, of two tokens
};

struct PerplexityReport {
  std::string name;
  double before = 0;
  double after = 0;
  double top5_error = 0;  // of the log-probabilities (TextScores)
  // The standard error of `change`, as if the tokens of the text were drawn independently. Both
  // models predict the same tokens, so it is much smaller than those of the perplexities.
  double uncertainty = 0;

  double change() const { return after / before - 1; }
};

// Called after each layer, of `layers`.
using LayerDone = std::function<void(uint32_t done, uint32_t layers)>;

// Runs both models over the texts, layer by layer (layer_runner.h), so that one layer and the
// residuals are in memory. `done` counts the layers of both models and of all evaluations.
// INVALID_ARGUMENT: a model cannot be read, or as LayerRunner::Score. Other errors are those of
// LayerRunner::Run.
absl::StatusOr<std::vector<PerplexityReport>> Evaluate(const model::Checkpoint& before,
                                                       const model::Checkpoint& after,
                                                       std::span<const Evaluation> evaluations,
                                                       kernels::Isa isa, int threads,
                                                       const Clock& clock, const LayerDone& done);

// The standard error of exp(mean of before - after) - 1, of log-probabilities of the same tokens.
// 0 for fewer than two tokens.
double UncertaintyOf(std::span<const double> before, std::span<const double> after);

// The reports as a table in Markdown, with what the columns mean. No reports: empty.
std::string PerplexityText(std::span<const PerplexityReport> reports);

}  // namespace flotilla::quantize
