// The configuration of DeepSeek V2 and V3: what is read, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/made_weights.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_case.h"
#include "tests/support/with_kv_scales.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;
using UnorderedJson = nlohmann::json;

// The spec of a case of tests/data/made whose config.json has the changes, and whose file has the
// tensors besides.
absl::StatusOr<ModelSpec> Spec(const std::string& name, const UnorderedJson& changes,
                               const std::string& tensors = "",
                               const std::vector<KvScales>& scales = {}) {
  const std::string from = "tests/data/made/" + name;
  const testing::ScratchDirectory lists, folder;
  std::ifstream file(from + "/config.json");
  UnorderedJson config = UnorderedJson::parse(file);
  if (!changes.is_null()) config.merge_patch(changes);
  std::ofstream(lists.path() + "/config.json") << config.dump();
  std::filesystem::copy_file(from + "/tensors.tsv", lists.path() + "/tensors.tsv");
  std::ofstream(lists.path() + "/tensors.tsv", std::ios::app) << tensors;
  EXPECT_TRUE(testing::WriteMadeFolder(lists.path(), 1, 0, folder.path()));
  const auto checkpoint = OpenCheckpoint(folder.path());
  if (!checkpoint.ok()) return checkpoint.status();
  return LoadSpec(testing::WithKvScales(*checkpoint, scales));
}

std::string Refusal(const std::string& name, const UnorderedJson& changes) {
  return std::string(Spec(name, changes).status().message());
}

