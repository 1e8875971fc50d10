// Latent attention beyond the cases of architectures_test: other files, and quantised matrices of
// heads.
#include <cmath>
#include <cstddef>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/encode_weights.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/made_weights.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_case.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/decoder_machine.h"

namespace flotilla::worker {
namespace {

using testing::GgufManifest;

constexpr char kCase[] = "made/deepseek_v2_mla";

std::vector<std::vector<float>> Logits(const model::Checkpoint& file,
                                       const std::vector<TokenId>& tokens) {
  const auto spec = model::LoadSpec(file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return {};
  Machine machine(file, *spec, Recipe::kFp32, kernels::KvFormat::kF32, kernels::DetectIsas().back(),
                  2);
  Sequence whole = MakeSequence(tokens.size(), spec->vocab, 1, 1);
  whole.tokens = tokens;
  return RunAlone(machine, whole, tokens.size());
}

// Of files that llama.cpp wrote until April 2025: K and V of the heads in one matrix, and the sizes
// of heads as those of other models.
GgufManifest OlderManifest() {
  GgufManifest manifest = testing::ReadGgufManifest(absl::StrCat("tests/data/", kCase)).value();
  std::map<std::string, std::string> mended = {
      {"key_length", manifest.Value("attention.key_length_mla")},
      {"value_length", manifest.Value("attention.value_length_mla")},
      {"head_count_kv", manifest.Value("attention.head_count")}};
  std::erase_if(manifest.keys, [](const auto& key) { return key.name.ends_with("_mla"); });
  for (GgufManifest::Key& key : manifest.keys) {
    const auto found = mended.find(key.name.substr(key.name.rfind('.') + 1));
    if (found != mended.end()) key.value = found->second;
  }
  std::erase_if(manifest.tensors,
                [](const auto& tensor) { return tensor.name.ends_with("attn_v_b.weight"); });
  for (GgufManifest::Tensor& tensor : manifest.tensors) {
    const std::size_t at = tensor.name.find("attn_k_b");
    if (at != std::string::npos) tensor.name.replace(at, 8, "attn_kv_b");
  }
  return manifest;
}

TEST(LatentTest, OlderGgufFilesGiveTheBitsOfTheFolder) {
  const testing::TinyCase tiny = testing::ReadTinyCase(kCase);
  ASSERT_NE(tiny.file, nullptr);
  const auto bytes = testing::GgufTwin(*tiny.file, OlderManifest());
  const auto older = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(older.ok()) << older.status();
  ExpectSameBits(Logits(*tiny.file, tiny.ids), Logits(**older, tiny.ids), "older file");
}

void AddKeys(const GgufManifest& manifest, testing::GgufBuilder& file) {
  for (const GgufManifest::Key& key : manifest.keys) {
    const nlohmann::json value = nlohmann::json::parse(key.value);
    if (key.type == "uint32") file.AddUint32(key.name, value.get<uint32_t>());
    if (key.type == "float32") file.AddFloat(key.name, value.get<float>());
    if (key.type == "string") file.AddString(key.name, value.get<std::string>());
  }
}

std::vector<float> Decoded(const auto& tensor) {
  uint64_t elements = 1;
  for (const uint64_t axis : tensor.dims) elements *= axis;
  std::vector<float> values(elements);
  EXPECT_TRUE(model::DequantizeRow(tensor.type, tensor.data, values).ok());
  return values;
}

// A model whose heads are whole blocks, so that their matrices may be quantised: in `accurate` each
// head's query and result are quantised by themselves.
class QuantisedHeadsTest : public ::testing::Test {
 protected:
  enum class Heads { kQ8, kOlderQ8, kOlderF32 };

  // A GGUF file with some of the case's matrices in Q8_0, the sizes of heads being these. Older
  // files have the matrices of the heads in one, in Q8_0 or with the same weights in F32.
  static std::vector<std::byte> File(Heads heads = Heads::kQ8) {
    const bool older = heads != Heads::kQ8;
    const std::string from = absl::StrCat("tests/data/", kCase);
    const testing::ScratchDirectory lists, folder;
    std::ifstream config_file(from + "/config.json");
    nlohmann::json config = nlohmann::json::parse(config_file);
    config["kv_lora_rank"] = 64;
    config["qk_nope_head_dim"] = config["v_head_dim"] = config["q_lora_rank"] = 32;
    std::ofstream(lists.path() + "/config.json") << config.dump();
    std::ofstream list(lists.path() + "/tensors.tsv");
    const std::vector<std::pair<std::string, std::string>> shapes = {
        {"q_a_proj.weight", "32,96"},
        {"q_a_layernorm.weight", "32"},
        {"q_a_proj.bias", "32"},
        {"kv_a_proj_with_mqa.bias", "80"},
        {"q_b_proj.weight", "288,32"},
        {"kv_a_proj_with_mqa.weight", "80,96"},
        {"kv_a_layernorm.weight", "64"},
        {"kv_b_proj.weight", "384,64"},
        {"self_attn.o_proj.weight", "96,192"}};
    std::ifstream old(from + "/tensors.tsv");
    for (std::string line; std::getline(old, line);) {
      const std::string name = line.substr(0, line.find('\t'));
      for (const auto& [end, shape] : shapes) {
        if (name.ends_with(end)) line = absl::StrCat(name, "\t", shape);
      }
      list << line << "\n";
    }
    list.close();
    EXPECT_TRUE(testing::WriteMadeFolder(lists.path(), 3, 0, folder.path()));
    const auto made = model::OpenCheckpoint(folder.path());
    EXPECT_TRUE(made.ok()) << made.status();
    GgufManifest manifest = older ? OlderManifest() : testing::ReadGgufManifest(from).value();
    const std::map<std::string_view, std::string> sizes = {
        {"attention.key_length", older ? "48" : "80"},
        {"attention.value_length", older ? "32" : "64"},
        {"attention.q_lora_rank", "32"},
        {"attention.kv_lora_rank", "64"},
        {"attention.key_length_mla", "48"},
        {"attention.value_length_mla", "32"}};
    for (GgufManifest::Key& key : manifest.keys) {
      const auto found = sizes.find(std::string_view(key.name).substr(key.name.find('.') + 1));
      if (found != sizes.end()) key.value = found->second;
    }
    testing::GgufBuilder file;
    AddKeys(manifest, file);
    std::set<std::string> used;
    for (const GgufManifest::Tensor& each : manifest.tensors) {
      auto tensor = testing::MakeTwinTensor(**made, manifest, each.name, used);
      EXPECT_FALSE(tensor.data.empty()) << each.name;
      if (each.name.find(".attn_") != std::string::npos && tensor.dims.size() > 1) {
        const std::vector<float> values = Decoded(tensor);
        tensor.type = model::GgmlType::kQ8_0;
        tensor.data = testing::EncodeTensor(tensor.type, values);
      }
      if (heads == Heads::kOlderF32 && each.name.find("attn_kv_b") != std::string::npos) {
        const std::vector<float> values = Decoded(tensor);
        tensor.type = model::GgmlType::kF32;
        tensor.data = testing::EncodeTensor(tensor.type, values);
      }
      file.AddTensor(each.name, tensor.dims, tensor.type, std::move(tensor.data));
    }
    return file.Build();
  }
};

TEST_F(QuantisedHeadsTest, EveryPathChunkAndBackendGivesTheSameBits) {
  const auto bytes = File();
  const auto file = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto spec = model::LoadSpec(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const Sequence whole = MakeSequence(70, spec->vocab, 1, 1);
  for (const Recipe recipe : {Recipe::kAccurate, Recipe::kFp32}) {
    std::vector<std::vector<float>> first;
    const auto run = [&](const std::string& what, kernels::Isa isa, const BackendMaker& make) {
      Machine machine(**file, *spec, recipe, kernels::KvFormat::kBf16, isa, 2, make);
      for (const std::size_t chunk : {whole.tokens.size(), std::size_t{1}, std::size_t{7}}) {
        const auto logits = RunAlone(machine, whole, chunk);
        if (first.empty()) first = logits;
        ExpectSameBits(first, logits, absl::StrCat(what, ", chunks of ", chunk));
      }
      for (const float logit : first.back()) ASSERT_TRUE(std::isfinite(logit));
    };
    for (const kernels::Isa isa : kernels::DetectIsas()) {
      run(std::string(kernels::GetOps(isa).name), isa, MakeCpuBackend);
    }
    run("deferred", kernels::Isa::kReference, testing::MakeDeferredBackends(/*seed=*/1, 1));
  }
}

// K of the heads is read along the other axis, and so in fp32.
TEST_F(QuantisedHeadsTest, OlderFilesMayHaveThemInOneMatrix) {
  std::vector<std::vector<float>> first;
  for (const Heads heads : {Heads::kOlderF32, Heads::kOlderQ8}) {
    const auto bytes = File(heads);
    const auto file = model::ParseCheckpoint(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto logits = Logits(**file, MakeSequence(40, 200, 1, 1).tokens);
    if (first.empty()) first = logits;
    ExpectSameBits(first, logits, "one matrix");
  }
}

// The KV memory of a token: the latent and the rotated part of K, once.
TEST(LatentTest, KeepsOneRecordForAllHeads) {
  const testing::TinyCase tiny = testing::ReadTinyCase(kCase);
  const auto spec = model::LoadSpec(*tiny.file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->attention().heads, 6u);
  const KvShape shape = KvShapeOf(*spec, kernels::KvFormat::kBf16, {0, 4}, 1);
  EXPECT_EQ(shape.bytes_per_block(), 4 * 16 * (48 + 16) * 2);
}

}  // namespace
}  // namespace flotilla::worker
