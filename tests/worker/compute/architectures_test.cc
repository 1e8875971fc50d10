// Each architecture gives the logits that Hugging Face's transformers give, and the same bits on
// every instruction path, over every backend, in chunks of any size, and from the GGUF file that
// llama.cpp's converter makes of it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kernels/scalar_math.h"
#include "model/load_spec.h"
#include "model/quantize_at_load.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/hf_folder.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_case.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/decoder_machine.h"

namespace flotilla::worker {
namespace {

// The largest difference of two logits; NaN if one is.
double Difference(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t v = 0; v < a[i].size(); ++v) {
      const double difference = std::abs(double{a[i][v]} - double{b[i][v]});
      if (std::isnan(difference)) return difference;
      worst = std::max(worst, difference);
    }
  }
  return worst;
}

// What llama.cpp's converter does not say of a model, or takes to be as in the published ones.
std::vector<testing::GgufManifest::Key> MendedKeys(const std::string& name) {
  static const std::map<std::string, testing::GgufManifest::Key> kKeys = {
      {"tiny/gemma2", {"gemma2.attention.query_pre_attn_scalar", "float32", "24"}},
      {"made/falcon_one_norm", {"falcon.feed_forward_length", "uint32", "224"}},
      {"made/gemma3_linear", {"gemma3.attention.sliding_window_pattern", "uint32", "3"}},
      {"tiny/mistral_swa", {"llama.attention.sliding_window", "uint32", "16"}},
      {"tiny/phi", {"phi2.feed_forward_length", "uint32", "160"}},
      // The converter states it where config.json does not say it.
      {"tiny/stablelm", {"stablelm.use_parallel_residual", "bool", "true"}},
      {"tiny/starcoder2", {"starcoder2.attention.sliding_window", "uint32", "24"}},
  };
  const auto found = kKeys.find(name);
  if (found == kKeys.end()) return {};
  return {found->second};
}

// The tokens that follow greedily, and by how much the best token of a step is better than the
// second at least.
struct GreedyRun {
  std::vector<TokenId> tokens;
  float margin = std::numeric_limits<float>::infinity();
};
GreedyRun Greedy(const testing::TinyCase& tiny, const model::ModelSpec& spec) {
  Machine machine(*tiny.file, spec, Recipe::kFp32, kernels::KvFormat::kF32,
                  kernels::DetectIsas().back(), 2);
  Sequence s = MakeSequence(tiny.prompt + tiny.greedy.size(), spec.vocab, 1, 1);
  s.tokens.assign(tiny.ids.begin(), tiny.ids.begin() + static_cast<std::ptrdiff_t>(tiny.prompt));
  GreedyRun run;
  while (run.tokens.size() < tiny.greedy.size()) {
    Step(machine, {&s}, {s.tokens.size() - s.length});
    std::vector<float> logits = s.logits[s.length - 1];
    logits.resize(spec.tokens);
    const auto best = std::max_element(logits.begin(), logits.end());
    run.tokens.push_back(static_cast<TokenId>(best - logits.begin()));
    s.tokens.push_back(run.tokens.back());
    const float most = std::exchange(*best, -std::numeric_limits<float>::infinity());
    run.margin = std::min(run.margin, most - *std::max_element(logits.begin(), logits.end()));
  }
  return run;
}

Sequence SequenceOf(const testing::TinyCase& tiny, const model::ModelSpec& spec) {
  Sequence whole = MakeSequence(tiny.ids.size(), spec.vocab, 1, 1);
  whole.tokens = tiny.ids;
  return whole;
}

