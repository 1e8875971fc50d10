#include "model/kv_groups.h"

#include <algorithm>
#include <vector>

namespace flotilla::model {
namespace {

struct LayerKind {
  uint32_t window = 0;
  uint32_t layers = 0;
  uint32_t first_group = 0, groups = 0;
  uint32_t dealt = 0;
};

uint32_t WindowOf(const ModelSpec& spec, const LayerSpec& layer) {
  return layer.attention.window < spec.longest_context ? layer.attention.window : 0;
}

uint32_t GroupsOf(const std::vector<LayerKind>& kinds, uint32_t size) {
  uint32_t groups = 0;
  for (const LayerKind& kind : kinds) groups += (kind.layers + size - 1) / size;
  return groups;
}

LayerKind& FindKind(std::vector<LayerKind>& kinds, uint32_t window) {
  const auto found = std::ranges::find(kinds, window, &LayerKind::window);
  return found != kinds.end() ? *found : kinds.emplace_back(LayerKind{.window = window});
}

}  // namespace

void DealKvGroups(ModelSpec& spec) {
  std::vector<LayerKind> kinds;
  for (const LayerSpec& layer : spec.layers) ++FindKind(kinds, WindowOf(spec, layer)).layers;
  if (kinds.size() > kMostKvGroups) return KeepEveryPosition(spec);
  const auto layers = static_cast<uint32_t>(spec.layers.size());
  const auto unused = [&](uint32_t size) { return GroupsOf(kinds, size) * size - layers; };
  uint32_t size = std::ranges::max_element(kinds, {}, &LayerKind::layers)->layers;
  for (uint32_t smaller = size - 1; smaller > 0; --smaller) {
    if (GroupsOf(kinds, smaller) > kMostKvGroups) break;
    if (unused(smaller) < unused(size)) size = smaller;
  }
  spec.kv_groups.clear();
  for (LayerKind& kind : kinds) {
    kind.first_group = static_cast<uint32_t>(spec.kv_groups.size());
    kind.groups = (kind.layers + size - 1) / size;
    spec.kv_groups.resize(spec.kv_groups.size() + kind.groups, {.window = kind.window});
  }
  for (LayerSpec& layer : spec.layers) {
    LayerKind& kind = FindKind(kinds, WindowOf(spec, layer));
    layer.attention.kv_group = kind.first_group + kind.dealt++ % kind.groups;
  }
}

void KeepEveryPosition(ModelSpec& spec) {
  spec.kv_groups = {{}};
  for (LayerSpec& layer : spec.layers) layer.attention.kv_group = 0;
}

uint32_t LayersPerPage(const ModelSpec& spec, uint32_t begin, uint32_t end) {
  std::vector<uint32_t> layers(spec.kv_groups.size(), 0);
  for (uint32_t layer = begin; layer < end; ++layer) {
    ++layers[spec.layers[layer].attention.kv_group];
  }
  return std::ranges::max(layers);
}

}  // namespace flotilla::model
