// WaitingQueue: the requests that are not open. The next one is its head.
//
// Protected requests come first. Then tenants take turns as FairShare decides (when
// it is off there is one tenant), and each tenant's requests go in the order of the
// policy. Requests that start in an isolated step (Request::starts_isolated) have a queue of their
// own, so that they hide nobody. CoreState owns the queue; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/core/fair_share.h"
#include "scheduler/core/indexed_heap.h"
#include "scheduler/core/request.h"

namespace flotilla::scheduler {

class WaitingQueue {
 public:
  // Both outlive the queue. Prompts of up to `short_rows` rows are short.
  WaitingQueue(RequestTable* requests, FairShare* fair, std::uint32_t short_rows)
      : requests_(requests),
        fair_(fair),
        short_rows_(short_rows),
        protected_(Earlier{requests}),
        isolated_(Earlier{requests}),
        held_back_(Earlier{requests}),
        tenants_(EarlierTenant{fair}),
        short_(Shorter{requests}) {}

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  // The tokens of all waiting requests that are to be prefilled, and these tokens plus the
  // predicted output tokens.
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t rows() const { return rows_; }
  bool Contains(TableIndex index) const;
  // The next request that starts in a shared step; none: there is none.
  std::optional<TableIndex> head() const;
  // The next request and up to `count` - 1 of those that follow it.
  std::vector<TableIndex> First(std::size_t count) const;
  // The next request that starts in an isolated step; none: there is none.
  std::optional<TableIndex> isolated_head() const {
    return isolated_.empty() ? std::nullopt : std::optional<TableIndex>(isolated_.top());
  }
  // The shortest request of the highest class among the short ones; none: there is none.
  std::optional<TableIndex> shortest() const;

  // Adds a request. Its waiting_tokens, waiting_rows and starts_isolated must be set.
  void Push(TableIndex index);
  // Removes a request. Has no effect when it does not wait.
  void Remove(TableIndex index);
  // Charges a tenant, whose turn may then come later.
  void Charge(TableIndex tenant, std::uint64_t cost);

 private:
  struct Earlier {
    const RequestTable* requests;
    bool operator()(TableIndex a, TableIndex b) const;
  };
  struct EarlierTenant {
    const FairShare* fair;
    bool operator()(TableIndex a, TableIndex b) const { return fair->Before(a, b); }
  };
  struct Shorter {
    const RequestTable* requests;
    bool operator()(TableIndex a, TableIndex b) const;
  };
  using Heap = IndexedHeap<Earlier>;

  Heap& HeapOf(const Request& request);
  const Heap& HeapOf(const Request& request) const;
  bool OfTenant(const Request& request) const {
    return !request.held_back && !request.reserves() && !request.starts_isolated;
  }

  RequestTable* requests_;
  FairShare* fair_;
  const std::uint32_t short_rows_;
  Heap protected_;
  Heap isolated_;
  Heap held_back_;                                // hides nobody, and none of it starts
  std::vector<std::unique_ptr<Heap>> of_tenant_;  // by index; each request is in one at most
  const std::shared_ptr<HeapPlaces> places_ = std::make_shared<HeapPlaces>();  // of them
  IndexedHeap<EarlierTenant> tenants_;  // tenants with requests in of_tenant_
  IndexedHeap<Shorter> short_;          // those in of_tenant_ that are short
  std::size_t size_ = 0;
  std::uint64_t tokens_ = 0, rows_ = 0;
};

// ExpiryQueue: requests that end at some time, the earliest on top.
struct EarlierExpiry {
  const RequestTable* requests;
  bool operator()(TableIndex a, TableIndex b) const {
    const Request& x = (*requests)[a];
    const Request& y = (*requests)[b];
    if (x.expires_ns != y.expires_ns) return x.expires_ns < y.expires_ns;
    return x.arrival < y.arrival;
  }
};
using ExpiryQueue = IndexedHeap<EarlierExpiry>;

}  // namespace flotilla::scheduler
