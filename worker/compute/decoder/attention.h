// The attention of one layer: residual += output(attention(rope(q, k), v)), q, k and v of the
// normed residual.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/spec.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/weight_source.h"

namespace flotilla::worker {

class AttentionPart {
 public:
  // Activations, which the attentions of all layers share.
  struct Buffers {
    BufferHandle normed;            // [hidden]
    BufferHandle qkv;               // q, k and v of this rank's heads
    BufferHandle attended;          // as q
    std::vector<RopeHandle> ropes;  // of the model
  };
  // Adds the buffers. `normed` is the decoder's.
  static Buffers AddBuffers(const WeightSource& weights, BufferHandle normed);

  // Adds the weights of layer `layer` of the model. Errors as for WeightSource.
  static absl::StatusOr<AttentionPart> Create(const WeightSource& weights, std::uint32_t layer,
                                              const Buffers& buffers);

  void Run(BufferHandle residual, Backend& backend) const;

 private:
  Buffers buffers_;
  AttentionOp op_;
  float norm_eps_ = 0;
  VectorHandle norm_;
  MatrixHandle qkv_;         // hidden -> (heads + 2 kv_heads) * head_dim
  ProjectionHandle output_;  // heads * head_dim -> hidden; splits: KV heads
};

}  // namespace flotilla::worker
