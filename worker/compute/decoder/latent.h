// The latent attention of one layer (model::LatentSpec): residual += output(attention). What it
// keeps of a token is one latent, whatever the number of heads; queries are multiplied into its
// space, and results out of it, in prefill and decode alike.
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

class LatentPart {
 public:
  // Activations, which the attentions of all layers share. Widths are those of LatentWidths.
  struct Buffers {
    BufferHandle normed;      // [hidden]
    BufferHandle projected;   // [hidden], as ResidualPart wants it
    BufferHandle query_down;  // [query_rank] what queries are made of; not valid: the residual
    BufferHandle query_in;    // the same, normed
    BufferHandle queries;     // of this rank's heads
    BufferHandle latent;      // the latent, and the rotated part of K
    BufferHandle qkv;         // queries in the space of the latent, and K
    BufferHandle latents;     // the results of this rank's heads, in that space
    BufferHandle attended;    // as the output's splits are laid out
    std::vector<RopeHandle> ropes;  // of the model
  };
  // Adds the buffers. `normed` and `projected` are the decoder's.
  static Buffers AddBuffers(const WeightSource& weights, BufferHandle normed,
                            BufferHandle projected);

  // Adds the weights of layer `layer` of the model. Errors as for WeightSource.
  static absl::StatusOr<LatentPart> Create(const WeightSource& weights, std::uint32_t layer,
                                           const Buffers& buffers);

  // Reads the residual.
  void Begin(BufferHandle residual, Backend& backend) const;
  // Adds to it.
  void End(BufferHandle residual, Backend& backend) const;

 private:
  Buffers buffers_;
  AttentionOp op_;
  LatentOp latent_op_;
  NormOp norm_;
  std::optional<MatrixHandle> query_down_;
  NormOp query_norm_;
  MatrixHandle query_;         // to the queries
  MatrixHandle latent_;        // hidden -> the latent, and the rotated part of K
  HeadMatricesHandle values_;  // from the latent to V
  std::vector<std::int32_t> value_places_;
  ResidualPart output_;  // heads * value_dim -> hidden; splits: those of attention
};

}  // namespace flotilla::worker
