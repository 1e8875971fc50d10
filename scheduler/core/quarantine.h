// Quarantine: finds the request whose rows kill worker groups.
//
// When a group dies, the rows of the steps that it was computing are fatal: they are computed
// again in isolated steps, one request after another, in the same chunks. All other rows of these
// requests are computed with everybody's. So a death costs each client at most the isolated steps
// of the requests that ran, and only a death in an isolated step counts against a request.
//
// StepPlanner asks it whose turn it is. It works on CoreState; one thread.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/types/ids.h"
#include "scheduler/core/indexed_table.h"

namespace flotilla::scheduler {

struct CoreState;
struct Request;

// What CoreState keeps for it.
struct QuarantinedRequests {
  std::vector<TableIndex> requests;
  // The request whose isolated steps have begun. The others wait until it is released, or until
  // its rows are likely to run for nothing (Sequence::backs_off).
  std::optional<TableIndex> isolated;
};

class Quarantine {
 public:
  // `state` outlives the object.
  explicit Quarantine(CoreState& state) : state_(state) {}

  // Quarantines the requests with rows in `started`, the steps that the group was computing when
  // it died. Must be called before the epoch is lost. Returns a request that has reached
  // CoreOptions::max_crashes and is to be failed, if there is one.
  std::optional<TableIndex> Blame(absl::Span<const Step> started);
  // Quarantines a new request that comes with crashes on other replicas. Which of its rows were
  // fatal is not known, so all are.
  void AddMoved(TableIndex request);
  // Releases the requests whose fatal rows have given results.
  void Release();
  // Forgets a request that ends.
  void Remove(TableIndex request);
  // The requests that may have the next isolated step, in order: only the isolated one if there
  // is one that does not back off, else those with the fewest crashes first.
  std::vector<TableIndex> InTurn() const;
  // Whether rows of the request are likely to run for nothing. Its sequences have one grammar.
  bool BacksOff(TableIndex request) const;

 private:
  struct UnderWay;
  UnderWay FindUnderWay(absl::Span<const Step> started) const;
  void CountCrash(TableIndex request);
  void ForgetCrashes(Request& request);
  void Add(TableIndex request);

  CoreState& state_;
};

}  // namespace flotilla::scheduler
