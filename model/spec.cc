#include "model/spec.h"

#include <algorithm>
#include <cmath>

namespace flotilla::model {

// As in Hugging Face's build_alibi_tensor: powers of 2^(-8 / n), n the power of two that is not
// above `heads`; further heads get the odd powers of its square root. Only square roots and
// products, so that the bits are the same everywhere.
float AlibiSlope(uint32_t head, uint32_t heads) {
  uint32_t powers = 1;
  double base = 1.0 / 256, root = 1.0 / 16;
  for (; powers * 2 <= heads; powers *= 2) {
    base = std::sqrt(base);
    root = std::sqrt(root);
  }
  const bool further = head >= powers;
  const double factor = static_cast<float>(further ? root : base);
  double slope = factor;
  for (uint32_t i = further ? 2 * (head - powers) : head; i > 0; --i) slope *= factor;
  return static_cast<float>(slope);
}

const FfnSpec& LayerSpec::ffn_of(FfnKind kind) const {
  static constexpr FfnSpec kNone;
  if (kind == FfnKind::kDense) return moe.has_value() ? kNone : ffn;
  if (!moe.has_value()) return kNone;
  return kind == FfnKind::kExpert ? moe->expert : moe->shared;
}

const FfnSpec& ModelSpec::ffn(FfnKind kind) const {
  for (const LayerSpec& layer : layers) {
    if (layer.ffn_of(kind).width > 0) return layer.ffn_of(kind);
  }
  return layers.front().ffn_of(kind);
}

const MoeSpec* ModelSpec::moe() const {
  const auto layer =
      std::ranges::find_if(layers, [](const LayerSpec& each) { return each.moe.has_value(); });
  return layer == layers.end() ? nullptr : &*layer->moe;
}

uint32_t ModelSpec::ffn_splits() const {
  uint32_t fewest = UINT32_MAX;
  for (const FfnKind kind : kFfnKinds) {
    if (ffn(kind).width > 0) fewest = std::min(fewest, ffn(kind).splits());
  }
  return fewest;
}

uint32_t FfnSpec::split() const {
  constexpr uint32_t kLargest = 128, kSmallest = 32, kFewest = 4, kMost = 256;
  uint32_t split = kLargest;
  const auto count = [&] { return (width + split - 1) / split; };
  while (split > kSmallest && count() < kFewest) split /= 2;
  while (count() > kMost) split *= 2;
  return split;
}

}  // namespace flotilla::model
