#include "simulator/step_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/traces/delimited_text.h"

namespace flotilla::simulator {
namespace {

constexpr std::size_t kTerms = 5;
// The predicted times, to which errors are relative, settle within a few rounds.
constexpr int kRounds = 10;
// The number of steps of equal rows that are enough to estimate the noise.
constexpr std::size_t kNoiseGroup = 5;
using Vector = std::array<double, kTerms>;
using Matrix = std::array<Vector, kTerms>;

Vector TermsOf(const StepShape& s) {
  return {1.0, static_cast<double>(s.prefill_rows), static_cast<double>(s.decode_rows),
          static_cast<double>(s.prefill_context), static_cast<double>(s.decode_context)};
}

// Normal equations of the errors in units of `sizes`; terms are scaled to be about 1.
struct System {
  Matrix a{};
  Vector b{};
  Vector scale{};
};

System MakeSystem(absl::Span<const MeasuredStep> steps, absl::Span<const double> sizes) {
  System system;
  for (const MeasuredStep& step : steps) {
    const Vector terms = TermsOf(step.shape);
    for (std::size_t i = 0; i < kTerms; ++i) system.scale[i] = std::max(system.scale[i], terms[i]);
  }
  for (std::size_t n = 0; n < steps.size(); ++n) {
    Vector row = TermsOf(steps[n].shape);
    for (std::size_t i = 0; i < kTerms; ++i) {
      row[i] = system.scale[i] > 0 ? row[i] / system.scale[i] / sizes[n] : 0;
    }
    const double target = static_cast<double>(steps[n].ns) / sizes[n];
    for (std::size_t i = 0; i < kTerms; ++i) {
      for (std::size_t j = 0; j < kTerms; ++j) system.a[i][j] += row[i] * row[j];
      system.b[i] += row[i] * target;
    }
  }
  return system;
}

// Solves for the terms in use by Gauss elimination with pivoting. The other terms, and
// those that the steps cannot tell apart, are 0.
Vector Solve(const System& system, const std::array<bool, kTerms>& use) {
  Matrix a = system.a;
  Vector b = system.b, x{};
  std::array<bool, kTerms> free = use;
  std::vector<std::pair<std::size_t, std::size_t>> pivots;  // (row, column)
  std::array<bool, kTerms> row_taken{};
  for (std::size_t column = 0; column < kTerms; ++column) {
    if (!free[column]) continue;
    std::size_t best = kTerms;
    for (std::size_t row = 0; row < kTerms; ++row) {
      if (!use[row] || row_taken[row]) continue;
      if (best == kTerms || std::abs(a[row][column]) > std::abs(a[best][column])) best = row;
    }
    // Below this the term is a combination of the others, up to rounding.
    if (best == kTerms || std::abs(a[best][column]) <= 1e-12 * system.a[column][column]) continue;
    row_taken[best] = true;
    pivots.emplace_back(best, column);
    for (std::size_t row = 0; row < kTerms; ++row) {
      if (row == best || !use[row]) continue;
      const double factor = a[row][column] / a[best][column];
      for (std::size_t j = 0; j < kTerms; ++j) a[row][j] -= factor * a[best][j];
      b[row] -= factor * b[best];
    }
  }
  for (const auto& [row, column] : pivots) x[column] = b[row] / a[row][column];
  return x;
}

Vector SolveNonNegative(const System& system) {
  std::array<bool, kTerms> use;
  use.fill(true);
  for (;;) {
    Vector x = Solve(system, use);
    const auto least = std::min_element(x.begin(), x.end());
    if (*least >= 0) return x;
    use[static_cast<std::size_t>(least - x.begin())] = false;
  }
}

LinearModel FitOnce(absl::Span<const MeasuredStep> steps, absl::Span<const double> sizes) {
  const System system = MakeSystem(steps, sizes);
  Vector x = SolveNonNegative(system);
  for (std::size_t i = 0; i < kTerms; ++i) x[i] = system.scale[i] > 0 ? x[i] / system.scale[i] : 0;
  return {.step_ns = x[0],
          .prefill_row_ns = x[1],
          .decode_row_ns = x[2],
          .prefill_context_ns = x[3],
          .decode_context_ns = x[4]};
}

double NoiseOf(absl::Span<const MeasuredStep> steps) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<double>> groups;
  for (const MeasuredStep& step : steps) {
    groups[{step.shape.prefill_rows, step.shape.decode_rows}].push_back(
        static_cast<double>(step.ns));
  }
  double sum = 0, count = 0;
  for (auto& [rows, times] : groups) {
    if (times.size() < kNoiseGroup) continue;
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    for (const double time : times) sum += std::abs(time - median) / median;
    count += static_cast<double>(times.size());
  }
  return count > 0 ? sum / count : 0;
}

void Judge(absl::Span<const MeasuredStep> steps, StepFit& fit) {
  std::vector<double> errors;
  double measured = 0, predicted = 0;
  for (const MeasuredStep& step : steps) {
    const double truth = static_cast<double>(step.ns);
    const double guess = static_cast<double>(CostOf(fit.model, step.shape).ns);
    errors.push_back(std::abs(guess - truth) / truth);
    fit.mean_error += errors.back() / static_cast<double>(steps.size());
    measured += truth;
    predicted += guess;
  }
  std::sort(errors.begin(), errors.end());
  fit.steps = steps.size();
  fit.p50_error = errors[errors.size() / 2];
  fit.p90_error = errors[errors.size() * 9 / 10];
  fit.worst_error = errors.back();
  fit.total_error = predicted / measured - 1;
}

}  // namespace

