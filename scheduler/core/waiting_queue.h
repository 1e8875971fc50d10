// WaitingQueue: requests that are not open, the first in order on top.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/core/indexed_heap.h"
#include "scheduler/core/policy.h"
#include "scheduler/core/request.h"

namespace flotilla {

class WaitingQueue {
 public:
  // Both outlive the queue.
  WaitingQueue(RequestTable* requests, const OrderPolicy* policy)
      : requests_(requests), heap_(Before{requests, policy}) {}

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // What is to be prefilled of all that wait.
  std::uint64_t tokens() const { return tokens_; }
  Slot head() const { return heap_.top(); }
  // The first `count` in order, or all there are.
  std::vector<Slot> First(std::size_t count) const { return heap_.First(count); }
  bool Contains(Slot slot) const { return heap_.Contains(slot); }

  // `tokens`: to be prefilled of this request.
  void Push(Slot slot, std::uint64_t tokens) {
    (*requests_)[slot].waiting_tokens = tokens;
    tokens_ += tokens;
    heap_.Push(slot);
  }
  // Nothing happens when it does not wait.
  void Remove(Slot slot) {
    if (!heap_.Remove(slot)) return;
    tokens_ -= (*requests_)[slot].waiting_tokens;
    (*requests_)[slot].waiting_tokens = 0;
  }

 private:
  struct Before {
    const RequestTable* requests;
    const OrderPolicy* policy;
    bool operator()(Slot a, Slot b) const {
      return GoesBefore(*policy, (*requests)[a], (*requests)[b]);
    }
  };

  RequestTable* requests_;
  IndexedHeap<Before> heap_;
  std::uint64_t tokens_ = 0;
};

// DeadlineQueue: requests with a deadline, the earliest on top.
struct EarlierDeadline {
  const RequestTable* requests;
  bool operator()(Slot a, Slot b) const {
    const Request& x = (*requests)[a];
    const Request& y = (*requests)[b];
    if (x.deadline_ns != y.deadline_ns) return x.deadline_ns < y.deadline_ns;
    return x.arrival < y.arrival;
  }
};
using DeadlineQueue = IndexedHeap<EarlierDeadline>;

}  // namespace flotilla
