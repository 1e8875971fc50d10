// The tensors that our rules make of each case are those that llama.cpp's converter makes of it:
// tests/data/*/gguf.tsv has their names, types, shapes and SHA-256.
#include "tests/support/gguf_twin.h"

#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/ggml_type.h"
#include "model/load_spec.h"
#include "model/rope_frequencies.h"
#include "tests/support/sha256.h"
#include "tests/support/tiny_case.h"

namespace flotilla::model {
namespace {

using testing::GgufManifest, testing::ReadGgufManifest, testing::Sha256;

void ExpectTheConvertersTensors(const std::string& path, const GgufManifest& manifest) {
  const auto tiny = testing::ReadTinyCase(path);
  ASSERT_NE(tiny.file, nullptr);
  std::set<std::string> used;
  for (const GgufManifest::Tensor& want : manifest.tensors) {
    const auto tensor = testing::MakeTwinTensor(*tiny.file, manifest, want.name, used);
    ASSERT_FALSE(tensor.data.empty()) << want.name << " comes from nothing";
    EXPECT_EQ(GgmlTypeName(tensor.type), want.type) << want.name;
    EXPECT_EQ(tensor.dims, want.dims) << want.name;
    EXPECT_EQ(Sha256(tensor.data), want.sha256) << want.name;
  }
  for (const Tensor& tensor : tiny.file->tensors()) {
    EXPECT_TRUE(used.contains(std::string(tensor.name))) << tensor.name << " is lost";
  }
}

TEST(GgufTwinTest, HasTheConvertersTensors) {
  std::vector<std::string> unknown;
  for (const std::string& path : testing::AllTinyCases()) {
    SCOPED_TRACE(path);
    if (const auto manifest = ReadGgufManifest("tests/data/" + path)) {
      ExpectTheConvertersTensors(path, *manifest);
    } else if (path.starts_with("tiny/")) {
      unknown.push_back(path);
    }
  }
  EXPECT_THAT(unknown, ::testing::ElementsAre("tiny/gptj", "tiny/opt"));
}

// The twin of phi3_longrope, which has the long factors in use.
class LongRopeTest : public ::testing::Test {
 protected:
  std::vector<std::byte> Twin(const std::vector<GgufManifest::Key>& mended = {}) const {
    return testing::GgufTwin(*tiny_.file, manifest_, mended);
  }

  const testing::TinyCase tiny_ = testing::ReadTinyCase("made/phi3_longrope");
  GgufManifest manifest_ = ReadGgufManifest("tests/data/made/phi3_longrope").value();
};

TEST_F(LongRopeTest, UsesTheShortFactorsInTheFirstContext) {
  const auto bytes = Twin({{"phi3.context_length", "uint32", "8"}});
  const auto spec = LoadSpec(**ParseCheckpoint(bytes));
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<float> want = RopeFrequencies(16, 10000);
  const auto factors = tiny_.file->configuration().Numbers("rope.scaling.short_factor");
  for (size_t i = 0; i < want.size(); ++i) want[i] /= static_cast<float>(factors->at(i));
  EXPECT_EQ(spec->ropes[0].frequencies, want);
}

TEST_F(LongRopeTest, RefusesAFileThatLacksATensor) {
  std::erase_if(manifest_.tensors,
                [](const auto& tensor) { return tensor.name == "rope_factors_short.weight"; });
  const auto bytes = Twin();
  EXPECT_THAT(LoadSpec(**ParseCheckpoint(bytes)).status().message(),
              ::testing::HasSubstr("rope_factors_short.weight is missing"));
}

TEST_F(LongRopeTest, RefusesAFactorThatIsNoNumber) {
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    auto bytes = Twin();
    const auto file = *ParseCheckpoint(bytes);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + (file->FindTensor(name)->data.data() - bytes.data()), &nan,
                sizeof nan);
    EXPECT_THAT(LoadSpec(*file).status().message(), ::testing::HasSubstr(name));
  }
}

// A file without any bias is not one of a model that has none.
TEST(GgufTwinTest, BiasesOfGptOssAreNeeded) {
  const auto folder = OpenCheckpoint("tests/data/tiny/gpt_oss");
  const auto manifest = ReadGgufManifest("tests/data/tiny/gpt_oss");
  ASSERT_TRUE(folder.ok() && manifest.has_value());
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp",
                           "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    auto some = *manifest;
    const std::string bias = absl::StrCat(".", name, ".bias");
    std::erase_if(some.tensors, [&](const auto& tensor) { return tensor.name.ends_with(bias); });
    const auto bytes = testing::GgufTwin(**folder, some);
    EXPECT_EQ(LoadSpec(**ParseCheckpoint(bytes)).status().message(),
              absl::StrCat("tensor blk.0", bias, " is missing"));
  }
}

}  // namespace
}  // namespace flotilla::model
