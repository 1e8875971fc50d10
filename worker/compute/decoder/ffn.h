// The FFN of one layer: residual += down(activation(gate(x)) * up(x)), x the normed residual.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/residual.h"
#include "worker/compute/decoder/weight_source.h"

namespace flotilla::worker {

class FfnPart {
 public:
  // Activations, which the FFNs of all layers share.
  struct Buffers {
    BufferHandle normed;     // [hidden]
    BufferHandle projected;  // [hidden], as ResidualPart wants it
    BufferHandle gate_up;    // this rank's columns, of gate and of up
  };
  // Adds the buffers, if a layer has such a part. `normed` and `projected` are the decoder's.
  static Buffers AddBuffers(const WeightSource& weights, BufferHandle normed,
                            BufferHandle projected);

  // Adds the weights of layer `layer` of the model. Errors as for WeightSource.
  static absl::StatusOr<FfnPart> Create(const WeightSource& weights, std::uint32_t layer,
                                        const Buffers& buffers);

  // The norm before the FFN, or the mixture, of a layer; none: it has none.
  static absl::StatusOr<std::optional<NormOp>> AddNorm(const WeightSource& weights,
                                                       std::uint32_t layer);
  // Adds a buffer for the outputs of gate and up of `count` FFNs.
  static BufferHandle AddGateUpBuffer(const WeightSource& weights, model::FfnKind kind,
                                      std::uint32_t count);

  // Reads the residual.
  void Begin(BufferHandle residual, Backend& backend) const;
  // Adds to it.
  void End(BufferHandle residual, Backend& backend) const;

 private:
  Buffers buffers_;
  FfnOp op_;
  std::optional<NormOp> norm_;
  MatrixHandle gate_up_;  // hidden -> gate, then up
  ResidualPart down_;     // columns -> hidden; splits: those of the FFN
};

}  // namespace flotilla::worker
