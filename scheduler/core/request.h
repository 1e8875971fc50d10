// Request: what the scheduler knows of one request; its continuations are Sequences.
//
// It is the unit of queueing, admission and preemption: all its sequences come and
// go together. Lives at an index of RequestTable from admission to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/types/event.h"
#include "common/types/request.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/core/indexed_table.h"

namespace flotilla {

// What beam search adds to a request. Its sequences are the running beams.
struct BeamGroup {
  explicit BeamGroup(BeamSearch search) : search(std::move(search)) {}

  BeamSearch search;
  std::vector<TableIndex> ranked;  // the running beams, best first
  std::vector<bool> cancelled;     // [answers] that nobody wants any more
};

// Where a policy puts a request: smaller goes first, group before value.
struct OrderKey {
  std::int64_t group = 0;
  std::int64_t value = 0;
};

struct Request {
  RequestId id;
  Attempt attempt;

  std::uint32_t prompt_tokens = 0;
  // Tenant and salt: only sequences of one scope share cached blocks.
  std::string cache_scope;
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  std::optional<std::int64_t> deadline_ns;

  std::int32_t priority = 0;
  std::uint64_t arrival = 0;  // order of admission; unique
  TableIndex tenant = 0;      // in FairShare
  OrderKey order;             // as it entered the queue last

  // The request was admitted and runs; else it waits in the queue.
  bool admitted = false;
  bool was_admitted = false;          // at any time
  std::vector<TableIndex> sequences;  // not ended, by ascending index
  std::uint32_t answers = 1;          // sequences as the client counts them
  std::unique_ptr<BeamGroup> beam;

  // It was under way when its worker group died: while it is open and has not got
  // past that point it runs in isolated steps. Only one request does at a time.
  bool quarantined = false;
  std::uint32_t crash_count = 0;        // of the group while it ran this request alone
  std::uint32_t quarantine_length = 0;  // positions behind which it is released

  std::uint32_t preemptions = 0;
  // It was preempted as often as one may be: it goes before all others, with its
  // blocks reserved, and is never preempted again.
  bool non_preemptible = false;
  std::uint32_t bypassed = 0;  // later requests that started before it
  std::uint32_t decode_preemptions = 0;
  std::uint32_t cached_tokens = 0;  // prompt tokens found when first opened
  // The next prompt token whose log-probability was not yet delivered.
  std::uint32_t prompt_logprobs_next = 1;
  // Tokens to be prefilled, and with the outputs predicted as well, as counted by
  // the queue while it waits.
  std::uint64_t waiting_tokens = 0;
  std::uint64_t waiting_rows = 0;

  // Of sequences that have ended: tokens that count, the last one's reason, and
  // the first error.
  std::uint32_t output_tokens = 0;
  FinishReason reason = FinishReason::kStop;
  absl::Status status;

  // The prefix cache has no prompt log-probabilities: a request that wants more
  // of them computes its prompt itself.
  bool wants_prompt_rows() const {
    return logprobs.prompt_top != LogprobSpec::kOff && prompt_logprobs_next < prompt_tokens;
  }
  // Sequences that it may come to hold at once.
  std::uint32_t width() const {
    return beam ? beam->search.beams() : static_cast<std::uint32_t>(sequences.size());
  }
};

// Every admitted and not ended request; found by index or by id.
class RequestTable : public IndexedTable<Request> {
 public:
  // No request of this id is in the table.
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

}  // namespace flotilla
