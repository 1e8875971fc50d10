// Tokens per second at the Engine seam: B requests at once, of 128 prompt tokens each and
// 128 steps of decode after the token that prefill gives (what llama-batched-bench -npp 128
// -ntg 128 computes).
//
//   decode_benchmark [--rounds=N, default 3] [--threads=N, default all CPUs] [--prompt=N]
//   [--steps=N]
//   [--kv-type=TYPE, default bf16] [batch sizes, default 1 8 32]
//
// "prefill" is a run that ends with the first tokens. "both" is a run with prefill and decode.
// "decode" is the difference of their times. Each figure is the median of the rounds. Exits 1 when
// the model computed fewer rows than a figure claims (tests/support/throughput.h).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/support/throughput.h"

namespace flotilla::testing {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prints the line of the batch, or why there is none.
bool Measure(ThroughputMeter& meter, const ThroughputLoad& load, int rounds) {
  const int batch = load.batch;
  // Warms up the memory that only batches of this size use.
  absl::Status status =
      meter.Measure({.batch = batch, .prompt_tokens = 16, .decode_tokens = 16}).status();
  std::vector<double> prefill, decode, both;
  for (int round = 0; status.ok() && round < rounds; ++round) {
    const absl::StatusOr<Throughput> one = meter.Measure(load);
    if (!one.ok()) {
      status = one.status();
      break;
    }
    prefill.push_back(one->prefill());
    decode.push_back(one->decode());
    both.push_back(one->both());
  }
  if (!status.ok()) {
    std::fprintf(stderr, "B=%d: %s\n", batch, status.ToString().c_str());
    return false;
  }
  std::printf("B=%-3d prefill %8.1f tok/s, decode %8.1f tok/s, both %8.1f tok/s\n", batch,
              Median(prefill), Median(decode), Median(both));
  std::fflush(stdout);
  return true;
}

}  // namespace
}  // namespace flotilla::testing

static int Usage() {
  std::fprintf(stderr,
               "usage: decode_benchmark [--rounds=N] [--threads=N] [--prompt=N] [--steps=N] "
               "[--kv-type=TYPE] [batch sizes]\n");
  return 2;
}

int main(int argc, char** argv) {
  int rounds = 3, prompt = 128, steps = 128;
  flotilla::testing::EngineRunner::Options options;
  std::vector<int> batches;
  flotilla::testing::ThroughputLoad load;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--kv-type=")) {
      using flotilla::kernels::kAllKvTypes;
      const auto* type = std::find_if(std::begin(kAllKvTypes), std::end(kAllKvTypes),
                                      [&](flotilla::kernels::KvType each) {
                                        return flotilla::kernels::KvTypeName(each) ==
                                               std::string_view(word.data(), word.size());
                                      });
      if (type == std::end(kAllKvTypes)) return Usage();
      options.rank.kv_format = flotilla::kernels::KvFormat::Both(*type);
      continue;
    }
    int value = 0;
    int* to = nullptr;
    if (absl::ConsumePrefix(&word, "--rounds=")) to = &rounds;
    if (absl::ConsumePrefix(&word, "--threads=")) to = &options.rank.threads;
    if (absl::ConsumePrefix(&word, "--prompt=")) to = &prompt;
    if (absl::ConsumePrefix(&word, "--steps=")) to = &steps;
    if (!absl::SimpleAtoi(word, &value) || value < 1) return Usage();
    if (to == nullptr) batches.push_back(value);
    if (to != nullptr) *to = value;
  }
  load.prompt_tokens = static_cast<std::uint32_t>(prompt);
  load.decode_tokens = static_cast<std::uint32_t>(steps);
  if (batches.empty()) batches = {1, 8, 32};
  const auto file = flotilla::testing::OpenRealModel();
  if (file == nullptr) return 1;
  flotilla::testing::ThroughputMeter meter(file, options);
  for (const int batch : batches) {
    load.batch = batch;
    if (!flotilla::testing::Measure(meter, load, rounds)) return 1;
  }
}
