// The attention of one layer: residual += output(attention(rope(q, k), v)), q, k and v of the
// normed residual.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "model/spec.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/residual.h"
#include "worker/compute/decoder/weight_source.h"

namespace flotilla::worker {

class AttentionPart {
 public:
  // Activations, which the attentions of all layers share.
  struct Buffers {
    BufferHandle normed;            // [hidden]
    BufferHandle projected;         // [hidden], as ResidualPart wants it
    BufferHandle qkv;               // q, k and v of this rank's heads
    BufferHandle attended;          // as the output's splits are laid out
    std::vector<RopeHandle> ropes;  // of the model
  };
  // Adds the buffers. `normed` and `projected` are the decoder's.
  static Buffers AddBuffers(const WeightSource& weights, BufferHandle normed,
                            BufferHandle projected);

  // Adds the weights of layer `layer` of the model. Errors as for WeightSource.
  static absl::StatusOr<AttentionPart> Create(const WeightSource& weights, std::uint32_t layer,
                                              const Buffers& buffers);

  // Reads the residual.
  void Begin(BufferHandle residual, Backend& backend) const;
  // Adds to it.
  void End(BufferHandle residual, Backend& backend) const;

 private:
  Buffers buffers_;
  AttentionOp op_;
  std::optional<NormOp> norm_;
  MatrixHandle qkv_;     // hidden -> q, k, v
  ResidualPart output_;  // heads * value_dim -> hidden; splits: those of attention
};

}  // namespace flotilla::worker
