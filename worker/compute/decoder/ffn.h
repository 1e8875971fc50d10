// The FFN of one layer: residual += down(silu(gate(x)) * up(x)), x the normed residual.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/weight_source.h"

namespace flotilla::worker {

class FfnPart {
 public:
  // Activations, which the FFNs of all layers share.
  struct Buffers {
    BufferHandle normed;   // [hidden]
    BufferHandle gate_up;  // [2 * this rank's columns]
  };
  // Adds the buffers. `normed` is the decoder's.
  static Buffers AddBuffers(const WeightSource& weights, BufferHandle normed);

  // Adds the weights of layer `layer` of the model. Errors as for WeightSource.
  static absl::StatusOr<FfnPart> Create(const WeightSource& weights, std::uint32_t layer,
                                        const Buffers& buffers);

  void Run(BufferHandle residual, Backend& backend) const;

 private:
  Buffers buffers_;
  float norm_eps_ = 0;
  VectorHandle norm_;
  MatrixHandle gate_up_;   // hidden -> 2 columns: gate, then up
  ProjectionHandle down_;  // columns -> hidden; splits: those of the FFN
};

}  // namespace flotilla::worker
