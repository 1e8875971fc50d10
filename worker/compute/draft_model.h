// DraftModel: drafts tokens with the model's own first layers, followed by its
// norm and head (an early exit). It has no weights and no KV memory of its own. It reads
// the K and V that the model's first layers have written for a sequence. It writes K and V
// of draft tokens to the places where the model's own pass over the same rows later writes
// the same values.
//
// A draft token costs a pass of a few layers and the head over one row per sequence. Each
// draft token is drawn with the same noise as the model's own token, so that nearly right logits
// mostly draw the same token. The executor's thread calls it between steps, while none is started
// and not finished, since each pass is a step of the backend.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"
#include "worker/compute/decoder/decoder.h"
#include "worker/core/proposer.h"

namespace flotilla::worker {

class DraftModel final : public Proposer {
 public:
  // `decoder` belongs to the rank. It and `ops`, which draw the tokens, outlive the DraftModel. The
  // rank's KV memory has one group. 1 <= layers. `tokens` is that of the spec.
  DraftModel(int layers, std::uint32_t tokens, const Decoder& decoder, const kernels::Ops& ops)
      : layers_(layers), tokens_(tokens), decoder_(decoder), ops_(ops) {}

  void Propose(absl::Span<DraftRequest> requests) override;
  // A DraftModel keeps no state of sequences.
  void Forget(SequenceHandle) override {}

 private:
  // Adds draft token number `at` to each request that allows so many and had no failure
  // before. Returns whether there was such a request.
  bool ProposeOne(absl::Span<DraftRequest> requests, std::uint32_t at);

  const int layers_;
  const std::uint32_t tokens_;
  const Decoder& decoder_;
  const kernels::Ops& ops_;
};

}  // namespace flotilla::worker
