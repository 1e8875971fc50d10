#include "router/core/fleet_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kRetryAfterMs = 1000;
// An owner that continues its request submits it at once. If this far longer time has passed, the
// request is no longer expected.
constexpr std::int64_t kMovedForNs = 10'000'000'000;
// The request stays known for this long after that. If its owner merely stood still and submits
// it late, it continues with the numerics id that it began with.
constexpr std::int64_t kKnownForNs = 600'000'000'000;
// The most replicas that a new request is offered to, if they refuse it for overload.
constexpr std::size_t kOffers = 2;

bool HasTokens(const TokenizedRequest& request) {
  return std::any_of(request.output_prefix.begin(), request.output_prefix.end(),
                     [](const std::vector<TokenId>& prefix) { return !prefix.empty(); });
}

// The most outputs that the request can have.
std::uint64_t MostOutputsOf(const TokenizedRequest& request) {
  const std::uint64_t width = request.beam ? request.beam->beams : request.sequences;
  return width * request.stop.max_tokens;
}

bool CancelledWhole(std::uint32_t sequences, const std::vector<CancelRequest>& cancels) {
  if (cancels.empty()) return false;
  std::vector<bool> cancelled(sequences);
  for (const CancelRequest& cancel : cancels) {
    if (!cancel.sequence.has_value()) return true;
    if (cancel.sequence->value() < sequences) cancelled[cancel.sequence->value()] = true;
  }
  return std::find(cancelled.begin(), cancelled.end(), false) == cancelled.end();
}

// The output tokens of a sequence that count if the request ends before it was sent.
std::uint32_t KeptTokens(const TokenizedRequest& request, const std::vector<CancelRequest>& cancels,
                         SequenceIndex sequence) {
  for (const CancelRequest& cancel : cancels) {
    if (cancel.sequence.value_or(sequence) == sequence) return cancel.keep_tokens;
  }
  return sequence.value() < request.output_prefix.size()
             ? static_cast<std::uint32_t>(request.output_prefix[sequence.value()].size())
             : 0;
}

bool IsOverload(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

}  // namespace

