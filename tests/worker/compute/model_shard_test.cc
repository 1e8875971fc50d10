#include "worker/compute/model_shard.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "tests/support/fused_folder.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::worker {
namespace {

// The parts of a model in a folder.
ModelParts PartsIn(const std::string& folder) {
  const auto file = model::OpenCheckpoint(folder);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto spec = model::LoadSpec(**file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return PartsOf(**file, *spec);
}

// The bytes of the tensors whose names contain one of these.
std::uint64_t BytesOf(const std::string& folder, const std::vector<std::string_view>& names) {
  std::uint64_t bytes = 0;
  const auto file = model::OpenCheckpoint(folder);
  EXPECT_TRUE(file.ok()) << file.status();
  for (const model::Tensor& tensor : (*file)->tensors()) {
    bytes += std::ranges::any_of(names,
                                 [&](std::string_view name) {
                                   return tensor.name.find(name) != std::string_view::npos;
                                 })
                 ? tensor.bytes()
                 : 0;
  }
  return bytes;
}

TEST(PartsOfTest, ATensorThatSeveralRowsHaveAPartOfCountsOnce) {
  const std::string folder = "tests/data/tiny/phi3";
  const ModelParts parts = PartsIn(folder);
  EXPECT_EQ(parts.attention_split_bytes,
            BytesOf(folder, {"qkv_proj", "o_proj"}) / parts.layers / parts.attention_splits);
  EXPECT_EQ(parts.ffn_split_bytes,
            BytesOf(folder, {"gate_up_proj", "down_proj"}) / parts.layers / parts.ffn_splits);
}

TEST(PartsOfTest, FusedExpertsHaveTheBytesOfATensorForEach) {
  for (const char* name : {"mixtral", "qwen3_moe", "deepseek_v3_mla"}) {
    SCOPED_TRACE(name);
    const std::string from = absl::StrCat("tests/data/tiny/", name);
    const testing::ScratchDirectory scratch;
    testing::WriteFusedFolder(from, scratch.path());
    EXPECT_GT(PartsIn(from).expert_split_bytes, 0u);
    EXPECT_EQ(PartsIn(scratch.path()), PartsIn(from));
  }
}

// K and V of a latent are parts of one tensor too.
TEST(PartsOfTest, TheTensorOfALatentCountsOnce) {
  const std::string folder = "tests/data/tiny/deepseek_v3_mla";
  const ModelParts parts = PartsIn(folder);
  EXPECT_EQ(parts.attention_split_bytes, BytesOf(folder, {"q_b_proj", "kv_b_proj", "o_proj"}) /
                                             parts.layers / parts.attention_splits);
}

}  // namespace
}  // namespace flotilla::worker