// The logits of the ids on every instruction path and over two backends, with all ids at once,
// token by token and in chunks of 7. Expects the same bits of all.
std::vector<std::vector<float>> RunInChunks(const testing::TinyCase& tiny,
                                            const model::ModelSpec& spec, Recipe recipe,
                                            kernels::KvFormat kv) {
  const Sequence whole = SequenceOf(tiny, spec);
  std::vector<std::vector<float>> first;
  const auto run = [&](const std::string& what, kernels::Isa isa, const BackendMaker& make) {
    Machine machine(*tiny.file, spec, recipe, kv, isa, 2, make);
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
  return first;
}

class ArchitecturesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ArchitecturesTest, GivesTheReferencesLogits) {
  const testing::TinyCase tiny = testing::ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  const auto spec = model::LoadSpec(*tiny.file, tiny.served);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto first = RunInChunks(tiny, *spec, Recipe::kFp32, kernels::KvFormat::kF32);
  if (const auto manifest = testing::ReadGgufManifest("tests/data/" + GetParam())) {
    const auto bytes = testing::GgufTwin(*tiny.file, *manifest, MendedKeys(GetParam()));
    const auto file = model::ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto twin = model::LoadSpec(**file);
    ASSERT_TRUE(twin.ok()) << twin.status();
    Machine machine(**file, *twin, Recipe::kFp32, kernels::KvFormat::kF32,
                    kernels::DetectIsas().front(), 2, MakeCpuBackend);
    const auto logits = RunAlone(machine, SequenceOf(tiny, *spec), 7);
    // Factors of RoPE are rounded in a GGUF file.
    if (file->get()->FindTensor("rope_freqs.weight") != nullptr) {
      EXPECT_LE(Difference(first, logits), 1e-5);
    } else {
      ExpectSameBits(first, logits, "GGUF");
    }
  }
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i < tiny.positions.size(); ++i) {
    rows.push_back(first[tiny.positions[i]]);
    ASSERT_EQ(rows.back().size(), tiny.logits[i].size());
  }
  const double worst = Difference(rows, tiny.logits);
  std::printf("%s: max |difference| of logits %.2g\n", GetParam().c_str(), worst);
  EXPECT_LE(worst, 1e-4);
  const GreedyRun greedy = Greedy(tiny, *spec);
  EXPECT_EQ(greedy.tokens, tiny.greedy);
  // Tokens that are the same by chance would prove nothing.
  EXPECT_GE(greedy.margin, 1e-3f);
}

// The recipe and the KV memory of servers.
TEST_P(ArchitecturesTest, GivesTheSameBitsInChunksUnderAccurate) {
  const testing::TinyCase tiny = testing::ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  const auto spec = model::LoadSpec(*tiny.file, tiny.served);
  ASSERT_TRUE(spec.ok()) << spec.status();
  RunInChunks(tiny, *spec, Recipe::kAccurate, kernels::KvFormat::kBf16);
}