TEST(DeepSeekTest, ReadsTheParts) {
  const auto spec = Spec("deepseek_v3_mla", {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const AttentionSpec& attention = spec->attention();
  EXPECT_EQ(attention.splits(), 6u);
  EXPECT_EQ(attention.key_dim(), 96u);
  EXPECT_EQ(attention.latent->rank, 80u);
  EXPECT_EQ(attention.value_dim, 36u);
  const double yarn = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(attention.scale, yarn * yarn / std::sqrt(56.0), 1e-7);
  EXPECT_EQ(spec->ropes[0].magnitude, 1);
  EXPECT_FALSE(spec->layers[1].moe.has_value());
  ASSERT_TRUE(spec->layers[2].moe.has_value());
  const MoeSpec& moe = *spec->layers[2].moe;
  EXPECT_EQ(moe.scores, ExpertScores::kSigmoid);
  EXPECT_TRUE(moe.group_pairs);
  EXPECT_TRUE(moe.normalised);
  EXPECT_EQ(moe.shared.width, 72u);
}

// transformers divides the magnitude of the rotation by the scale of the scores.
TEST(DeepSeekTest, TwoScalesOfYarn) {
  const auto spec = Spec("deepseek_v3_mla", {{"rope_parameters", {{"mscale", 2.0}}}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const double log = 0.1 * std::log(4.0);
  EXPECT_NEAR(spec->ropes[0].magnitude, (2 * log + 1) / (log + 1), 1e-6);
  const auto one = Spec("deepseek_v3_mla", {{"rope_parameters", {{"mscale_all_dim", nullptr}}}});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_NEAR(one->ropes[0].magnitude, log + 1, 1e-6);
  EXPECT_NEAR(one->attention().scale, 1 / std::sqrt(56.0), 1e-7);
}

TEST(DeepSeekTest, LayersThatPredictFurtherTokensAreNotUsed) {
  const std::string more = "model.layers.4.eh_proj.weight\t96,192\n";
  const auto spec = Spec("deepseek_v3_mla", {}, more);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers.size(), 4u);
  EXPECT_THAT(Spec("deepseek_v3_mla", {{"num_nextn_predict_layers", 0}}, more).status().message(),
              HasSubstr("model.layers.4.eh_proj.weight has no meaning"));
  const std::vector<KvScales> scales = {{}, {0.5f, 0}, {}, {}, {0.5f, 0.5f}};
  const auto scaled = Spec("deepseek_v3_mla", {}, "", scales);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->kv_scales.size(), 4u);
  EXPECT_EQ(scaled->KvScalesOf(1), scales[1]);
  EXPECT_THAT(
      Spec("deepseek_v3_mla", {{"num_nextn_predict_layers", 0}}, "", scales).status().message(),
      HasSubstr("scales of K and V for layer 4, but the model has only 4 layers"));
}

TEST(DeepSeekTest, RefusalsNameTheProblem) {
  struct Row {
    UnorderedJson changes;
    std::string problem;
  };
  const std::vector<Row> of_both = {
      {{{"kv_lora_rank", 40}}, "kv_lora_rank = 40 is not a multiple of 16"},
      {{{"kv_lora_rank", 1 << 20}}, "kv_lora_rank = 1048576 is not in 16..4096"},
      {{{"q_lora_rank", 1 << 20}}, "q_lora_rank = 1048576 is not in 0..65536"},
      {{{"qk_rope_head_dim", 24}}, "qk_rope_head_dim = 24 is not a multiple of 16"},
      {{{"qk_nope_head_dim", 0}}, "qk_nope_head_dim = 0 is not in 1..512"},
      {{{"v_head_dim", 513}}, "v_head_dim = 513 is not in 1..512"},
      {{{"v_head_dim", 16}}, "kv_b_proj.weight is ["},
      {{{"num_key_value_heads", 3}}, "num_key_value_heads = 3 is not in 6..6"},
      {{{"n_group", 5}, {"topk_group", 1}}, "does not divide into 5 groups"},
      {{{"n_group", 0}}, "n_group = 0 is not in 1..256"},
      {{{"topk_group", 5}}, "topk_group = 5 is not in 1.."},
      {{{"topk_group", 1}, {"num_experts_per_tok", 5}}, "is more than the kept groups have"},
      {{{"first_k_dense_replace", 5}}, "first_k_dense_replace = 5 is not in 0..4"},
      {{{"n_shared_experts", 1 << 20}}, "n_shared_experts = 1048576 is not in"},
      {{{"moe_layer_freq", 2}}, "moe_layer_freq = 2 is not in 1..1"},
      {{{"topk_method", "best"}}, "topk_method = 'best' is not supported"},
      {{{"scoring_func", "tanh"}}, "scoring_func = 'tanh' is not supported"},
      {{{"routed_scaling_factor", -1}}, "routed_scaling_factor = -1 is not in"},
      {{{"rope_interleave", false}}, "rope_interleave = false is not supported"},
      {{{"rope_parameters", {{"mscale_all_dim", -1}}}}, "mscale_all_dim = -1 is not in"},
  };
  for (const char* name : {"deepseek_v2_mla", "deepseek_v3_mla"}) {
    for (const Row& row : of_both) EXPECT_THAT(Refusal(name, row.changes), HasSubstr(row.problem));
  }
  EXPECT_THAT(Refusal("deepseek_v2_mla", {{"norm_topk_prob", true}}),
              HasSubstr("norm_topk_prob is not supported in deepseek_v2"));
  EXPECT_THAT(Refusal("deepseek_v3_mla", {{"n_group", 12}, {"topk_group", 6}}),
              HasSubstr("n_group = 12 leaves one expert to a group"));
}

TEST(DeepSeekTest, RefusesGgufKeys) {
  const auto tiny = testing::ReadTinyCase("made/deepseek_v2_mla");
  const auto manifest = *testing::ReadGgufManifest("tests/data/made/deepseek_v2_mla");
  const auto refusal = [&](const std::string& key, const std::string& value) {
    const auto bytes = testing::GgufTwin(*tiny.file, manifest, {{key, "uint32", value}});
    return std::string(LoadSpec(**ParseCheckpoint(bytes)).status().message());
  };
  EXPECT_THAT(refusal("deepseek2.attention.key_length_mla", "16"),
              HasSubstr("deepseek2.attention.key_length_mla = 16 is not in 17..528"));
  EXPECT_THAT(refusal("deepseek2.expert_gating_func", "3"),
              HasSubstr("deepseek2.expert_gating_func = 3 is not in 1..2"));
  EXPECT_THAT(refusal("deepseek2.attention.value_length_mla", "16"),
              HasSubstr("attn_v_b.weight is [48, 20, 6, 1], not [48, 16, 6, 1]"));
  EXPECT_THAT(refusal("deepseek2.attention.head_count", "3"),
              HasSubstr("attn_q_b.weight is [40, 240, 1, 1], not [40, 120, 1, 1]"));
}

}  // namespace
}  // namespace flotilla::model