absl::StatusOr<StepFit> FitSteps(absl::Span<const MeasuredStep> steps) {
  if (steps.size() < kTerms) {
    return absl::FailedPreconditionError(
        absl::StrCat(steps.size(), " steps, a fit takes at least ", kTerms));
  }
  for (const MeasuredStep& step : steps) {
    if (step.ns <= 0) return absl::FailedPreconditionError("a step that took no time");
  }
  std::vector<double> sizes;
  for (const MeasuredStep& step : steps) sizes.push_back(static_cast<double>(step.ns));
  StepFit fit;
  for (int round = 0; round < kRounds; ++round) {
    fit.model = FitOnce(steps, sizes);
    for (std::size_t n = 0; n < steps.size(); ++n) {
      sizes[n] = static_cast<double>(CostOf(fit.model, steps[n].shape).ns);
    }
  }
  Judge(steps, fit);
  fit.noise = NoiseOf(steps);
  return fit;
}

absl::StatusOr<std::vector<MeasuredStep>> ParseSteps(absl::string_view csv) {
  const std::vector<absl::string_view> columns = {"prefill_rows", "decode_rows", "prefill_context",
                                                  "decode_context", "ns"};
  const auto table = ParseDelimited(csv, columns, 10'000'000);
  if (!table.ok()) return table.status();
  std::array<int, 5> at;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    at[i] = table->Find(columns[i]);
    if (at[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("column ", columns[i], " is missing"));
    }
  }
  std::vector<MeasuredStep> steps;
  for (const std::vector<TextCell>& row : table->rows) {
    std::array<std::int64_t, 5> values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value =
          CellInteger(row[static_cast<std::size_t>(at[i])], i == 4 ? 1 : 0, 1ll << 50);
      if (!value.ok()) return value.status();
      values[i] = *value;
    }
    MeasuredStep& step = steps.emplace_back();
    step.shape.prefill_rows = static_cast<std::uint64_t>(values[0]);
    step.shape.decode_rows = static_cast<std::uint64_t>(values[1]);
    step.shape.prefill_context = static_cast<std::uint64_t>(values[2]);
    step.shape.decode_context = static_cast<std::uint64_t>(values[3]);
    step.ns = values[4];
  }
  return steps;
}

std::string StepsCsv(absl::Span<const MeasuredStep> steps) {
  std::string csv = "prefill_rows,decode_rows,prefill_context,decode_context,ns\n";
  for (const MeasuredStep& step : steps) {
    const StepShape& s = step.shape;
    absl::StrAppend(&csv, s.prefill_rows, ",", s.decode_rows, ",", s.prefill_context, ",");
    absl::StrAppend(&csv, s.decode_context, ",", step.ns, "\n");
  }
  return csv;
}

}  // namespace flotilla::simulator
