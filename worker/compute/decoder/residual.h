// How a part of a layer ends: residual += factor * norm(sum), where the norm and the factor may be
// missing. The sum is that of a projection, or another.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/weight_source.h"

namespace flotilla::worker {

struct ResidualPart {
  ProjectionHandle projection;
  std::optional<NormOp> norm;
  float factor = 1;

  // Adds norm and factor of layer `layer`. `post_norm` counts where the layer has norms after its
  // parts. A projection that is not valid: the sum is another.
  static absl::StatusOr<ResidualPart> Create(const WeightSource& weights, std::uint32_t layer,
                                             ProjectionHandle projection,
                                             model::TensorRole post_norm);

  // Whether the sums of the projection need a buffer of their own.
  static bool NeedsBuffer(const model::LayerSpec& layer) {
    return layer.norms_after || layer.residual_factor != 1;
  }

  // Whether the sum may be added to the residual at once.
  bool direct() const { return !norm.has_value() && factor == 1; }
  // residual += factor * norm(sum), which changes the sum.
  void Add(BufferHandle sum, BufferHandle residual, Backend& backend) const;
  // The whole end, with the sum of the projection of x. `projected` [hidden] is used if
  // NeedsBuffer.
  void Run(BufferHandle x, BufferHandle projected, BufferHandle residual, Backend& backend) const;
};

}  // namespace flotilla::worker
