// Measures how speculation changes the time of an answer, at the Engine seam on the real model. It
// runs the same requests with and without speculation, in turns, and prints the ratio.
//
//   speculation_benchmark [ngram|draft] [depth, default 8]
//                         [draft layers, or shortest n-gram; 0: the default]
//                         [batch sizes, default 1 4 8]
//
// tests/support/speculation_load.h says what the requests are. The program ends if an answer
// differs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/speculation_load.h"

namespace flotilla::testing {
namespace {

constexpr int kRounds = 7;

// The median of the rounds' ratios.
double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
}

void Print(const SpeculationTask& task, int batch, const SpeculationTimes& times) {
  const auto rate = [&times](const std::vector<double>& seconds) {
    return static_cast<double>(times.tokens) / *std::min_element(seconds.begin(), seconds.end());
  };
  const auto drafted = static_cast<double>(times.drafted);
  std::printf(
      "B=%-2d %-26s off %7.1f tok/s, on %7.1f tok/s: best rounds %.2fx, median %.2fx, "
      "its processor time %.2fx; drafted %.2f per token, %2.0f %% right\n",
      batch, task.name, rate(times.seconds), rate(times.seconds_with), times.Gain(),
      MedianRatio(times.seconds, times.seconds_with),
      MedianRatio(times.cpu_seconds, times.cpu_seconds_with),
      drafted / static_cast<double>(times.tokens * kRounds),
      drafted == 0 ? 0 : 100.0 * static_cast<double>(times.accepted) / drafted);
  std::fflush(stdout);
}

}  // namespace
}  // namespace flotilla::testing

int main(int argc, char** argv) {
  using flotilla::testing::EngineRunner;
  const auto file = flotilla::testing::OpenRealModel();
  if (file == nullptr) return 1;
  const auto number = [&](int index, int fallback) {
    return argc > index ? std::max(0, std::atoi(argv[index])) : fallback;
  };
  EngineRunner::Options options =
      flotilla::testing::NgramOptions(static_cast<std::uint32_t>(std::max(1, number(2, 8))));
  const auto third = static_cast<std::uint32_t>(number(3, 0));
  if (argc > 1 && std::string(argv[1]) == "draft") {
    options.rank.speculation = flotilla::worker::Speculation::kDraft;
    options.rank.draft_layers = third;
  } else if (third > 0) {
    options.rank.ngram.min_n = third;
  }
  flotilla::testing::SpeculationLoad load(file, options);
  std::vector<int> batches;
  for (int i = 4; i < argc; ++i) batches.push_back(std::max(1, std::atoi(argv[i])));
  if (batches.empty()) batches = {1, 4, 8};
  for (const int batch : batches) {
    for (const flotilla::testing::SpeculationTask& task : flotilla::testing::SpeculationTasks()) {
      const auto times = load.Measure(task, batch, flotilla::testing::kRounds);
      if (!times.ok()) {
        std::printf("%s\n", times.status().ToString().c_str());
        return 1;
      }
      flotilla::testing::Print(task, batch, *times);
    }
  }
}
