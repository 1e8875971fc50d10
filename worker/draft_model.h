// DraftModel: drafts tokens with the model's own first layers, followed by its
// norm and head (an early exit). No weights and no KV memory of its own: the
// first layers' K and V of a sequence are those of the model, and those of draft tokens
// go where the model's own pass over the same rows then writes the same.
//
// A draft token costs a pass of a few layers and the head over one row per sequence. Each
// is drawn as the model's own token would be, with the same noise, since a draft
// that is nearly right then mostly draws the same token. Called on the executor's
// thread, between steps.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "worker/core/group_state.h"
#include "worker/core/proposer.h"
#include "worker/forward.h"

namespace flotilla {

class DraftModel final : public Proposer {
 public:
  // `forward` and `ops` are the rank's and outlive the draft. Its KV memory has
  // one group. 1 <= layers.
  DraftModel(int layers, Forward* forward, const kernels::Ops* ops)
      : layers_(layers), forward_(forward), ops_(ops) {}

  void Propose(absl::Span<DraftRequest> requests) override;
  // The model keeps no state of sequences.
  void Forget(SequenceHandle) override {}

 private:
  // One more draft token for each request that wants one and has none that failed.
  // Returns whether there was any.
  bool ProposeOne(absl::Span<DraftRequest> requests, std::uint32_t at);

  const int layers_;
  Forward* const forward_;
  const kernels::Ops* const ops_;
};

}  // namespace flotilla
