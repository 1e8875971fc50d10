#include "model/kv_groups.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::model {
namespace {

using ::testing::ElementsAre;

// A model whose layers have these windows.
ModelSpec Dealt(const std::vector<uint32_t>& windows) {
  ModelSpec spec;
  spec.context_length = spec.longest_context = 8192;
  for (const uint32_t window : windows) {
    spec.layers.emplace_back().attention.window = window;
  }
  DealKvGroups(spec);
  return spec;
}

std::vector<uint32_t> Windows(const ModelSpec& spec) {
  std::vector<uint32_t> windows;
  for (const KvGroupSpec& group : spec.kv_groups) windows.push_back(group.window);
  return windows;
}

// `count` layers, of which each `nth` keeps all.
std::vector<uint32_t> Layers(uint32_t count, uint32_t nth, uint32_t window = 512) {
  std::vector<uint32_t> windows;
  for (uint32_t layer = 1; layer <= count; ++layer) {
    windows.push_back(layer % nth == 0 ? 0 : window);
  }
  return windows;
}

uint32_t Unused(const ModelSpec& spec) {
  const auto layers = static_cast<uint32_t>(spec.layers.size());
  return static_cast<uint32_t>(spec.kv_groups.size()) * LayersPerPage(spec, 0, layers) - layers;
}

TEST(KvGroups, AModelThatKeepsAllHasOneGroup) {
  const ModelSpec spec = Dealt(std::vector<uint32_t>(32, 0));
  EXPECT_THAT(Windows(spec), ElementsAre(0));
  EXPECT_EQ(LayersPerPage(spec, 0, 32), 32u);
}

TEST(KvGroups, AWindowAsLongAsTheContextIsNone) {
  EXPECT_THAT(Windows(Dealt({8192, 8192, 10000, 0})), ElementsAre(0));
  EXPECT_THAT(Windows(Dealt({8191, 8191})), ElementsAre(8191));
}

TEST(KvGroups, LayersOfTwoKindsHaveGroupsOfOneSize) {
  // Gemma 3 4B: 34 layers, each sixth keeps all.
  const ModelSpec gemma3 = Dealt(Layers(34, 6, 1024));
  EXPECT_THAT(Windows(gemma3), ElementsAre(1024, 1024, 1024, 1024, 1024, 1024, 0));
  EXPECT_EQ(LayersPerPage(gemma3, 0, 34), 5u);
  EXPECT_EQ(Unused(gemma3), 1u);
  // Gemma 2 and gpt-oss: every other one.
  const ModelSpec gpt_oss = Dealt(Layers(24, 2, 128));
  EXPECT_THAT(Windows(gpt_oss), ElementsAre(128, 0));
  EXPECT_EQ(Unused(gpt_oss), 0u);
}

TEST(KvGroups, NoSizeWastesLessAndNoneIsLarger) {
  for (uint32_t layers = 1; layers <= 64; ++layers) {
    for (uint32_t nth = 1; nth <= 8; ++nth) {
      const ModelSpec spec = Dealt(Layers(layers, nth));
      const uint32_t full = layers / nth, windows = layers - full;
      const uint32_t size = LayersPerPage(spec, 0, layers);
      ASSERT_LE(spec.kv_groups.size(), kMostKvGroups);
      for (uint32_t other = 1; other <= layers; ++other) {
        const uint32_t groups = (full + other - 1) / other + (windows + other - 1) / other;
        if (groups > kMostKvGroups) continue;
        const uint32_t unused = groups * other - layers;
        EXPECT_LE(Unused(spec), unused) << layers << " " << nth << " " << other;
        if (unused == Unused(spec) && (other <= full || other <= windows)) {
          EXPECT_GE(size, other) << layers << " " << nth;
        }
      }
    }
  }
}

TEST(KvGroups, StagesShareTheLayersOfEachGroupEvenly) {
  for (const uint32_t stages : {1u, 2u, 3u}) {
    const ModelSpec spec = Dealt(Layers(34, 6));
    for (uint32_t stage = 0; stage < stages; ++stage) {
      const uint32_t begin = 34 * stage / stages, end = 34 * (stage + 1) / stages;
      for (uint32_t layer = begin; layer < end; ++layer) {
        const AttentionSpec& attention = spec.layers[layer].attention;
        EXPECT_EQ(spec.kv_groups[attention.kv_group].window, attention.window);
      }
      EXPECT_LE(LayersPerPage(spec, begin, end), 5 / stages + 1);
    }
  }
}

TEST(KvGroups, TooManyKindsAreOneGroup) {
  std::vector<uint32_t> windows;
  for (uint32_t window = 1; window <= 9; ++window) windows.push_back(window);
  EXPECT_THAT(Windows(Dealt(windows)), ElementsAre(0));
}

}  // namespace
}  // namespace flotilla::model
