#include "scheduler/core/beam_driver.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace flotilla::scheduler {

void BeamDriver::Advance(TableIndex index) {
  Request& request = state_.requests[index];
  const bool ready =
      std::all_of(request.sequences.begin(), request.sequences.end(), [this](TableIndex at) {
        const Sequence& sequence = state_.sequences[at];
        return !sequence.candidates.empty() || !sequence.dead_end.ok();
      });
  if (!ready) return;
  const std::vector<BeamSearch::Choice> choices = Choose(request);
  if (choices.empty() && request.beam->search.best().empty()) {
    const absl::Status why = state_.sequences[request.beam->ranked.front()].dead_end;
    state_.EndRequest(index, FinishReason::kError, why);
  } else if (choices.empty()) {
    Answer(index);
  } else {
    Follow(index, choices);
  }
}

std::vector<BeamSearch::Choice> BeamDriver::Choose(Request& request) {
  std::vector<BeamSearch::Beam> beams;
  for (const TableIndex at : request.beam->ranked) {
    const Sequence& sequence = state_.sequences[at];
    beams.push_back({.outputs = sequence.outputs, .candidates = sequence.candidates});
  }
  return request.beam->search.Step(beams);
}

SequenceIndex BeamDriver::FreeIndex(const Request& request) const {
  std::uint32_t index = 0;
  for (const TableIndex at : request.sequences) {  // by ascending index
    if (state_.sequences[at].index.value() != index) break;
    ++index;
  }
  return SequenceIndex(index);
}

Sequence BeamDriver::Child(const Sequence& parent, TableIndex parent_slot, const TopLogprob& token,
                           const BeamSearch& search) const {
  Sequence child;
  child.request = parent.request;
  child.tokens = parent.tokens;
  child.length.max = parent.length.max;
  child.constrained = parent.constrained;
  // Everything that the parent knows has run, since it gave candidates.
  child.fork = {.parent = parent_slot, .length = parent.length.computed};
  child.outputs = parent.outputs;
  child.tokens.push_back(token.token);
  child.outputs.push_back(search.Output(token, parent.candidates));
  return child;
}

void BeamDriver::Continue(Sequence& sequence, const TopLogprob& token, const BeamSearch& search) {
  sequence.tokens.push_back(token.token);
  sequence.outputs.push_back(search.Output(token, sequence.candidates));
  sequence.candidates.clear();
  sequence.prefill_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  sequence.state = SequenceState::kPrefill;
  state_.UpdateOutstanding(sequence);
}

void BeamDriver::Follow(TableIndex index, const std::vector<BeamSearch::Choice>& choices) {
  Request& request = state_.requests[index];
  state_.waiting.Charge(request.tenant, choices.size() * FairShare::kOutputCost);
  const BeamSearch& search = request.beam->search;
  const std::vector<TableIndex> before = std::exchange(request.beam->ranked, {});
  std::vector<std::optional<TopLogprob>> continues(before.size());
  std::vector<std::optional<Sequence>> children(choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const auto& [parent, token] = choices[i];
    if (!continues[parent].has_value()) {
      continues[parent] = token;
    } else {
      children[i] = Child(state_.sequences[before[parent]], before[parent], token, search);
    }
  }
  // Beams without children give their places and blocks to the others.
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!continues[i].has_value()) {
      state_.DropSequence(before[i]);
    } else {
      Continue(state_.sequences[before[i]], *continues[i], search);
    }
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (children[i].has_value()) {
      children[i]->index = FreeIndex(request);
      request.beam->ranked.push_back(state_.AddSequence(*std::move(children[i])));
    } else {
      request.beam->ranked.push_back(before[choices[i].parent]);
    }
  }
}

void BeamDriver::Answer(TableIndex index) {
  Request& request = state_.requests[index];
  const std::vector<BeamSearch::Hypothesis>& best = request.beam->search.best();
  for (std::uint32_t i = 0; i < request.answers; ++i) {
    if (request.beam->cancelled[i]) continue;
    request.beam->cancelled[i] = true;  // no more events of this answer follow
    if (i >= best.size()) {             // the constraint, or the model, allows no more answers
      state_.EmitSequenceEnd(request, SequenceIndex(i), FinishReason::kLength, 0);
      continue;
    }
    const BeamSearch::Hypothesis& hypothesis = best[i];
    const auto count = static_cast<std::uint32_t>(hypothesis.tokens.size());
    for (std::uint32_t at = 0; at < count; ++at) {
      state_.events.push_back(TokenEvent{.request = request.id,
                                         .attempt = request.attempt,
                                         .sequence = SequenceIndex(i),
                                         .position = at,
                                         .sampled = hypothesis.tokens[at]});
    }
    state_.counters.output_tokens += count;
    state_.EmitSequenceEnd(request, SequenceIndex(i),
                           hypothesis.stopped ? FinishReason::kStop : FinishReason::kLength, count,
                           hypothesis.score);
  }
  state_.EndRequest(index, request.reason, absl::OkStatus());
}

}  // namespace flotilla::scheduler
