#include "scheduler/core/quarantine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "scheduler/core/core_state.h"

namespace flotilla::scheduler {

// What the group was computing: fatal rows by sequence, and whether sequences that are gone ran
// too.
struct Quarantine::UnderWay {
  std::map<TableIndex, FatalRows> rows;
  std::vector<TableIndex> requests;  // of the sequences, without repetition
  bool others = false;
};

Quarantine::UnderWay Quarantine::FindUnderWay(absl::Span<const Step> started) const {
  UnderWay found;
  std::map<TableIndex, std::pair<std::uint32_t, std::uint32_t>> reached;  // least and most
  for (const PlanInFlight& plan : state_.epoch->in_flight) {
    const bool ran = std::find(started.begin(), started.end(), plan.step) != started.end();
    for (const PlannedRun& run : plan.runs) {
      if (run.most == 0) continue;  // surely finished
      const std::optional<TableIndex> live = state_.epoch->handles.Live(run.handle, plan.step);
      if (!live.has_value()) {
        found.others |= ran;
        continue;
      }
      const Sequence& sequence = state_.sequences[*live];
      const std::uint32_t computed = sequence.length.computed;
      auto& [least, most] = reached.try_emplace(*live, computed, computed).first->second;
      if (ran) {
        FatalRows& rows = found.rows[*live];
        if (!rows.any()) rows.begin = least;
        rows.end = std::min(most + run.most, sequence.length.max);
        rows.cuts.push_back(rows.end);
        found.requests.push_back(sequence.request);
      }
      least += run.least;
      most += run.most;
    }
  }
  std::sort(found.requests.begin(), found.requests.end());
  found.requests.erase(std::unique(found.requests.begin(), found.requests.end()),
                       found.requests.end());
  return found;
}

std::optional<TableIndex> Quarantine::Blame(absl::Span<const Step> started) {
  UnderWay under_way = FindUnderWay(started);
  std::optional<TableIndex> failed;
  if (under_way.requests.size() == 1 && !under_way.others) {
    const TableIndex index = under_way.requests.front();
    Request& request = state_.requests[index];
    const bool same =
        std::any_of(under_way.rows.begin(), under_way.rows.end(), [this](const auto& entry) {
          return state_.sequences[entry.first].fatal.Overlaps(entry.second);
        });
    if (!same) ForgetCrashes(request);
    if (request.quarantined && same) CountCrash(index);
    const std::uint32_t limit = state_.options.max_crashes * (request.others_crashed ? 2 : 1);
    if (request.quarantined && request.crash_count >= limit) failed = index;
  }
  for (auto& [sequence, rows] : under_way.rows) {
    state_.sequences[sequence].fatal = std::move(rows);
  }
  for (const TableIndex index : under_way.requests) Add(index);
  return failed;
}

// Those with fewer crashes are isolated next (InTurn).
void Quarantine::CountCrash(TableIndex index) {
  Request& request = state_.requests[index];
  ++request.crash_count;
  state_.events.push_back(
      CrashCount{.request = request.id, .attempt = request.attempt, .count = request.crash_count});
  for (const TableIndex other : state_.quarantine.requests) {
    if (other != index)
      state_.requests[other].others_crashed |= state_.requests[other].crash_count > 0;
  }
}

void Quarantine::ForgetCrashes(Request& request) {
  request.others_crashed = false;
  if (request.crash_count == 0) return;
  request.crash_count = 0;
  state_.events.push_back(
      CrashCount{.request = request.id, .attempt = request.attempt, .count = 0});
}

void Quarantine::Add(TableIndex index) {
  ++state_.counters.quarantines;
  if (state_.requests[index].quarantined) return;
  state_.requests[index].quarantined = true;
  state_.quarantine.requests.push_back(index);
}

void Quarantine::AddMoved(TableIndex index) {
  for (const TableIndex at : state_.requests[index].sequences) {
    Sequence& sequence = state_.sequences[at];
    const auto known = static_cast<std::uint32_t>(sequence.tokens.size());
    // The last fatal row may be that of a token that was lost with its group.
    const std::uint32_t end = std::min(known + 1, sequence.length.max);
    sequence.fatal = {.begin = 0, .end = end, .cuts = {end}};
  }
  Add(index);
}

void Quarantine::Release() {
  for (const TableIndex index : std::vector<TableIndex>(state_.quarantine.requests)) {
    Request& request = state_.requests[index];
    const bool past =
        std::all_of(request.sequences.begin(), request.sequences.end(),
                    [this](TableIndex at) { return state_.sequences[at].past_fatal(); });
    if (!past) continue;
    for (const TableIndex at : request.sequences) state_.sequences[at].fatal = FatalRows{};
    ForgetCrashes(request);
    request.quarantined = false;
    Remove(index);
    ++state_.counters.quarantine_releases;
  }
}

void Quarantine::Remove(TableIndex index) {
  std::vector<TableIndex>& all = state_.quarantine.requests;
  all.erase(std::remove(all.begin(), all.end(), index), all.end());
  if (state_.quarantine.isolated == index) state_.quarantine.isolated.reset();
}

bool Quarantine::BacksOff(TableIndex index) const {
  const std::vector<TableIndex>& all = state_.requests[index].sequences;
  return std::any_of(all.begin(), all.end(),
                     [this](TableIndex at) { return state_.sequences[at].backs_off(); });
}

std::vector<TableIndex> Quarantine::InTurn() const {
  const std::optional<TableIndex> isolated = state_.quarantine.isolated;
  if (isolated.has_value() && !BacksOff(*isolated)) return {*isolated};
  std::vector<TableIndex> requests = state_.quarantine.requests;
  std::sort(requests.begin(), requests.end(), [this](TableIndex a, TableIndex b) {
    const Request& x = state_.requests[a];
    const Request& y = state_.requests[b];
    return x.crash_count != y.crash_count ? x.crash_count < y.crash_count : GoesBefore(x, y);
  });
  return requests;
}

}  // namespace flotilla::scheduler
