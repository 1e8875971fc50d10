// BeamDriver: carries out the choices of a beam search on sequences and blocks.
//
// The beams of a request advance together: when the candidates of all beams are in,
// BeamSearch chooses. The first child of a beam continues in the beam's sequence, each
// further child becomes a pending sequence that forks from it, and a beam without children
// is dropped. A beam without candidates, since its constraint allows no token, has no children.
// ResultApplier uses the driver; one thread.
#pragma once

#include <vector>

#include "scheduler/core/core_state.h"

namespace flotilla::scheduler {

class BeamDriver {
 public:
  // `state` outlives the driver.
  explicit BeamDriver(CoreState& state) : state_(state) {}

  // Takes the next step of the request's search if all its beams are ready. Ends the
  // request if that was the last step, and refuses it if no beam has candidates and none is
  // complete.
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

}  // namespace flotilla::scheduler
