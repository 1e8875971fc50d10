// Decoder: the model's graph, written once, over the operations of a Backend: what one rank
// computes in a step, from token ids (or the residual of the stage before) to logits (or the
// residual for the next stage).
//
// It is a function of the spec and of the rank's shard. Each part of a layer is a file of this
// folder: it adds its weights when the model is loaded, and issues its operations in each step.
// The decoder knows no kernel, thread, device or address; nothing of this folder may include
// kernels/ or common/rt/.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/attention.h"
#include "worker/compute/decoder/experts.h"
#include "worker/compute/decoder/ffn.h"
#include "worker/compute/decoder/latent.h"
#include "worker/compute/model_shard.h"

namespace flotilla::worker {

class Decoder {
 public:
  // Whether this decoder can compute the model's graph. UNIMPLEMENTED names the part that it
  // cannot.
  static absl::Status Check(const model::ModelSpec& spec);

  // Adds weights and buffers of rank `rank` to the backend, and loads them. `shards` are those of
  // all ranks. The backend outlives the decoder; `file` outlives both, since token vectors stay in
  // it. UNIMPLEMENTED: the decoder or the backend cannot compute the model; other errors as for
  // Backend::Load.
  static absl::StatusOr<Decoder> Load(const model::Checkpoint& file, const model::ModelSpec& spec,
                                      absl::Span<const ModelShard> shards, ParallelShape shape,
                                      std::uint32_t rank, Backend& backend);

  // Starts a step. All ranks start the same steps, in the same order. Backend::Finish ends it.
  void Start(StepInputs inputs, RowReceiver* receiver) const;

  // Starts a step of the first `layers` layers only; the head follows the last of them. Works with
  // one stage only.
  void StartFirst(int layers, StepInputs inputs, RowReceiver* receiver) const;

  Backend& backend() const { return *backend_; }

 private:
  struct Layer {
    std::variant<AttentionPart, LatentPart> attention;
    std::variant<FfnPart, ExpertsPart> ffn;
    model::Wiring wiring;
  };

  Decoder() = default;

  Backend* backend_ = nullptr;
  bool first_stage_ = true, last_stage_ = true;
  BufferHandle residual_;  // [hidden]
  EmbeddingHandle embedding_;
  std::optional<NormOp> embedding_norm_;
  std::vector<Layer> layers_;  // the shard's
  NormOp output_norm_;
  HeadHandle head_;
};

}  // namespace flotilla::worker
