// WaitingQueue: branches that are not open, the first by policy on top.
#pragma once

#include <cstdint>

#include "scheduler/core/branch_table.h"
#include "scheduler/core/indexed_heap.h"
#include "scheduler/core/policy.h"

namespace flotilla {

class WaitingQueue {
 public:
  // Both outlive the queue.
  WaitingQueue(const BranchTable* branches, const OrderPolicy* policy)
      : branches_(branches), heap_(Before{branches, policy}) {}

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // Known tokens of all that wait: what is to be prefilled.
  std::uint64_t tokens() const { return tokens_; }
  Slot head() const { return heap_.top(); }
  bool Contains(Slot slot) const { return heap_.Contains(slot); }

  void Push(Slot slot) {
    tokens_ += (*branches_)[slot].tokens.size();
    heap_.Push(slot);
  }
  // Nothing happens when it does not wait.
  void Remove(Slot slot) {
    if (heap_.Remove(slot)) tokens_ -= (*branches_)[slot].tokens.size();
  }

 private:
  struct Before {
    const BranchTable* branches;
    const OrderPolicy* policy;
    bool operator()(Slot a, Slot b) const { return policy->Before((*branches)[a], (*branches)[b]); }
  };

  const BranchTable* branches_;
  IndexedHeap<Before> heap_;
  std::uint64_t tokens_ = 0;
};

// DeadlineQueue: branches with a deadline, the earliest on top.
struct EarlierDeadline {
  const BranchTable* branches;
  bool operator()(Slot a, Slot b) const {
    const Branch& x = (*branches)[a];
    const Branch& y = (*branches)[b];
    if (x.deadline_ns != y.deadline_ns) return x.deadline_ns < y.deadline_ns;
    return x.arrival < y.arrival;
  }
};
using DeadlineQueue = IndexedHeap<EarlierDeadline>;

}  // namespace flotilla
