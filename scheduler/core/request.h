// Request: what the scheduler knows of one request. Its continuations are Sequences.
//
// A request is the unit of queueing, admission and preemption: all its sequences are
// admitted and preempted together. It lives at an index of RequestTable from the time
// that it is accepted to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/types/event.h"
#include "common/types/request.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/core/forecast/output_lengths.h"
#include "scheduler/core/indexed_table.h"

namespace flotilla::scheduler {

// What beam search adds to a request. Its sequences are the running beams.
struct BeamGroup {
  explicit BeamGroup(BeamSearch search) : search(std::move(search)) {}

  BeamSearch search;
  std::vector<TableIndex> ranked;  // the running beams, best first
  std::vector<bool> cancelled;     // [answers] whether the client has cancelled it
};

// Where a policy puts a request. A smaller key goes first; `group` is compared before
// `value`.
struct OrderKey {
  std::int64_t group = 0;
  std::int64_t value = 0;
};

// What preemptions give a request in return. A later value goes before an earlier one.
enum class Protection : std::uint8_t {
  kNone,
  kReserved,        // the blocks that it is expected to need at most are reserved for it
  kNonPreemptible,  // all blocks that it can ever need are reserved; it is never a victim again
};

// The protection after so many preemptions, if there may be `most`. Before the last one, blocks are
// reserved, so that few requests come to have the last one, after which much more is reserved.
constexpr Protection ProtectionAfter(std::uint32_t preemptions, std::uint32_t most) {
  if (preemptions >= most) return Protection::kNonPreemptible;
  return preemptions > 0 && preemptions + 1 == most ? Protection::kReserved : Protection::kNone;
}

struct Request {
  RequestId id;
  Attempt attempt;

  std::uint32_t prompt_tokens = 0;
  // Tenant and salt: only sequences of one scope share cached blocks.
  std::string cache_scope;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  std::optional<std::int64_t> deadline_ns;  // the client's own, which is planned for
  std::optional<std::int64_t> expires_ns;   // the deadline, or else the server's own limit

  AnswerClass answer_class;  // for forecasts of its outputs
  bool tried = false;        // admitted with a deadline although its length was unknown

  std::int32_t priority = 0;
  std::uint64_t arrival = 0;  // order of admission; unique
  TableIndex tenant = 0;      // in FairShare
  OrderKey order;             // the key that it got when it last entered the queue
  bool demoted = false;       // it waits behind all others, because it will hardly be in time

  // True while the request is admitted; false while it waits in the queue.
  bool admitted = false;
  bool was_admitted = false;          // it was admitted at least once
  std::vector<TableIndex> sequences;  // not ended, by ascending index
  std::uint32_t answers = 1;          // sequences as the client counts them
  std::unique_ptr<BeamGroup> beam;

  // Some of its rows ran when its worker group died (Sequence::fatal). They run again in isolated
  // steps; all others run with everybody.
  bool quarantined = false;
  // While the request waits: its first row is fatal, so it starts in an isolated step.
  bool starts_isolated = false;
  // A plan with it was refused (RefusedPlans), and its turn to start has not come.
  bool held_back = false;
  // Deaths in isolated steps of this request at the same fatal rows.
  std::uint32_t crash_count = 0;
  // Since the first of them another request had such a death, so it may be that deaths come from
  // outside.
  bool others_crashed = false;

  std::uint32_t preemptions = 0;
  Protection protection = Protection::kNone;
  // The prompt tokens of later requests that started while it waited for memory or sequences.
  std::uint64_t overtaken_rows = 0;
  std::uint32_t charged_tokens = 0;  // prompt tokens that its tenant was charged for
  std::uint32_t decode_preemptions = 0;
  std::uint32_t cached_tokens = 0;  // prompt tokens found in the prefix cache at its first open
  // The next prompt token whose log-probability was not yet delivered.
  std::uint32_t prompt_logprobs_next = 1;
  // What the queue counts while the request waits: the tokens that are to be prefilled,
  // and these tokens plus the predicted output tokens.
  std::uint64_t waiting_tokens = 0;
  std::uint64_t waiting_rows = 0;

  // About the sequences that have ended: the tokens that count, the finish reason of the
  // last one, and the first error.
  std::uint32_t output_tokens = 0;
  FinishReason reason = FinishReason::kStop;
  absl::Status status;
  std::int64_t retry_after_ms = 0;  // RequestEnd::retry_after_ms

  // Whether the request must compute its prompt itself. The prefix cache holds no prompt
  // log-probabilities, so a request that still wants some cannot use it.
  bool wants_prompt_rows() const {
    return logprobs.prompt_top != LogprobSpec::kOff && prompt_logprobs_next < prompt_tokens;
  }
  bool reserves() const { return protection != Protection::kNone; }
  bool non_preemptible() const { return protection == Protection::kNonPreemptible; }
  // Whether each answer surely has max_tokens tokens, unless it is cancelled.
  bool has_exact_outputs() const { return beam != nullptr || stop.stop_tokens.empty(); }
  // The most sequences that the request can have at once.
  std::uint32_t width() const {
    return beam ? beam->search.beams() : static_cast<std::uint32_t>(sequences.size());
  }
};

// Every accepted request that has not ended. A request is found by index or by id.
class RequestTable : public IndexedTable<Request> {
 public:
  // The table must not hold a request with this id.
  TableIndex Insert(Request request) {
    const RequestId id = request.id;
    const TableIndex index = IndexedTable::Insert(std::move(request));
    by_id_.emplace(id, index);
    return index;
  }
  void Erase(TableIndex index) {
    by_id_.erase((*this)[index].id);
    IndexedTable::Erase(index);
  }
  std::optional<TableIndex> Find(const RequestId& id) const {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return std::nullopt;
    return found->second;
  }

 private:
  absl::flat_hash_map<RequestId, TableIndex> by_id_;
};

}  // namespace flotilla::scheduler
