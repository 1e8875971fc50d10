// The tensors that our rules make of each case are those that llama.cpp's converter makes of it:
// tests/data/*/gguf.tsv has their names, types, shapes and SHA-256.
#include "tests/support/gguf_twin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "model/ggml_type.h"
#include "model/load_spec.h"
#include "model/rope_frequencies.h"
#include "tests/support/tiny_case.h"

namespace flotilla::model {
namespace {

using testing::GgufManifest, testing::ReadGgufManifest;

std::string Sha256(const std::vector<std::byte>& bytes) {
  std::string digest(EVP_MD_size(EVP_sha256()), '\0');
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
             EVP_sha256(), nullptr);
  return absl::BytesToHexString(digest);
}

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

// The case itself has the long factors.
TEST(GgufTwinTest, ShortFactorsCountInTheFirstContext) {
  const auto tiny = testing::ReadTinyCase("made/phi3_longrope");
  const auto manifest = ReadGgufManifest("tests/data/made/phi3_longrope");
  ASSERT_TRUE(manifest.has_value());
  const auto bytes =
      testing::GgufTwin(*tiny.file, *manifest, {{"phi3.context_length", "uint32", "8"}});
  const auto file = ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto spec = LoadSpec(**file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<float> want = RopeFrequencies(16, 10000);
  const auto factors = tiny.file->configuration().Numbers("rope.scaling.short_factor");
  for (size_t i = 0; i < want.size(); ++i) want[i] /= static_cast<float>(factors->at(i));
  EXPECT_EQ(spec->ropes[0].frequencies, want);
}

}  // namespace
}  // namespace flotilla::model
