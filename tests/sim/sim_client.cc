#include "tests/sim/sim_client.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/random.h"

namespace flotilla::testing {

TokenId SimToken(std::uint64_t seed, std::uint32_t index) {
  // Every third sequence repeats itself, but for a token now and then.
  const std::uint64_t kind = MixBits(seed ^ 0x5eed);
  const bool odd_one = MixBits(seed + index) % 16 == 0;
  if (kind % 3 == 0 && !odd_one) index %= 2 + kind / 3 % 6;
  return static_cast<TokenId>(MixBits(seed ^ (std::uint64_t{index} << 32)) % kSimVocab);
}

float SimPromptLogprob(std::uint64_t seed, std::uint32_t index, TokenId token) {
  const std::uint64_t h = MixBits(seed + index * 77u + static_cast<std::uint64_t>(token));
  return -static_cast<float>(h % 4096) / 256;
}

std::vector<TopLogprob> SimCandidates(absl::Span<const TokenId> tokens, std::uint32_t count,
                                      bool constrained) {
  std::uint64_t hash = 0;
  for (const TokenId token : tokens) hash = MixBits(hash ^ static_cast<std::uint64_t>(token));
  if (constrained) {
    const bool dead_end = (hash >> 48) % 8 == 0;
    count = dead_end ? 0 : 1 + static_cast<std::uint32_t>(hash >> 16) % count;
  }
  std::vector<TopLogprob> candidates;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto token = static_cast<TokenId>((hash + 7 * i) % kSimVocab);  // 7 and 40 are coprime
    const float logprob = -static_cast<float>(hash % 64) / 64 - static_cast<float>(i) / 2;
    candidates.push_back({token, logprob});
  }
  return candidates;
}

namespace {

// Returns the score of a sequence of `length` tokens.
float Score(float sum, std::uint32_t length, const BeamOptions& options) {
  return sum / static_cast<float>(std::pow(static_cast<double>(length),
                                           static_cast<double>(options.length_penalty)));
}

// Returns all continuations of `running` by one token, the most likely first.
std::vector<SimBeam> Extend(const TokenizedRequest& request, const std::vector<SimBeam>& running) {
  const auto stops = static_cast<std::uint32_t>(request.stop.stop_tokens.size());
  const std::uint32_t count = request.beam->beams * std::max(2u, 1 + stops);
  const auto constrained = static_cast<bool>(request.sampling.constraint);
  std::vector<SimBeam> all;
  for (const SimBeam& beam : running) {
    std::vector<TokenId> known = request.prompt;
    known.insert(known.end(), beam.tokens.begin(), beam.tokens.end());
    for (const TopLogprob& next : SimCandidates(known, count, constrained)) {
      SimBeam& longer = all.emplace_back(beam);
      longer.tokens.push_back(next.token);
      longer.logprobs.push_back(next.logprob);
      longer.sum += next.logprob;
      longer.stopped = std::count(request.stop.stop_tokens.begin(), request.stop.stop_tokens.end(),
                                  next.token) > 0;
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const SimBeam& a, const SimBeam& b) { return a.sum > b.sum; });
  all.resize(std::min<std::size_t>(all.size(), count));
  return all;
}

// Runs beam search for one request alone, with tokens only. It is a second implementation of HF's
// rules, so that an error in the scheduler's implementation is seen.
std::vector<SimBeam> SearchAlone(const TokenizedRequest& request) {
  const BeamOptions& options = *request.beam;
  const std::uint32_t longest = request.stop.max_tokens;
  std::vector<SimBeam> running(1), done;
  for (std::uint32_t length = 1;; ++length) {
    const std::vector<SimBeam> all = Extend(request, running);
    running.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].stopped && length < longest) {
        if (running.size() < options.beams) running.push_back(all[i]);
      } else if (i < options.beams) {
        done.push_back(all[i]);
        done.back().score = Score(all[i].sum, length, options);
      }
    }
    std::stable_sort(done.begin(), done.end(),
                     [](const SimBeam& a, const SimBeam& b) { return a.score > b.score; });
    if (done.size() > options.beams) done.resize(options.beams);
    if (running.empty()) return done;
    if (done.size() < options.beams) continue;
    if (options.early_stopping == BeamOptions::EarlyStopping::kTrue) return done;
    const bool never = options.early_stopping == BeamOptions::EarlyStopping::kNever;
    const std::uint32_t at = never && options.length_penalty > 0 ? longest : length;
    if (Score(running[0].sum, at, options) <= done.back().score) return done;
  }
}

}  // namespace

SimClient::SimClient(TokenizedRequest request)
    : request_(std::move(request)),
      sequences_(request_.sequences),
      reported_crashes_(request_.crash_count) {
  for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
    sequences_[i].seed = SequenceSeed(request_.sampling.seed, SequenceIndex(i));
    if (request_.output_prefix.empty()) continue;
    sequences_[i].delivered = static_cast<std::uint32_t>(request_.output_prefix[i].size());
    sequences_[i].prefixed = true;
  }
  if (request_.beam.has_value() && request_.stop.max_tokens > 0) {
    beams_ = SearchAlone(request_);
    no_answer_ = beams_.empty();
    // Under a constraint there may be fewer answers. Those that are missing are empty.
    beams_.resize(std::max(beams_.size(), sequences_.size()));
  }
}

