// HandleTable: the handles by which workers know sequences, and the sequence of each.
//
// A handle is in use from the plan that opens it to the plan that drops it. Its sequence
// may end in between. Results of plans sent before that still mention the handle, which
// then names no sequence. Part of one epoch; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/plan.h"
#include "scheduler/core/sequence.h"

namespace flotilla::scheduler {

class HandleTable {
 public:
  explicit HandleTable(std::uint32_t count) : entries_(count) {
    free_.reserve(count);
    for (std::uint32_t i = count; i > 0; --i) free_.push_back(i - 1);
  }

  bool available() const { return !free_.empty(); }
  bool drops_pending() const { return !retired_.empty(); }
  std::uint32_t retired() const { return static_cast<std::uint32_t>(retired_.size()); }
  std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }

  // Takes a handle for the sequence at `index`, which the plan of `step` opens. A handle
  // must be available.
  SequenceHandle Take(TableIndex index, Step step) {
    const std::uint32_t handle = free_.back();
    free_.pop_back();
    entries_[handle] = Entry{index, step};
    return SequenceHandle(handle);
  }

  // Retires the handle of a sequence that has ended or was preempted. The next plan drops
  // the handle.
  void Retire(SequenceHandle handle) {
    entries_[handle.value()].index.reset();
    retired_.push_back(handle.value());
  }

  // Writes a DropSequence for each retired handle. Each may be taken again at once.
  void DropRetired(StepPlan& plan) {
    for (const std::uint32_t handle : retired_) {
      plan.ops.push_back(DropSequence{.sequence = SequenceHandle(handle)});
      free_.push_back(handle);
    }
    retired_.clear();
  }

  // The sequence that `handle` meant in `step`, if that sequence is still open.
  std::optional<TableIndex> Live(SequenceHandle handle, Step step) const {
    if (handle.value() >= entries_.size()) return std::nullopt;
    const Entry& entry = entries_[handle.value()];
    return entry.opened <= step ? entry.index : std::nullopt;
  }

 private:
  struct Entry {
    std::optional<TableIndex> index;
    Step opened;
  };
  std::vector<Entry> entries_;  // by handle
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> retired_;
};

}  // namespace flotilla::scheduler
