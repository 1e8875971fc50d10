// Each architecture gives the logits that Hugging Face's transformers give, and the same bits on
// every instruction path, over every backend, in chunks of any size, and from a GGUF file with the
// same weights.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/tiny_case.h"
#include "tests/worker/compute/decoder_machine.h"

namespace flotilla::worker {
namespace {

// The tokens that follow greedily.
std::vector<TokenId> Greedy(const testing::TinyCase& tiny, const model::ModelSpec& spec) {
  Machine machine(*tiny.file, spec, Recipe::kFp32, kernels::KvFormat::kF32,
                  kernels::DetectIsas().back(), 2);
  Sequence s = MakeSequence(tiny.prompt + tiny.greedy.size(), spec.vocab, 1, 1);
  s.tokens.assign(tiny.ids.begin(), tiny.ids.begin() + static_cast<std::ptrdiff_t>(tiny.prompt));
  std::vector<TokenId> tokens;
  while (tokens.size() < tiny.greedy.size()) {
    Step(machine, {&s}, {s.tokens.size() - s.length});
    const std::vector<float>& logits = s.logits[s.length - 1];
    tokens.push_back(
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    s.tokens.push_back(tokens.back());
  }
  return tokens;
}

class ArchitecturesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ArchitecturesTest, GivesTheReferencesLogits) {
  const testing::TinyCase tiny = testing::ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  const auto spec = model::LoadSpec(*tiny.file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  Sequence whole = MakeSequence(tiny.ids.size(), spec->vocab, 1, 1);
  whole.tokens = tiny.ids;
  std::vector<std::vector<float>> first;
  const auto run = [&](const std::string& what, kernels::Isa isa, const BackendMaker& make) {
    Machine machine(*tiny.file, *spec, Recipe::kFp32, kernels::KvFormat::kF32, isa, 2, make);
    for (const std::size_t chunk : {tiny.ids.size(), std::size_t{1}, std::size_t{7}}) {
      const auto logits = RunAlone(machine, whole, chunk);
      if (first.empty()) first = logits;
      ExpectSameBits(first, logits, absl::StrCat(what, ", chunks of ", chunk));
    }
  };
  for (const kernels::Isa isa : kernels::DetectIsas()) {
    run(std::string(kernels::GetOps(isa).name), isa, MakeCpuBackend);
  }
  run("deferred", kernels::Isa::kReference, testing::MakeDeferredBackends(/*seed=*/1, 1));
  if (tiny.gguf != nullptr) {
    const auto twin = model::LoadSpec(*tiny.gguf);
    ASSERT_TRUE(twin.ok()) << twin.status();
    Machine machine(*tiny.gguf, *twin, Recipe::kFp32, kernels::KvFormat::kF32,
                    kernels::DetectIsas().front(), 2, MakeCpuBackend);
    ExpectSameBits(first, RunAlone(machine, whole, 7), "GGUF");
  }
  double worst = 0;
  for (std::size_t i = 0; i < tiny.positions.size(); ++i) {
    const std::vector<float>& row = first[tiny.positions[i]];
    ASSERT_EQ(row.size(), tiny.logits[i].size());
    for (std::size_t v = 0; v < row.size(); ++v) {
      const double difference = std::abs(double{row[v]} - double{tiny.logits[i][v]});
      if (!(difference <= worst)) worst = difference;  // NaN is worst
    }
  }
  std::printf("%s: max |difference| of logits %.2g\n", GetParam().c_str(), worst);
  EXPECT_LE(worst, 1e-4);
  EXPECT_EQ(Greedy(tiny, *spec), tiny.greedy);
}

INSTANTIATE_TEST_SUITE_P(Tiny, ArchitecturesTest, ::testing::ValuesIn(testing::AllTinyCases()),
                         testing::TinyCaseName);

}  // namespace
}  // namespace flotilla::worker
