#include "scheduler/core/beam_driver.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace flotilla {

void BeamDriver::Advance(Slot slot) {
  Request& request = state_.requests[slot];
  const bool ready = std::all_of(request.branches.begin(), request.branches.end(), [this](Slot at) {
    return !state_.branches[at].candidates.empty();
  });
  if (!ready) return;
  const std::vector<BeamSearch::Choice> choices = Choose(request);
  if (choices.empty()) {
    Answer(slot);
  } else {
    Follow(slot, choices);
  }
}

std::vector<BeamSearch::Choice> BeamDriver::Choose(Request& request) {
  std::vector<BeamSearch::Beam> beams;
  for (const Slot at : request.beam->ranked) {
    const Branch& branch = state_.branches[at];
    beams.push_back({.outputs = absl::MakeConstSpan(branch.tokens).subspan(request.prompt_tokens),
                     .logprobs = branch.logprobs,
                     .tops = branch.tops,
                     .candidates = branch.candidates});
  }
  return request.beam->search.Step(beams);
}

BranchIndex BeamDriver::FreeIndex(const Request& request) const {
  std::uint32_t index = 0;
  for (const Slot at : request.branches) {  // by ascending index
    if (state_.branches[at].index.value() != index) break;
    ++index;
  }
  return BranchIndex(index);
}

Branch BeamDriver::Child(const Branch& parent, Slot parent_slot, const TopLogprob& token,
                         const BeamSearch& search) const {
  Branch child;
  child.request = parent.request;
  child.tokens = parent.tokens;
  child.length.max = parent.length.max;
  // All that the parent knows has run: it gave candidates.
  child.fork = {.parent = parent_slot, .length = parent.length.lower};
  child.logprobs = parent.logprobs;
  child.tops = parent.tops;
  child.tokens.push_back(token.token);
  child.logprobs.push_back(token.logprob);
  if (search.keeps_alternatives()) child.tops.push_back(search.Alternatives(parent.candidates));
  return child;
}

void BeamDriver::Continue(Branch& branch, const TopLogprob& token, const BeamSearch& search) {
  branch.tokens.push_back(token.token);
  branch.logprobs.push_back(token.logprob);
  if (search.keeps_alternatives()) branch.tops.push_back(search.Alternatives(branch.candidates));
  branch.candidates.clear();
  branch.prefill_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  branch.state = BranchState::kPrefill;
  state_.UpdateOwed(branch);
}

void BeamDriver::Follow(Slot slot, const std::vector<BeamSearch::Choice>& choices) {
  Request& request = state_.requests[slot];
  state_.waiting.Charge(request.tenant, choices.size() * FairShare::kOutputCost);
  const BeamSearch& search = request.beam->search;
  const std::vector<Slot> before = std::exchange(request.beam->ranked, {});
  std::vector<std::optional<TopLogprob>> continues(before.size());
  std::vector<std::optional<Branch>> children(choices.size());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const auto& [parent, token] = choices[i];
    if (!continues[parent].has_value()) {
      continues[parent] = token;
    } else {
      children[i] = Child(state_.branches[before[parent]], before[parent], token, search);
    }
  }
  // Beams that nobody follows give their places and blocks to the others.
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!continues[i].has_value()) {
      state_.DropBranch(before[i]);
    } else {
      Continue(state_.branches[before[i]], *continues[i], search);
    }
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (children[i].has_value()) {
      children[i]->index = FreeIndex(request);
      request.beam->ranked.push_back(state_.AddBranch(*std::move(children[i])));
    } else {
      request.beam->ranked.push_back(before[choices[i].parent]);
    }
  }
}

void BeamDriver::Answer(Slot slot) {
  Request& request = state_.requests[slot];
  const std::vector<BeamSearch::Sequence>& best = request.beam->search.best();
  for (std::uint32_t i = 0; i < request.answers; ++i) {
    if (request.beam->cancelled[i]) continue;
    request.beam->cancelled[i] = true;  // nothing more of it follows
    if (i >= best.size()) {             // only where the model rules out almost every token
      state_.EmitBranchEnd(request, BranchIndex(i), FinishReason::kStop, 0);
      continue;
    }
    const BeamSearch::Sequence& sequence = best[i];
    const auto count = static_cast<std::uint32_t>(sequence.tokens.size());
    for (std::uint32_t at = 0; at < count; ++at) {
      state_.events.push_back(
          TokenEvent{.request = request.id,
                     .attempt = request.attempt,
                     .branch = BranchIndex(i),
                     .position = at,
                     .token = sequence.tokens[at],
                     .logprob = sequence.logprobs[at],
                     .top = sequence.tops.empty() ? std::vector<TopLogprob>{} : sequence.tops[at]});
    }
    state_.counters.output_tokens += count;
    state_.EmitBranchEnd(request, BranchIndex(i),
                         sequence.stopped ? FinishReason::kStop : FinishReason::kLength, count,
                         sequence.score);
  }
  state_.EndRequest(slot, request.reason, absl::OkStatus());
}

}  // namespace flotilla
