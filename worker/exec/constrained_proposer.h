// ConstrainedProposer: another proposer, whose draft tokens end before the first one that a
// constraint does not allow. No row runs for such a token, which could not have been right.
//
// All ranks of a group have one and draft alike: they take turns with the sequences, and tell each
// other as step metadata what they have found. It is not for pipelines, where the ranks that know
// the grammars are busy with other steps when a step begins.
#pragma once

#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "worker/comm/communicator.h"
#include "worker/core/proposer.h"
#include "worker/exec/constraint_room.h"

namespace flotilla::worker {

class ConstrainedProposer final : public Proposer {
 public:
  // `communicator` is null if the rank is alone. It and the room outlive this.
  ConstrainedProposer(std::unique_ptr<Proposer> proposer, ConstraintRoom& constraints,
                      Communicator* communicator)
      : proposer_(std::move(proposer)), constraints_(constraints), communicator_(communicator) {}

  // No other step metadata is on the way.
  void Propose(absl::Span<DraftRequest> requests) override;
  void Forget(SequenceHandle sequence) override { proposer_->Forget(sequence); }

 private:
  const std::unique_ptr<Proposer> proposer_;
  ConstraintRoom& constraints_;
  Communicator* const communicator_;
};

}  // namespace flotilla::worker
