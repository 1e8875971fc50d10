// The mixture of experts of one layer, in place of an FFN: residual += the sum, over the experts
// that a router chooses for the row, of weight * down(activation(gate(x)) * up(x)), x the normed
// residual. A shared expert, which every row has, is added last.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/residual.h"
#include "worker/compute/decoder/weight_source.h"

namespace flotilla::worker {

class ExpertsPart {
 public:
  // Activations, which the mixtures of all layers share.
  struct Buffers {
    BufferHandle routed;          // [hidden], the normed residual
    BufferHandle normed;          // [hidden]
    BufferHandle projected;       // [hidden], as ResidualPart wants it
    BufferHandle gate_up;         // this rank's columns of a row's experts, of gate and of up
    BufferHandle shared_gate_up;  // and of the shared expert
  };
  // Adds the buffers, if a layer has such a part. `normed` and `projected` are the decoder's.
  static Buffers AddBuffers(const WeightSource& weights, BufferHandle normed,
                            BufferHandle projected);

  // Adds the weights of layer `layer` of the model. Errors as for WeightSource.
  static absl::StatusOr<ExpertsPart> Create(const WeightSource& weights, std::uint32_t layer,
                                            const Buffers& buffers);

  // Reads the residual.
  void Begin(BufferHandle residual, Backend& backend) const;
  // Adds to it.
  void End(BufferHandle residual, Backend& backend) const;

 private:
  struct Shared {
    FfnOp op;
    bool scaled = false;  // by a logit of its own
    MatrixHandle gate_up;
    ProjectionHandle down;
  };
  static absl::StatusOr<Shared> AddShared(const WeightSource& weights, const model::MoeSpec& spec,
                                          std::uint32_t layer);

  Buffers buffers_;
  FfnOp op_;
  std::optional<NormOp> norm_;
  ExpertsHandle experts_;
  std::optional<Shared> shared_;
  ResidualPart end_;
};

}  // namespace flotilla::worker
