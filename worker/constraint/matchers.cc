#include "worker/constraint/matchers.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace flotilla::worker {

absl::Span<const std::uint32_t> Matchers::Place::Mask() {
  if (mask_.empty()) {
    mask_.resize(grammar_->vocabulary().mask_words());
    any_ = matcher_.Fill(absl::MakeSpan(mask_));
  }
  return any_ ? absl::MakeConstSpan(mask_) : absl::Span<const std::uint32_t>();
}

std::size_t Matchers::Place::Common(absl::Span<const TokenId> tokens) const {
  const std::size_t most = std::min(tokens.size(), tokens_.size());
  return static_cast<std::size_t>(
      std::mismatch(tokens.begin(), tokens.begin() + most, tokens_.begin()).first - tokens.begin());
}

void Matchers::Place::Rollback(std::size_t length) {
  if (length == tokens_.size()) return;
  matcher_.Rollback(tokens_.size() - length);
  tokens_.resize(length);
  mask_.clear();
}

bool Matchers::Place::Accept(TokenId token) {
  if (!matcher_.Accept(token)) return false;
  tokens_.push_back(token);
  mask_.clear();
  return true;
}

std::size_t Matchers::Missing(SequenceHandle sequence, const Grammar& grammar,
                              absl::Span<const TokenId> outputs) const {
  const auto own = places_.find(sequence);
  if (own == places_.end() || own->second->grammar_.get() != &grammar) return SIZE_MAX;
  return outputs.size() - own->second->Common(outputs);
}

Matchers::Place& Matchers::Find(SequenceHandle sequence,
                                const std::shared_ptr<const Grammar>& grammar,
                                absl::Span<const TokenId> outputs) {
  const auto own = places_.find(sequence);
  const bool has_own = own != places_.end() && own->second->grammar_ == grammar;
  std::size_t common = has_own ? own->second->Common(outputs) : 0;
  if (has_own && common == own->second->tokens_.size()) return *own->second;
  const Place* best = nullptr;
  for (const auto& [other, place] : places_) {
    if (place->grammar_ != grammar || place->tokens_.size() <= common) continue;
    if (const std::size_t theirs = place->Common(outputs); theirs > common) {
      common = theirs;
      best = place.get();
    }
  }
  if (best == nullptr && has_own) {
    own->second->Rollback(common);
    return *own->second;
  }
  auto made = std::unique_ptr<Place>(best == nullptr ? new Place(grammar, GrammarMatcher(grammar))
                                                     : new Place(grammar, best->matcher_.Fork()));
  if (best != nullptr) {
    made->tokens_ = best->tokens_;
    made->Rollback(common);
  }
  if (own != places_.end()) Drop(own);
  while (places_.size() >= limits_.count) DropOldest();
  return *places_.emplace(sequence, std::move(made)).first->second;
}

absl::Status Matchers::FindRefusal(SequenceHandle sequence, const Grammar& grammar,
                                   absl::Span<const TokenId> outputs) {
  const auto found = refusals_.find(sequence);
  if (found == refusals_.end()) return absl::OkStatus();
  Refusal& refusal = found->second;
  const std::size_t count = refusal.tokens.size();
  if (refusal.grammar.get() == &grammar && count <= outputs.size() &&
      outputs.first(count) == absl::MakeConstSpan(refusal.tokens)) {
    refusal.used = step_;
    return refusal.why;
  }
  refusals_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<Matchers::Place*> Matchers::MoveTo(SequenceHandle sequence,
                                                  const std::shared_ptr<const Grammar>& grammar,
                                                  absl::Span<const TokenId> outputs) {
  if (absl::Status why = FindRefusal(sequence, *grammar, outputs); !why.ok()) return why;
  Place& place = Find(sequence, grammar, outputs);
  place.used_ = step_;
  bool fits = true, follows = true;
  // The size is asked for now and then, since a rebuilt matcher may accept many tokens.
  for (std::size_t i = place.tokens_.size(); i < outputs.size() && fits && follows; ++i) {
    follows = place.Accept(outputs[i]);
    if (i % 64 == 0) fits = place.matcher_.bytes() <= limits_.bytes_each;
  }
  bytes_ -= std::exchange(place.bytes_, place.matcher_.bytes());
  bytes_ += place.bytes_;
  const bool is_large = place.bytes_ > limits_.bytes_each;
  // If all together take too much, whoever has more than its part of that must go.
  fits = !is_large && (bytes_ <= limits_.bytes || place.bytes_ <= limits_.bytes / places_.size());
  if (follows && fits) return &place;
  const std::size_t length = place.tokens_.size();
  Drop(places_.find(sequence));
  if (!fits && !is_large) {
    return absl::ResourceExhaustedError("The grammars of all answers take too much memory");
  }
  absl::Status why =
      is_large
          ? absl::OutOfRangeError(
                absl::StrCat("The grammar takes too much memory after ", length, " tokens"))
          : absl::FailedPreconditionError(absl::StrCat("The grammar does not allow token ", length,
                                                       " of the answer, ", outputs[length]));
  const absl::Span<const TokenId> tokens = outputs.first(is_large ? length : length + 1);
  refusals_[sequence] = {
      .grammar = grammar, .tokens = {tokens.begin(), tokens.end()}, .why = why, .used = step_};
  return why;
}

void Matchers::Drop(Places::iterator place) {
  bytes_ -= place->second->bytes_;
  places_.erase(place);
}

void Matchers::DropOldest() {
  Drop(
      std::ranges::min_element(places_, {}, [](const auto& entry) { return entry.second->used_; }));
}

void Matchers::NextStep() {
  ++step_;
  if (step_ % 64 != 0) return;
  for (auto at = places_.begin(); at != places_.end();) {
    const auto place = at++;
    if (place->second->used_ + limits_.idle_steps < step_) Drop(place);
  }
  absl::erase_if(refusals_,
                 [&](const auto& entry) { return entry.second.used + limits_.idle_steps < step_; });
}

}  // namespace flotilla::worker
