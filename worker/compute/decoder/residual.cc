#include "worker/compute/decoder/residual.h"

namespace flotilla::worker {

absl::StatusOr<ResidualPart> ResidualPart::Create(const WeightSource& weights, std::uint32_t layer,
                                                  ProjectionHandle projection,
                                                  model::TensorRole post_norm) {
  const model::LayerSpec& spec = weights.spec().layers[layer];
  ResidualPart part{.projection = projection, .norm = {}, .factor = spec.residual_factor};
  if (spec.norms_after) {
    const auto norm = weights.AddNorm(spec.norm, post_norm, std::nullopt, layer);
    if (!norm.ok()) return norm.status();
    part.norm = *norm;
  }
  return part;
}

void ResidualPart::Run(BufferHandle x, BufferHandle projected, BufferHandle residual,
                       Backend& backend) const {
  if (direct()) {
    backend.AddProjection(x, projection, residual);
    return;
  }
  backend.Project(x, projection, projected);
  Add(projected, residual, backend);
}

void ResidualPart::Add(BufferHandle sum, BufferHandle residual, Backend& backend) const {
  if (norm.has_value()) backend.NormInPlace(sum, *norm);
  backend.AddScaled(sum, factor, residual);
}

}  // namespace flotilla::worker
