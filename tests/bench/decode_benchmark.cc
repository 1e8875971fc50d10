// Tokens per second at the Engine seam: B requests of 128 prompt tokens and 128
// output tokens each, all submitted at once.
//
//   decode_benchmark [batch sizes, default 1 8 32]
//
// Prefill is timed by the same requests with one output token; what the other
// 127 take longer is decode. Each figure is the median of kRounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/support/engine_runner.h"

namespace flotilla {
namespace {

constexpr int kRounds = 3;
constexpr std::uint32_t kPromptTokens = 128, kOutputTokens = 128;

double Seconds(testing::EngineRunner& runner, int batch, std::uint32_t output_tokens) {
  std::vector<TokenizedRequest> requests(batch);
  for (int i = 0; i < batch; ++i) {
    requests[i].id = {1, static_cast<std::uint64_t>(i)};
    for (std::uint32_t t = 0; t < kPromptTokens; ++t) {
      requests[i].prompt.push_back(static_cast<TokenId>(1000 + i * 131 + t * 17));
    }
    requests[i].sampling.temperature = 0;
    requests[i].stop.max_tokens = output_tokens;
  }
  const SteadyClock clock;
  const std::int64_t start = clock.NowNs();
  runner.Run(requests);
  return static_cast<double>(clock.NowNs() - start) * 1e-9;
}

void Measure(testing::EngineRunner& runner, int batch) {
  std::vector<double> prefill, decode;
  for (int round = 0; round < kRounds; ++round) {
    const double first = Seconds(runner, batch, 1);
    const double all = Seconds(runner, batch, kOutputTokens);
    prefill.push_back(batch * kPromptTokens / first);
    decode.push_back(batch * (kOutputTokens - 1) / (all - first));
  }
  std::sort(prefill.begin(), prefill.end());
  std::sort(decode.begin(), decode.end());
  std::printf("B=%-3d prefill %8.1f tok/s, decode %8.1f tok/s\n", batch, prefill[kRounds / 2],
              decode[kRounds / 2]);
  std::fflush(stdout);
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  const auto file = flotilla::testing::OpenRealModel();
  if (file == nullptr) return 1;
  std::vector<int> batches;
  for (int i = 1; i < argc; ++i) batches.push_back(std::max(1, std::atoi(argv[i])));
  if (batches.empty()) batches = {1, 8, 32};
  flotilla::testing::EngineRunner runner(file, {});
  for (int batch : batches) flotilla::Measure(runner, batch);
}