TokenId SimClient::TokenAt(SequenceIndex sequence, std::uint32_t position) const {
  const auto prompt = static_cast<std::uint32_t>(request_.prompt.size());
  if (position < prompt) return request_.prompt[position];
  return SimToken(SequenceSeed(request_.sampling.seed, sequence), position - prompt);
}

std::uint32_t SimClient::Cancel(std::optional<SequenceIndex> index, std::uint32_t dropped) {
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
    if (!index || index->value() == i) most = std::max(most, sequences_[i].delivered);
  }
  const std::uint32_t keep = most - std::min(dropped, most);
  for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].reason || (index && index->value() != i)) continue;
    sequences_[i].cancelled_keep = std::min(keep, sequences_[i].delivered);
  }
  return keep;
}

bool SimClient::PromptComplete() const {
  return request_.logprobs.prompt_top == LogprobSpec::kOff ||
         prompt_next_ == request_.prompt.size() ||
         std::any_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& b) { return b.prefixed; });
}

bool SimClient::AllEnded() const {
  return std::all_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& b) { return b.reason.has_value(); });
}

absl::Status SimClient::Wrong(const char* what) const {
  std::string delivered;
  for (const Sequence& sequence : sequences_) absl::StrAppend(&delivered, " ", sequence.delivered);
  return absl::InternalError(
      absl::StrCat("request ", request_.id.counter, ": ", what, "; tokens delivered:", delivered));
}

absl::Status SimClient::Take(const EngineEvent& event, std::int64_t now_ns) {
  now_ns_ = now_ns;
  if (ended_) return Wrong("an event after the end");
  if (EventKey(event).second != request_.attempt) return Wrong("another attempt");
  return std::visit([this](const auto& e) { return On(e); }, event);
}

absl::Status SimClient::On(const Accepted&) {
  if (accepted_) return Wrong("accepted twice");
  accepted_ = true;
  return absl::OkStatus();
}

absl::Status SimClient::On(const PromptLogprobs& event) {
  if (!accepted_ || AllEnded()) return Wrong("prompt log-probabilities out of order");
  if (request_.logprobs.prompt_top == LogprobSpec::kOff) return Wrong("unwanted log-probabilities");
  if (event.first != prompt_next_) return Wrong("prompt log-probabilities not contiguous");
  for (const SampledToken& scored : event.tokens) {
    if (prompt_next_ >= request_.prompt.size()) return Wrong("too many log-probabilities");
    const TokenId token = request_.prompt[prompt_next_];
    if (scored.token != token ||
        scored.logprob != SimPromptLogprob(request_.sampling.seed, prompt_next_, token)) {
      return Wrong("a wrong log-probability");
    }
    ++prompt_next_;
  }
  return absl::OkStatus();
}

absl::Status SimClient::On(const TokenEvent& event) {
  if (event.sequence.value() >= sequences_.size()) return Wrong("a sequence that it has not");
  Sequence& sequence = sequences_[event.sequence.value()];
  if (!accepted_ || sequence.reason) return Wrong("a token out of order");
  if (event.position != sequence.delivered) return Wrong("a token's position");
  if (!PromptComplete()) return Wrong("a token before the prompt's log-probabilities");
  ++sequence.delivered;
  first_token_ = true;
  if (!request_.beam.has_value()) {
    return event.sampled.token == SimToken(sequence.seed, event.position) ? absl::OkStatus()
                                                                          : Wrong("a wrong token");
  }
  const SimBeam& best = beams_[event.sequence.value()];
  if (event.position >= best.tokens.size() || event.sampled.token != best.tokens[event.position] ||
      event.sampled.logprob != best.logprobs[event.position]) {
    return Wrong("a wrong token of a beam");
  }
  return absl::OkStatus();
}

