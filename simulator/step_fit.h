// StepFit: a linear cost model from measured steps, by least squares.
//
// The fit minimises the sum of squared errors relative to the predicted times, so that
// short steps count as much as long ones and noise does not bias the sum (errors relative
// to the measured times would prefer predictions that are too low). Coefficients are not
// negative: one that would be negative is left out and the others are fitted again.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "simulator/cost_model.h"

namespace flotilla::simulator {

struct MeasuredStep {
  StepShape shape;
  std::int64_t ns = 0;

  bool operator==(const MeasuredStep&) const = default;
};

struct StepFit {
  LinearModel model;
  std::size_t steps = 0;
  // |predicted - measured| / measured, over the fitted steps.
  double mean_error = 0;
  double p50_error = 0;
  double p90_error = 0;
  double worst_error = 0;
  // Sum of predicted over sum of measured times, less 1: the bias of a whole run.
  double total_error = 0;
  // How much steps of equal rows differ among themselves: mean deviation from their
  // median, relative to it. No model of rows and context can do much better.
  double noise = 0;
};

// FAILED_PRECONDITION: fewer steps than coefficients, or none took any time.
absl::StatusOr<StepFit> FitSteps(absl::Span<const MeasuredStep> steps);

// CSV with the columns prefill_rows, decode_rows, prefill_context, decode_context
// and ns. INVALID_ARGUMENT names line and column.
absl::StatusOr<std::vector<MeasuredStep>> ParseSteps(absl::string_view csv);
std::string StepsCsv(absl::Span<const MeasuredStep> steps);

}  // namespace flotilla::simulator