// The logits of the model for the ids in chunks of 7, on every instruction path and over two
// backends. Expects the bits of `first`, which they become if it is empty.
void ExpectBitsOfFile(const model::Checkpoint& file, const std::vector<TokenId>& ids,
                      std::vector<std::vector<float>>& first) {
  const auto spec = model::LoadSpec(file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  Sequence whole = MakeSequence(ids.size(), spec->vocab, 1, 1);
  whole.tokens = ids;
  const auto run = [&](const std::string& what, kernels::Isa isa, const BackendMaker& make) {
    Machine machine(file, *spec, Recipe::kFp32, kernels::KvFormat::kF32, isa, 2, make);
    const auto logits = RunAlone(machine, whole, 7);
    if (first.empty()) first = logits;
    ExpectSameBits(first, logits, what);
  };
  for (const kernels::Isa isa : kernels::DetectIsas()) {
    run(std::string(kernels::GetOps(isa).name), isa, MakeCpuBackend);
  }
  run("deferred", kernels::Isa::kReference, testing::MakeDeferredBackends(/*seed=*/1, 1));
}

void ExpectBitsOfFolder(const std::string& folder, const std::vector<TokenId>& ids,
                        std::vector<std::vector<float>>& first) {
  const auto file = model::OpenCheckpoint(folder);
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectBitsOfFile(**file, ids, first);
}

// Experts in MXFP4 give the bits of the same weights in bf16.
TEST(Mxfp4Folders, GiveTheBitsOfBf16) {
  std::vector<std::vector<float>> first;
  for (const bool quantised : {false, true}) {
    const testing::ScratchDirectory folder;
    testing::WriteMxfp4Folder(folder.path(), quantised);
    ExpectBitsOfFolder(folder.path(), testing::ReadTinyCase("tiny/gpt_oss").ids, first);
  }
}

// Experts whose gate and up are one tensor give the bits of a tensor for each. Those of gpt-oss
// have biases.
TEST(FusedExperts, GiveTheBitsOfATensorForEach) {
  for (const char* name : {"tiny/mixtral", "tiny/gpt_oss"}) {
    SCOPED_TRACE(name);
    const testing::TinyCase tiny = testing::ReadTinyCase(name);
    auto manifest = testing::ReadGgufManifest(absl::StrCat("tests/data/", name));
    ASSERT_TRUE(tiny.file != nullptr && manifest.has_value());
    std::vector<std::vector<float>> first;
    for (const bool fused : {false, true}) {
      if (fused) testing::FuseExperts(*manifest);
      const auto bytes = testing::GgufTwin(*tiny.file, *manifest);
      const auto file = model::ParseCheckpoint(bytes);
      ASSERT_TRUE(file.ok()) << file.status();
      ASSERT_EQ((*file)->FindTensor("blk.0.ffn_gate_up_exps.weight") != nullptr, fused);
      ExpectBitsOfFile(**file, tiny.ids, first);
    }
  }
}

// Weights in float16 give the bits of the same weights in float32.
TEST(Float16Folders, GiveTheBitsOfFloat32) {
  const testing::TinyCase tiny = testing::ReadTinyCase("tiny/llama");
  ASSERT_NE(tiny.file, nullptr);
  std::vector<std::vector<float>> first;
  for (const bool half : {false, true}) {
    std::vector<testing::HfTensor> tensors;
    for (const model::Tensor& tensor : tiny.file->tensors()) {
      testing::HfTensor copy = testing::CopyOf(tensor);
      std::string data;
      for (std::size_t i = 0; i < copy.data.size(); i += sizeof(std::uint16_t)) {
        std::uint16_t bits = 0;  // of a bf16
        std::memcpy(&bits, copy.data.data() + i, sizeof(bits));
        const std::uint16_t rounded =
            kernels::FloatToHalf(std::bit_cast<float>(std::uint32_t{bits} << 16));
        const float value = kernels::HalfToFloat(rounded);
        data.append(
            half ? reinterpret_cast<const char*>(&rounded) : reinterpret_cast<const char*>(&value),
            half ? sizeof(rounded) : sizeof(value));
      }
      copy.dtype = half ? "F16" : "F32";
      copy.data = std::move(data);
      tensors.push_back(std::move(copy));
    }
    const testing::ScratchDirectory folder;
    std::filesystem::copy("tests/data/tiny/llama/config.json", folder.path());
    testing::WriteFile(folder.path() + "/model.safetensors", testing::Safetensors(tensors));
    ExpectBitsOfFolder(folder.path(), tiny.ids, first);
  }
}

// The folders from which quantised ones are made: their rows cross a window of weights and end
// inside a block of FP8, and experts are short.
void WriteDense(const std::string& folder) {
  const std::vector<std::byte> bytes = testing::TinyGguf({.hidden = 320,
                                                          .layers = 3,
                                                          .heads = 10,
                                                          .kv_heads = 2,
                                                          .head_dim = 32,
                                                          .ffn = 416,
                                                          .tied_embedding = false});
  const auto file = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  testing::WriteLlamaFolder(**file, folder);
}

// Expects of a model on each instruction path and backend the bits of the same weights in fp32.
// `from` is the folder that it was made from.
void ExpectTheBitsOfFp32(const std::string& from, const model::Checkpoint& packed) {
  const testing::ScratchDirectory folder;
  testing::WriteFp32Folder(from, packed, folder.path());
  const auto plain = model::OpenCheckpoint(folder.path());
  ASSERT_TRUE(plain.ok()) << plain.status();
  std::vector<std::vector<float>> first;
  for (const model::Checkpoint* file : {plain->get(), &packed}) {
    const auto spec = model::LoadSpec(*file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    ExpectBitsOfFile(*file, MakeSequence(20, spec->vocab, 1, 1).tokens, first);
  }
}

class QuantisedFolders : public ::testing::TestWithParam<testing::QuantisedLayers> {};

TEST_P(QuantisedFolders, GiveTheBitsOfFp32) {
  const testing::ScratchDirectory scratch;
  WriteDense(scratch.path() + "/dense");
  // The last one has a matrix of which the heads' parts are read along the other axis.
  for (const std::string& from : {scratch.path() + "/dense", std::string("tests/data/tiny/mixtral"),
                                  std::string("tests/data/tiny/deepseek_v2_mla")}) {
    SCOPED_TRACE(from);
    const testing::ScratchDirectory folder;
    testing::WriteQuantisedFolder(from, GetParam(), /*seed=*/7, folder.path());
    const auto packed = model::OpenCheckpoint(folder.path());
    ASSERT_TRUE(packed.ok()) << packed.status();
    ExpectTheBitsOfFp32(from, **packed);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, QuantisedFolders,
                         ::testing::ValuesIn(testing::AllQuantisedLayers()),
                         [](const auto& info) { return info.param.name; });

class W8A8Folders : public ::testing::TestWithParam<testing::QuantisedLayers> {};

// The scalar twin is the reference path. Chunks and threads change nothing.
TEST_P(W8A8Folders, GiveTheBitsOfTheTwinUnderFast) {
  const testing::ScratchDirectory scratch;
  WriteDense(scratch.path() + "/dense");
  for (const std::string& from : {scratch.path() + "/dense", std::string("tests/data/tiny/mixtral"),
                                  std::string("tests/data/tiny/deepseek_v2_mla")}) {
    SCOPED_TRACE(from);
    const testing::ScratchDirectory folder;
    testing::WriteQuantisedFolder(from, GetParam(), /*seed=*/7, folder.path());
    const auto file = model::OpenCheckpoint(folder.path());
    ASSERT_TRUE(file.ok()) << file.status();
    const auto spec = model::LoadSpec(**file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const Sequence whole = MakeSequence(20, spec->vocab, 1, 1);
    const auto run = [&](Recipe recipe, kernels::Isa isa, int threads, int chunk) {
      Machine machine(**file, *spec, recipe, kernels::KvFormat::kF32, isa, threads, MakeCpuBackend);
      return RunAlone(machine, whole, chunk);
    };
    const auto twin = run(Recipe::kFast, kernels::Isa::kReference, 1, 20);
    for (const kernels::Isa isa : kernels::DetectIsas()) {
      ExpectSameBits(twin, run(Recipe::kFast, isa, 2, 7), std::string(kernels::GetOps(isa).name));
    }
    EXPECT_NE(run(Recipe::kAccurate, kernels::Isa::kReference, 1, 20), twin);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, W8A8Folders, ::testing::ValuesIn(testing::W8A8Layers()),
                         [](const auto& info) { return info.param.name; });

class QuantizedAtLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantizedAtLoad, GivesTheBitsOfFp32) {
  const testing::ScratchDirectory scratch;
  WriteDense(scratch.path() + "/dense");
  for (const std::string& from :
       {scratch.path() + "/dense", std::string("tests/data/tiny/mixtral")}) {
    SCOPED_TRACE(from);
    const auto file = model::OpenCheckpoint(from);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto packed = model::QuantizeAtLoad(*file, *model::ParseLoadQuantization(GetParam()));
    ASSERT_TRUE(packed.ok()) << packed.status();
    ExpectTheBitsOfFp32(from, **packed);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, QuantizedAtLoad, ::testing::Values("int8", "int4", "nf4", "fp8"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Tiny, ArchitecturesTest, ::testing::ValuesIn(testing::AllTinyCases()),
                         testing::TinyCaseName);

}  // namespace
}  // namespace flotilla::worker
