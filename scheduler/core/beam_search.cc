#include "scheduler/core/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace flotilla::scheduler {

BeamSearch::BeamSearch(const BeamOptions& options, std::vector<TokenId> stop_tokens,
                       std::uint32_t max_tokens, std::int32_t keep_top)
    : options_(options),
      stop_tokens_(std::move(stop_tokens)),
      max_tokens_(max_tokens),
      keep_top_(keep_top) {}

std::uint32_t BeamSearch::Candidates(const BeamOptions& options, std::size_t stop_tokens) {
  return options.beams * std::max<std::uint32_t>(2, 1 + static_cast<std::uint32_t>(stop_tokens));
}

std::uint32_t BeamSearch::candidates() const {
  return std::max(Candidates(options_, stop_tokens_.size()),
                  static_cast<std::uint32_t>(std::max(keep_top_, 0)));
}

float BeamSearch::Penalty(std::uint32_t length) const {
  return static_cast<float>(
      std::pow(static_cast<double>(length), static_cast<double>(options_.length_penalty)));
}

// The best continuations of all beams together, best first. `length` is the length of the
// continuations.
std::vector<BeamSearch::Ranked> BeamSearch::Rank(absl::Span<const Beam> running,
                                                 std::uint32_t length) const {
  std::vector<Ranked> all;
  for (std::uint32_t parent = 0; parent < running.size(); ++parent) {
    for (const TopLogprob& token : running[parent].candidates) {
      const bool stops = std::binary_search(stop_tokens_.begin(), stop_tokens_.end(), token.token);
      all.push_back({.parent = parent,
                     .token = token,
                     .sum = sums_[parent] + token.logprob,
                     .ends = stops || length == max_tokens_});
    }
  }
  // The sort is stable: among ties, the better beam comes first, then the lower token id.
  std::stable_sort(all.begin(), all.end(),
                   [](const Ranked& a, const Ranked& b) { return a.sum > b.sum; });
  const std::size_t kept = Candidates(options_, stop_tokens_.size());
  if (all.size() > kept) all.resize(kept);
  return all;
}

void BeamSearch::Complete(const Beam& beam, const Ranked& last, std::uint32_t length) {
  const float score = last.sum / Penalty(length);
  // Among equal scores, the older hypothesis stays first.
  const auto at = std::upper_bound(best_.begin(), best_.end(), score,
                                   [](float s, const Hypothesis& b) { return s > b.score; });
  if (at == best_.end() && best_.size() == options_.beams) return;
  Hypothesis hypothesis{
      .tokens = {beam.outputs.begin(), beam.outputs.end()},
      .score = score,
      .stopped = std::binary_search(stop_tokens_.begin(), stop_tokens_.end(), last.token.token)};
  hypothesis.tokens.push_back(Output(last.token, beam.candidates));
  best_.insert(at, std::move(hypothesis));
  if (best_.size() > options_.beams) best_.pop_back();
}

SampledToken BeamSearch::Output(const TopLogprob& token,
                                absl::Span<const TopLogprob> candidates) const {
  const auto kept =
      candidates.subspan(0, static_cast<std::size_t>(std::max(keep_top_, 0)));  // or all there are
  return {token.token, token.logprob, {kept.begin(), kept.end()}};
}

// Whether a running beam can still become one of the best. `length` is the length of the
// running beams, and `best_sum` is the sum of the first of them.
bool BeamSearch::Improvable(float best_sum, std::uint32_t length) const {
  if (best_.size() < options_.beams) return true;
  const bool longest =
      options_.early_stopping == BeamOptions::EarlyStopping::kNever && options_.length_penalty > 0;
  return best_sum / Penalty(longest ? max_tokens_ : length) > best_.back().score;
}

std::vector<BeamSearch::Choice> BeamSearch::Step(absl::Span<const Beam> running) {
  const auto length = static_cast<std::uint32_t>(running[0].outputs.size()) + 1;
  const std::vector<Ranked> ranked = Rank(running, length);
  std::vector<Choice> next;
  std::vector<float> sums;
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const Ranked& candidate = ranked[i];
    if (candidate.ends) {
      // Beyond the first `beams` candidates, those that end are not used.
      if (i < options_.beams) Complete(running[candidate.parent], candidate, length);
    } else if (next.size() < options_.beams) {
      next.push_back({.parent = candidate.parent, .token = candidate.token});
      sums.push_back(candidate.sum);
    }
  }
  const bool full = best_.size() == options_.beams;
  const bool enough = full && options_.early_stopping == BeamOptions::EarlyStopping::kTrue;
  if (next.empty() || enough || !Improvable(sums[0], length)) return {};
  sums_ = std::move(sums);
  return next;
}

}  // namespace flotilla::scheduler
