// BeamSearch: decides which beams go on and which are the answer, with the rules of HF
// generate (transformers 5, `_beam_search`).
//
// It is pure: log-probabilities go in, choices come out, and it knows no blocks or plans.
// Scores are fp32 sums in the order of the tokens, as in HF generate. A Request owns it;
// one thread.
//
//   BeamSearch search(options, stop_tokens, max_tokens);
//   std::vector<BeamSearch::Choice> next = search.Step(beams);  // until it is empty
//   for (const BeamSearch::Hypothesis& hypothesis : search.best()) ...
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/types/event.h"
#include "common/types/ids.h"
#include "common/types/request.h"

namespace flotilla::scheduler {

class BeamSearch {
 public:
  // `max_tokens` is at least 1, and `stop_tokens` are sorted. `keep_top` is the number of
  // alternatives that are kept per token, or LogprobSpec::kOff.
  BeamSearch(const BeamOptions& options, std::vector<TokenId> stop_tokens, std::uint32_t max_tokens,
             std::int32_t keep_top);

  std::uint32_t beams() const { return options_.beams; }
  // The number of best next tokens that Step needs from each beam. It has room for every
  // stop token of every beam, so that enough beams go on even if all of those are chosen.
  static std::uint32_t Candidates(const BeamOptions& options, std::size_t stop_tokens);
  // The number of candidates to ask of each beam, which also covers the alternatives that
  // are kept.
  std::uint32_t candidates() const;

  // A running beam, as its owner keeps it.
  struct Beam {
    absl::Span<const SampledToken> outputs;
    absl::Span<const TopLogprob> candidates;  // what may follow, best first; empty: nothing
  };
  // How a beam of the next step begins: beam `parent` of this step, followed by `token`.
  struct Choice {
    std::uint32_t parent = 0;
    TopLogprob token;
  };
  // Takes the running beams in their order and returns the next ones, best first: as many
  // as beams(), fewer if there are no more candidates, or none when the search is over. The first
  // step has one running beam with no outputs.
  std::vector<Choice> Step(absl::Span<const Beam> running);

  // A complete hypothesis.
  struct Hypothesis {
    std::vector<SampledToken> tokens;
    float score = 0;
    bool stopped = false;  // a stop token ended it; otherwise it is max_tokens long
  };
  // The best complete hypotheses, best first. When the search is over there are beams()
  // of them, or fewer if it ended early.
  const std::vector<Hypothesis>& best() const { return best_; }
  // `token`, which was chosen from `candidates`, with the alternatives that an answer lists.
  SampledToken Output(const TopLogprob& token, absl::Span<const TopLogprob> candidates) const;

 private:
  struct Ranked {
    std::uint32_t parent;
    TopLogprob token;
    float sum;
    bool ends;
  };

  std::vector<Ranked> Rank(absl::Span<const Beam> running, std::uint32_t length) const;
  void Complete(const Beam& beam, const Ranked& last, std::uint32_t length);
  bool Improvable(float best_sum, std::uint32_t length) const;
  float Penalty(std::uint32_t length) const;

  const BeamOptions options_;
  const std::vector<TokenId> stop_tokens_;
  const std::uint32_t max_tokens_;
  const std::int32_t keep_top_;
  std::vector<float> sums_{0.0f};  // of the running beams
  std::vector<Hypothesis> best_;
};

}  // namespace flotilla::scheduler
