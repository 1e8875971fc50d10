#include "worker/exec/numerics_id.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

TEST(NumericsId, DependsOnEachThatChangesBits) {
  const Numerics base = {.model_hash = 7, .constraint_engine = "1.0", .tokens = 90, .vocab = 96};
  std::vector<Numerics> all(10, base);
  all[1].model_hash = 8;
  all[2].recipe = Recipe::kFp32;
  all[3].recipe_version = base.recipe_version + 1;
  all[4].kv_format = kernels::KvFormat::kF32;
  all[5].constraint_engine = "1.1";
  all[6].tokens = 91;
  all[7].rope_context = 4096;
  all[8].cuda_is_unproven = true;
  all[9].nccl_is_unproven = true;
  // Scales of K and V count where K or V is FP8.
  const kernels::KvFormat keys = {kernels::KvType::kFp8, kernels::KvType::kInt8};
  const kernels::KvFormat values = {kernels::KvType::kInt8, kernels::KvType::kFp8};
  const std::vector<std::vector<model::KvScales>> scales = {
      {}, {{0.5f, 0}}, {{0.25f, 0}}, {{0, 0.5f}}, {{}, {0.5f, 0}}, {{}, {0, 0.5f}}};
  for (const kernels::KvFormat& format : {keys, values}) {
    for (const auto& each : scales) {
      all.push_back(base);
      all.back().kv_format = format;
      all.back().kv_scales = each;
    }
  }
  std::set<std::uint64_t> ids;
  for (const Numerics& one : all) {
    ids.insert(NumericsId(one));
    EXPECT_EQ(NumericsId(one), NumericsId(one));
  }
  // Of the scales four are those of K, and two those of V; in each format the others are as none.
  EXPECT_EQ(ids.size(), 10u + (1 + 3) + (1 + 2));
}

// Other ids would end answers that continue during an upgrade.
TEST(NumericsId, StaysTheSameAcrossVersions) {
  EXPECT_EQ(NumericsId({.model_hash = 7, .recipe_version = 4, .constraint_engine = "1.0"}),
            18171141630505504136u);
}

}  // namespace
}  // namespace flotilla::worker
