// BeamDriver: makes the choices of a beam search true in sequences and blocks.
//
// The beams of a request run in step with each other: when the candidates of all
// are in, BeamSearch chooses. The first child of a beam goes on in its sequence,
// further ones become pending sequences forked from it, and a beam without
// children is dropped. Part of applying results; one thread.
#pragma once

#include "scheduler/core/core_state.h"

namespace flotilla {

class BeamDriver {
 public:
  // `state` outlives the driver.
  explicit BeamDriver(CoreState& state) : state_(state) {}

  // Takes the next step of the request's search if all its beams are ready; ends
  // the request when that was the last.
  void Advance(TableIndex request);

 private:
  std::vector<BeamSearch::Choice> Choose(Request& request);
  void Follow(TableIndex request, const std::vector<BeamSearch::Choice>& choices);
  Sequence Child(const Sequence& parent, TableIndex parent_slot, const TopLogprob& token,
                 const BeamSearch& search) const;
  void Continue(Sequence& sequence, const TopLogprob& token, const BeamSearch& search);
  SequenceIndex FreeIndex(const Request& request) const;
  void Answer(TableIndex request);

  CoreState& state_;
};

}  // namespace flotilla