absl::Status SimClient::CheckReason(const Sequence& sequence, FinishReason reason) const {
  const auto& stops = request_.stop.stop_tokens;
  const auto stops_at = [&](std::uint32_t index) {
    return std::binary_search(stops.begin(), stops.end(), SimToken(sequence.seed, index));
  };
  const bool complete = PromptComplete();
  const bool beam = request_.beam.has_value();
  for (std::uint32_t i = 0; !beam && i + 1 < sequence.delivered; ++i) {
    if (stops_at(i)) return Wrong("went on after a stop token");
  }
  switch (reason) {
    case FinishReason::kStop:
      if (!beam && (sequence.delivered == 0 || !stops_at(sequence.delivered - 1))) {
        return Wrong("no stop token");
      }
      return complete ? absl::OkStatus() : Wrong("prompt log-probabilities are missing");
    case FinishReason::kLength:
      if (!beam && sequence.delivered != request_.stop.max_tokens) {
        return Wrong("not at its length");
      }
      if (!beam && sequence.delivered > 0 && stops_at(sequence.delivered - 1)) {
        return Wrong("a stop token ended by length");
      }
      return complete ? absl::OkStatus() : Wrong("prompt log-probabilities are missing");
    case FinishReason::kCancelled:
      return sequence.cancelled_keep ? absl::OkStatus() : Wrong("cancelled by nobody");
    case FinishReason::kDeadline:
      if (!request_.deadline_ns) return Wrong("it has no deadline");
      // A request that cannot meet its deadline may end before it, but never one that is complete.
      return *request_.deadline_ns <= now_ns_ ||
                     sequence.delivered < std::max(request_.stop.max_tokens, 1u)
                 ? absl::OkStatus()
                 : Wrong("complete, but ended for its deadline");
    case FinishReason::kError:  // a new group is too small for it
      return absl::OkStatus();
    case FinishReason::kMoved:
      break;
  }
  return Wrong("an ending that cannot be");
}

absl::Status SimClient::CheckBeamEnd(const SequenceEnd& event) const {
  if (event.reason != FinishReason::kStop && event.reason != FinishReason::kLength) {
    return event.output_tokens == 0 ? absl::OkStatus() : Wrong("tokens of a search not ended");
  }
  if (no_answer_) return Wrong("the end of a search that has no answer");
  const SimBeam& best = beams_[event.sequence.value()];
  if (event.output_tokens != best.tokens.size() || event.score != best.score ||
      best.stopped != (event.reason == FinishReason::kStop)) {
    return Wrong("the end of a beam");
  }
  return absl::OkStatus();
}

absl::Status SimClient::On(const CrashCount& event) {
  if (!accepted_ || AllEnded()) return Wrong("a death out of order");
  if (event.count == 0 && reported_crashes_ > 0) {  // its fatal rows have run
    reported_crashes_ = 0;
    return absl::OkStatus();
  }
  const bool counted = event.count == ++reported_crashes_ && reported_crashes_ <= Crashes();
  return counted ? absl::OkStatus() : Wrong("crashes are counted wrong");
}

absl::Status SimClient::On(const SequenceEnd& event) {
  if (event.sequence.value() >= sequences_.size()) return Wrong("the end of a sequence it has not");
  Sequence& sequence = sequences_[event.sequence.value()];
  if (!accepted_ || sequence.reason) return Wrong("a sequence end out of order");
  if (absl::Status s = CheckReason(sequence, event.reason); !s.ok()) return s;
  if (request_.beam.has_value()) {
    if (absl::Status s = CheckBeamEnd(event); !s.ok()) return s;
  }
  sequence.kept = event.output_tokens;
  const bool cancelled = event.reason == FinishReason::kCancelled;
  if (sequence.kept != (cancelled ? *sequence.cancelled_keep : sequence.delivered)) {
    return Wrong("the number of tokens kept");
  }
  sequence.reason = event.reason;
  return absl::OkStatus();
}

absl::Status SimClient::On(const RequestEnd& event) {
  ended_ = true;
  status_ = event.status;
  if (!accepted_) {
    if (event.status.ok()) return Wrong("refused without a reason");
    const bool busy = absl::IsResourceExhausted(event.status) || absl::IsUnavailable(event.status);
    return busy && request_.attempt > Attempt(0) ? Wrong("a replay was refused for its time")
                                                 : absl::OkStatus();
  }
  if (!AllEnded()) return Wrong("ended before its sequences");
  const bool prompt_rows = request_.logprobs.prompt_top != LogprobSpec::kOff;
  if (event.usage.cached_tokens >= request_.prompt.size() + request_.stop.max_tokens ||
      (prompt_rows && event.usage.cached_tokens > 0 && request_.prompt.size() > 1 &&
       prompt_next_ == 1)) {
    return Wrong("cached tokens");
  }
  std::uint32_t kept = 0;
  absl::StatusCode wanted = absl::StatusCode::kOk;
  for (const Sequence& sequence : sequences_) {
    kept += sequence.kept;
    if (*sequence.reason == FinishReason::kDeadline) wanted = absl::StatusCode::kDeadlineExceeded;
    if (*sequence.reason == FinishReason::kError) {
      wanted = MayBeFailed() && absl::IsInternal(event.status) ? absl::StatusCode::kInternal
               : no_answer_ && absl::IsInvalidArgument(event.status)
                   ? absl::StatusCode::kInvalidArgument
                   : absl::StatusCode::kResourceExhausted;
    }
  }
  if (event.usage.output_tokens != kept || event.usage.prompt_tokens != request_.prompt.size()) {
    return Wrong("usage");
  }
  return event.status.code() == wanted ? absl::OkStatus() : Wrong("the status of the end");
}

}  // namespace flotilla::testing
