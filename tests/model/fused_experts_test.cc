// Experts whose gate and up are one tensor of a layer have the weights of the same files with a
// tensor for each.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "model/tensor_table.h"
#include "tests/support/fused_folder.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::model {
namespace {

// All that experts have, in the canonical order.
std::vector<float> ExpertWeights(const Checkpoint& file) {
  std::vector<float> all;
  const auto spec = LoadSpec(file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return all;
  for (const TensorRow& row : spec->tensors) {
    if (!IsPerExpert(row.role)) continue;
    const bool vector = row.rows == Extent::kOne;
    const uint64_t rows = SizeOf(vector ? row.columns : row.rows, *spec);
    const int64_t columns = vector ? 1 : static_cast<int64_t>(SizeOf(row.columns, *spec));
    for (uint32_t layer = 0; layer < spec->layers.size(); ++layer) {
      const auto& moe = spec->layers[layer].moe;
      for (uint32_t expert = 0; moe.has_value() && expert < moe->experts; ++expert) {
        const auto weight = FindWeight(file, *spec, row, layer, expert);
        EXPECT_TRUE(weight.ok()) << weight.status();
        std::vector<float> in_file(weight->elements());
        EXPECT_TRUE(DequantizeRow(weight->type, weight->data, in_file).ok());
        for (uint64_t i = 0; i < rows; ++i) {
          const auto begin = in_file.begin() + row.map.At(static_cast<int64_t>(i)) * columns;
          all.insert(all.end(), begin, begin + columns);
        }
      }
    }
  }
  return all;
}

TEST(FusedExpertsTest, FoldersHaveTheWeightsOfATensorForEach) {
  for (const char* name : {"mixtral", "qwen3_moe", "deepseek_v3_mla"}) {
    SCOPED_TRACE(name);
    const std::string from = absl::StrCat("tests/data/tiny/", name);
    const testing::ScratchDirectory scratch;
    testing::WriteFusedFolder(from, scratch.path());
    const auto each = OpenCheckpoint(from), fused = OpenCheckpoint(scratch.path());
    ASSERT_TRUE(each.ok() && fused.ok()) << fused.status();
    const std::vector<float> weights = ExpertWeights(**each);
    EXPECT_GT(weights.size(), 0u);
    EXPECT_EQ(ExpertWeights(**fused), weights);
  }
}

// Llama 4 and the experts of some models of images have the other axes.
TEST(FusedExpertsTest, OtherAxesAreRefusedByName) {
  const testing::ScratchDirectory scratch;
  testing::WriteFusedFolder("tests/data/tiny/mixtral", scratch.path(), /*turned=*/true);
  const auto file = OpenCheckpoint(scratch.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(LoadSpec(**file).status().message(),
              ::testing::HasSubstr("tensor model.layers.0.mlp.experts.gate_up_proj is [320, 64, 4, "
                                   "1], not [64, 320, 4, 1]"));
}

TEST(FusedExpertsTest, GgufFilesHaveTheWeightsOfATensorForEach) {
  // The last one has biases.
  for (const char* name : {"mixtral", "qwen3_moe", "deepseek_v3_mla", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const std::string from = absl::StrCat("tests/data/tiny/", name);
    const auto folder = OpenCheckpoint(from);
    const auto manifest = testing::ReadGgufManifest(from);
    ASSERT_TRUE(folder.ok() && manifest.has_value());
    auto other = *manifest;
    testing::FuseExperts(other);
    const auto bytes = testing::GgufTwin(**folder, *manifest);
    const auto fused_bytes = testing::GgufTwin(**folder, other);
    const auto each = ParseCheckpoint(bytes), fused = ParseCheckpoint(fused_bytes);
    ASSERT_TRUE(each.ok() && fused.ok()) << fused.status();
    const std::vector<float> weights = ExpertWeights(**each);
    EXPECT_GT(weights.size(), 0u);
    EXPECT_EQ(ExpertWeights(**fused), weights);
  }
}

}  // namespace
}  // namespace flotilla::model
