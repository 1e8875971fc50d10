#include "quantize/evaluation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "model/load_spec.h"

namespace flotilla::quantize {
namespace {

// Runs a model over one stream of texts.
absl::StatusOr<TextScores> ScoreOf(const model::Checkpoint& file, LayerRunner& runner,
                                   uint32_t layers, const Evaluation& evaluation,
                                   const std::vector<BestTokens>* reference,
                                   const std::function<void()>& layer_done) {
  Stream stream{.texts = evaluation.texts, .residuals = {}};
  for (uint32_t layer = 0; layer + 1 < layers; ++layer) {
    const absl::Status status = runner.Run(file, layer, stream, nullptr, /*keep=*/true);
    if (!status.ok()) return status;
    file.ReleasePages();
    layer_done();
  }
  auto scores = runner.Score(file, stream, reference);
  file.ReleasePages();
  layer_done();
  return scores;
}

}  // namespace

absl::StatusOr<std::vector<PerplexityReport>> Evaluate(const model::Checkpoint& before,
                                                       const model::Checkpoint& after,
                                                       std::span<const Evaluation> evaluations,
                                                       kernels::Isa isa, int threads,
                                                       const Clock& clock, const LayerDone& done) {
  const auto spec_before = model::LoadSpec(before), spec_after = model::LoadSpec(after);
  if (!spec_before.ok()) return spec_before.status();
  if (!spec_after.ok()) return spec_after.status();
  LayerRunner runner_before(*spec_before, isa, threads, clock);
  LayerRunner runner_after(*spec_after, isa, threads, clock);
  const auto layers = static_cast<uint32_t>(spec_before->layers.size());
  uint32_t ran = 0;
  const auto layer_done = [&] {
    ++ran;
    if (done) done(ran, 2 * layers * static_cast<uint32_t>(evaluations.size()));
  };
  std::vector<PerplexityReport> reports;
  for (const Evaluation& evaluation : evaluations) {
    const auto reference = ScoreOf(before, runner_before, layers, evaluation, nullptr, layer_done);
    if (!reference.ok()) return reference.status();
    const auto scores =
        ScoreOf(after, runner_after, layers, evaluation, &reference->best, layer_done);
    if (!scores.ok()) return scores.status();
    reports.push_back({.name = evaluation.name,
                       .before = reference->perplexity,
                       .after = scores->perplexity,
                       .top5_error = scores->top5_error,
                       .uncertainty = UncertaintyOf(reference->next, scores->next)});
  }
  return reports;
}

double UncertaintyOf(std::span<const double> before, std::span<const double> after) {
  const size_t count = std::min(before.size(), after.size());
  if (count < 2) return 0;
  double sum = 0, squares = 0;
  for (size_t i = 0; i < count; ++i) sum += before[i] - after[i];
  const auto n = static_cast<double>(count);
  const double mean = sum / n;
  for (size_t i = 0; i < count; ++i) {
    const double deviation = before[i] - after[i] - mean;
    squares += deviation * deviation;
  }
  return std::exp(mean) * std::sqrt(squares / (n - 1) / n);
}

std::string PerplexityText(std::span<const PerplexityReport> reports) {
  if (reports.empty()) return "";
  std::string text =
      "\n| text | perplexity before | after | change | ± | top-5 error |\n"
      "|---|---|---|---|---|---|\n";
  for (const PerplexityReport& each : reports) {
    absl::StrAppendFormat(&text, "| %s | %.4f | %.4f | %+.2f %% | %.2f %% | %.4f |\n", each.name,
                          each.before, each.after, each.change() * 100, each.uncertainty * 100,
                          each.top5_error);
  }
  text +=
      "\n± is the standard error of the change. The top-5 error is the mean change of\n"
      "log-probabilities: of the five tokens that are the most probable ones before, at each place "
      "of the\ntext.\n";
  return text;
}

}  // namespace flotilla::quantize