std::uint64_t FleetCore::Random() {
  // This is the output of SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t x = options_.seed + ++draws_ * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

int FleetCore::Tier(ReplicaId id, const Replica& replica, const Entry& entry) const {
  const bool serves =
      replica.attached && replica.usable && replica.model == entry.model && id != entry.taken_from;
  if (!serves ||
      std::find(entry.refused_by.begin(), entry.refused_by.end(), id) != entry.refused_by.end()) {
    return kUnusable;
  }
  if (entry.numerics_id != 0 && replica.description->numerics_id != entry.numerics_id) {
    return kUnusable;
  }
  // A replica that is about to end still takes requests that began elsewhere, so that they need
  // not wait.
  if (replica.leaving || replica.load.draining) {
    return entry.attempt > Attempt(0) ? kUnusable - 1 : kUnusable;
  }
  return replica.load.ready ? 0 : 1;
}

std::optional<FleetCore::Choice> FleetCore::Choose(const Entry& entry) {
  std::vector<ReplicaId> best;
  int tier = kUnusable - 1;
  for (const auto& [id, replica] : replicas_) {
    const int own = Tier(id, replica, entry);
    if (own > tier) continue;
    if (own < tier) best.clear();
    tier = own;
    best.push_back(id);
  }
  if (best.empty()) return std::nullopt;
  const TokenizedRequest& request = *entry.request;
  Choice choice;
  choice.chain = PrefixMap::ChainOf(request.prompt, request.tenant, request.cache_salt);
  const std::vector<PrefixMap::Overlap> overlaps = prefixes_.Find(choice.chain);
  std::vector<ReplicaChoice> choices;
  for (const ReplicaId id : best) {
    const Replica& replica = replicas_.at(id);
    ReplicaChoice& one = choices.emplace_back();
    one.outstanding_tokens = replica.outstanding.total();
    for (const PrefixMap::Overlap& overlap : overlaps) {
      if (overlap.replica == replica.incarnation) one.overlap_tokens = overlap.tokens;
    }
  }
  const std::size_t chosen = ChooseReplica(choices, Random());
  choice.replica = best[chosen];
  choice.overlap_tokens = choices[chosen].overlap_tokens;
  return choice;
}

bool FleetCore::Possible(const Entry& entry) const {
  return std::any_of(replicas_.begin(), replicas_.end(), [&](const auto& one) {
    const Replica& replica = one.second;
    // A replica that was never attached may serve anything.
    if (!replica.description.has_value()) return true;
    return replica.usable && replica.model == entry.model &&
           (entry.numerics_id == 0 || replica.description->numerics_id == entry.numerics_id);
  });
}

void FleetCore::SendTo(const Choice& choice, Entry& entry) {
  Replica& replica = replicas_.at(choice.replica);
  prefixes_.OnSent(choice.chain, replica.incarnation);
  entry.replica = choice.replica;
  entry.incarnation = replica.incarnation;
  entry.prefill = entry.request->prompt.size() - choice.overlap_tokens;
  // What the replica expects of the request is known once it is accepted. Until then it counts as
  // earlier requests did.
  entry.tokens = entry.prefill + MostOutputsOf(*entry.request) * expected_permille_ / 1000;
  replica.outstanding.OnSent(entry.tokens);
  ++replica.live;
  ++replica.requests;
  if (entry.attempt > Attempt(0) && entry.refused_by.empty()) {
    CountReplay(entry, entry.held_until_ns ? ReplayResult::kResumed : ReplayResult::kSent);
  }
  if (entry.held_until_ns.has_value()) {
    entry.held_until_ns.reset();
    --held_;
  }
  actions_.commands.emplace_back(choice.replica, *entry.request);
  for (const CancelRequest& cancel : entry.cancels) {
    actions_.commands.emplace_back(choice.replica, cancel);
  }
}

void FleetCore::LeaveReplica(Entry& entry) {
  if (!entry.replica.has_value()) return;
  Replica& replica = replicas_.at(*entry.replica);
  --replica.live;
  if (entry.incarnation == replica.incarnation) {
    entry.accepted ? replica.outstanding.OnDone(entry.tokens)
                   : replica.outstanding.OnNotServed(entry.tokens);
  }
  entry.replica.reset();
}

FleetCore::Requests::iterator FleetCore::Erase(Requests::iterator at) {
  LeaveReplica(at->second);
  if (at->second.held_until_ns.has_value()) --held_;
  return requests_.erase(at);
}

FleetCore::Requests::iterator FleetCore::EndWith(Requests::iterator at, absl::Status status) {
  const Entry& entry = at->second;
  actions_.events.emplace_back(entry.sink, RequestEnd{.request = at->first,
                                                      .attempt = entry.attempt,
                                                      .status = std::move(status),
                                                      .retry_after_ms = kRetryAfterMs,
                                                      .usage = {}});
  return Erase(at);
}

FleetCore::Requests::iterator FleetCore::EndHere(Requests::iterator at, FinishReason reason,
                                                 absl::Status status) {
  const Entry& entry = at->second;
  const RequestId& id = at->first;
  actions_.events.emplace_back(entry.sink, Accepted{id, entry.attempt});
  for (std::uint32_t i = 0; i < entry.sequences; ++i) {
    actions_.events.emplace_back(
        entry.sink,
        SequenceEnd{.request = id,
                    .attempt = entry.attempt,
                    .sequence = SequenceIndex(i),
                    .reason = reason,
                    .output_tokens = KeptTokens(*entry.request, entry.cancels, SequenceIndex(i))});
  }
  actions_.events.emplace_back(
      entry.sink, RequestEnd{.request = id, .attempt = entry.attempt, .status = std::move(status)});
  return Erase(at);
}

void FleetCore::CountReplay(const Entry& entry, ReplayResult result) {
  ++counters_.replays[HasTokens(*entry.request)][static_cast<std::size_t>(result)];
}

FleetCore::Requests::iterator FleetCore::Route(std::int64_t now_ns, Requests::iterator at) {
  Entry& entry = at->second;
  if (CancelledWhole(entry.sequences, entry.cancels)) return EndHere(at, FinishReason::kCancelled);
  if (const std::optional<Choice> choice = Choose(entry)) {
    SendTo(*choice, entry);
    return std::next(at);
  }
  if (entry.attempt == Attempt(0)) {
    if (entry.refusal.has_value()) {
      actions_.events.emplace_back(entry.sink, *std::move(entry.refusal));
      return Erase(at);
    }
    const bool any = !ReplicasOf(entry.model).empty();
    return EndWith(
        at, absl::UnavailableError(any ? "the schedulers are draining" : "no scheduler is there"));
  }
  if (!Possible(entry)) {
    CountReplay(entry, ReplayResult::kImpossible);
    return EndWith(at, absl::UnavailableError(
                           "the answer cannot continue: no known scheduler computes it with the "
                           "same bits"));
  }
  if (!entry.held_until_ns.has_value()) {
    entry.held_until_ns = now_ns + options_.hold_ns;
    ++held_;
  }
  entry.refused_by.clear();  // a replica that refused it now may take it later
  entry.taken_from.reset();  // and so may the one it was taken from, which has forgotten it then
  return std::next(at);
}

void FleetCore::Submit(std::int64_t now_ns, std::size_t model, TokenizedRequest request,
                       std::shared_ptr<EventSink> sink) {
  const RequestId id = request.id;
  const bool replay = request.attempt > Attempt(0);
  absl::Status refused = stopped_;
  if (refused.ok() && !replay && (draining_ || models_[model].draining)) {
    refused = absl::UnavailableError("the router is draining");
  }
  if (refused.ok() && requests_.contains(id)) {
    refused = absl::AlreadyExistsError("a request of this id is being served");
  }
  if (!refused.ok()) {
    actions_.events.emplace_back(std::move(sink), RequestEnd{.request = id,
                                                             .attempt = request.attempt,
                                                             .status = std::move(refused),
                                                             .retry_after_ms = kRetryAfterMs,
                                                             .usage = {}});
    return;
  }
  Entry entry;
  entry.attempt = request.attempt;
  entry.model = model;
  entry.sink = std::move(sink);
  entry.sequences = request.sequences;
  if (const auto moved = moved_.find(id); moved != moved_.end()) {
    if (HasTokens(request)) entry.numerics_id = moved->second.numerics_id;
    entry.taken_from = moved->second.from;
    entry.crash_count = request.crash_count = moved->second.crash_count;
    moved_.erase(moved);
  }
  entry.request = std::move(request);
  Route(now_ns, requests_.emplace(id, std::move(entry)).first);
}

void FleetCore::Cancel(const CancelRequest& cancel) {
  const auto at = requests_.find(cancel.request);
  if (at == requests_.end()) return;
  Entry& entry = at->second;
  if (!entry.accepted) entry.cancels.push_back(cancel);
  if (entry.replica.has_value()) {
    actions_.commands.emplace_back(*entry.replica, cancel);
  } else if (CancelledWhole(entry.sequences, entry.cancels)) {
    EndHere(at, FinishReason::kCancelled);
  }
}

bool FleetCore::TryElsewhere(std::int64_t now_ns, Requests::iterator at, const RequestEnd& end) {
  Entry& entry = at->second;
  if (entry.accepted || !stopped_.ok() || !IsOverload(end.status)) return false;
  entry.refused_by.push_back(*entry.replica);
  LeaveReplica(entry);
  if (!entry.refusal.has_value() || end.retry_after_ms < entry.refusal->retry_after_ms) {
    entry.refusal = end;
  }
  if (entry.attempt == Attempt(0) && absl::IsResourceExhausted(end.status) &&
      entry.refused_by.size() >= kOffers) {
    actions_.events.emplace_back(entry.sink, *std::move(entry.refusal));
    Erase(at);
    return true;
  }
  Route(now_ns, at);
  return true;
}

// From now on the request counts with the outputs that its replica expects.
void FleetCore::CountAccepted(const Accepted& accepted, Entry& entry, Replica& replica) {
  const std::uint64_t most = MostOutputsOf(*entry.request), sent = entry.tokens;
  if (accepted.expected_outputs > 0 && most > 0) {
    const std::uint64_t expected = std::min(accepted.expected_outputs, most);
    entry.tokens = entry.prefill + expected;
    expected_permille_ = (expected_permille_ * 15 + expected * 1000 / most) / 16;
  }
  if (entry.incarnation == replica.incarnation) replica.outstanding.OnAdmitted(sent, entry.tokens);
}

void FleetCore::OnEvents(std::int64_t now_ns, ReplicaId id, std::vector<EngineEvent> events) {
  Replica& replica = replicas_.at(id);
  for (EngineEvent& event : events) {
    const auto [request, attempt] = EventKey(event);
    const auto at = requests_.find(request);
    if (at == requests_.end() || at->second.attempt != attempt || at->second.replica != id) {
      continue;
    }
    Entry& entry = at->second;
    if (std::holds_alternative<Accepted>(event) && !std::exchange(entry.accepted, true)) {
      CountAccepted(std::get<Accepted>(event), entry, replica);
      entry.request.reset();
      entry.cancels.clear();
      entry.refused_by.clear();
      entry.refusal.reset();
      // From here on the answer comes from this replica.
      if (entry.numerics_id == 0 && replica.description.has_value()) {
        entry.numerics_id = replica.description->numerics_id;
      }
    }
    if (std::holds_alternative<TokenEvent>(event) && entry.incarnation == replica.incarnation) {
      const std::uint64_t done = std::min(entry.tokens, std::exchange(entry.prefill, 0) + 1);
      entry.tokens -= done;
      replica.outstanding.OnDone(done);
    }
    if (const auto* death = std::get_if<CrashCount>(&event)) {
      entry.crash_count = death->count;  // 0: its fatal rows have run
      // The death says more about the request if the next one, too, would be another machine's.
      if (death->count > 0 && entry.accepted && HasBetter(entry)) TakeBack(now_ns, at);
      continue;  // the owner needs no count, because this fleet is its only engine
    }
    if (const auto* end = std::get_if<SequenceEnd>(&event)) {
      entry.moved |= end->reason == FinishReason::kMoved;
    }
    const auto* end = std::get_if<RequestEnd>(&event);
    if (end != nullptr && TryElsewhere(now_ns, at, *end)) continue;
    const bool over = end != nullptr;
    actions_.events.emplace_back(entry.sink, std::move(event));
    if (!over) continue;
    if (entry.moved) {
      moved_[request] = {.model = entry.model,
                         .numerics_id = entry.numerics_id,
                         .until_ns = now_ns + kMovedForNs,
                         .crash_count = entry.crash_count};
    }
    Erase(at);
  }
}

void FleetCore::SendHeld(std::int64_t now_ns) {
  if (held_ == 0) return;
  for (auto at = requests_.begin(); at != requests_.end();) {
    at = at->second.held_until_ns.has_value() ? Route(now_ns, at) : std::next(at);
  }
}

bool FleetCore::AnyStuck() const {
  return std::any_of(replicas_.begin(), replicas_.end(), [](const auto& one) {
    return one.second.no_worker_since_ns.has_value() && one.second.live > 0;
  });
}

bool FleetCore::HasBetter(const Entry& entry) const {
  return std::any_of(replicas_.begin(), replicas_.end(), [&](const auto& one) {
    return one.first != entry.replica && Tier(one.first, one.second, entry) == 0;
  });
}

void FleetCore::TakeStuck(std::int64_t now_ns) {
  if (!AnyStuck() || !stopped_.ok()) return;
  for (auto at = requests_.begin(); at != requests_.end();) {
    const Entry& entry = at->second;
    const bool there = entry.replica.has_value() && entry.accepted;
    const std::optional<std::int64_t> since =
        there ? replicas_.at(*entry.replica).no_worker_since_ns : std::nullopt;
    const bool stuck = since.has_value() && now_ns - *since >= options_.move_after_ns;
    at = stuck && HasBetter(entry) ? TakeBack(now_ns, at) : std::next(at);
  }
}

// The owner receives the same events as from a replica that gives the request back.
FleetCore::Requests::iterator FleetCore::TakeBack(std::int64_t now_ns, Requests::iterator at) {
  const Entry& entry = at->second;
  const RequestId& id = at->first;
  actions_.commands.emplace_back(*entry.replica, CancelRequest{.request = id});
  for (std::uint32_t i = 0; i < entry.sequences; ++i) {
    actions_.events.emplace_back(entry.sink, SequenceEnd{.request = id,
                                                         .attempt = entry.attempt,
                                                         .sequence = SequenceIndex(i),
                                                         .reason = FinishReason::kMoved});
  }
  moved_[id] = {.model = entry.model,
                .numerics_id = entry.numerics_id,
                .until_ns = now_ns + kMovedForNs,
                .from = entry.replica,
                .crash_count = entry.crash_count};
  return EndWith(at, absl::UnavailableError("the worker group did not come back"));
}

void FleetCore::Tick(std::int64_t now_ns) {
  for (auto& [id, moved] : moved_) moved.expected &= now_ns < moved.until_ns;
  std::erase_if(moved_,
                [&](const auto& one) { return one.second.until_ns + kKnownForNs <= now_ns; });
  TakeStuck(now_ns);
  SendHeld(now_ns);
  if (held_ == 0) return;
  for (auto at = requests_.begin(); at != requests_.end();) {
    const Entry& entry = at->second;
    if (!entry.held_until_ns.has_value()) {
      ++at;
    } else if (entry.request->deadline_ns.value_or(now_ns + 1) <= now_ns) {
      at = EndHere(at, FinishReason::kDeadline,
                   absl::DeadlineExceededError("the deadline has passed"));
    } else if (*entry.held_until_ns <= now_ns) {
      CountReplay(entry, ReplayResult::kExpired);
      at = EndWith(at, absl::UnavailableError("the scheduler did not come back"));
    } else {
      ++at;
    }
  }
}

void FleetCore::Stop(const absl::Status& status) {
  stopped_ = status;
  moved_.clear();
  for (auto at = requests_.begin(); at != requests_.end();) {
    at = at->second.held_until_ns.has_value() ? EndWith(at, status) : std::next(at);
  }
}

void FleetCore::Drain(std::optional<std::size_t> model) {
  if (model.has_value()) {
    models_[*model].draining = true;
  } else {
    draining_ = true;
  }
}

bool FleetCore::Drained(std::optional<std::size_t> model) const {
  const auto of_model = [&](const auto& one) {
    return !model.has_value() || one.second.model == *model;
  };
  const auto expected = [&](const auto& one) { return one.second.expected && of_model(one); };
  return std::none_of(requests_.begin(), requests_.end(), of_model) &&
         std::none_of(moved_.begin(), moved_.end(), expected);
}

}  // namespace flotilla::router
