#include "scheduler/core/waiting_queue.h"

#include "scheduler/core/policy.h"

namespace flotilla::scheduler {

bool WaitingQueue::Earlier::operator()(TableIndex a, TableIndex b) const {
  return GoesBefore((*requests)[a], (*requests)[b]);
}

bool WaitingQueue::Shorter::operator()(TableIndex a, TableIndex b) const {
  const Request& x = (*requests)[a];
  const Request& y = (*requests)[b];
  if (x.order.group != y.order.group) return x.order.group < y.order.group;
  if (x.waiting_tokens != y.waiting_tokens) return x.waiting_tokens < y.waiting_tokens;
  return x.arrival < y.arrival;
}

WaitingQueue::Heap& WaitingQueue::HeapOf(const Request& request) {
  if (request.held_back) return held_back_;
  if (request.starts_isolated) return isolated_;
  if (request.reserves()) return protected_;
  if (request.tenant >= of_tenant_.size()) of_tenant_.resize(request.tenant + 1);
  std::unique_ptr<Heap>& heap = of_tenant_[request.tenant];
  if (heap == nullptr) heap = std::make_unique<Heap>(Earlier{requests_}, places_);
  return *heap;
}

const WaitingQueue::Heap& WaitingQueue::HeapOf(const Request& request) const {
  return const_cast<WaitingQueue*>(this)->HeapOf(request);
}

bool WaitingQueue::Contains(TableIndex index) const {
  return HeapOf((*requests_)[index]).Contains(index);
}

std::optional<TableIndex> WaitingQueue::head() const {
  if (!protected_.empty()) return protected_.top();
  if (tenants_.empty()) return std::nullopt;
  return of_tenant_[tenants_.top()]->top();
}

std::optional<TableIndex> WaitingQueue::shortest() const {
  if (short_.empty()) return std::nullopt;
  return short_.top();
}

// First the protected requests, then the head of each tenant in turn, then the following requests
// of each tenant in turn.
std::vector<TableIndex> WaitingQueue::First(std::size_t count) const {
  std::vector<TableIndex> first = protected_.First(count);
  const auto add = [&](const std::vector<TableIndex>& more, std::size_t from) {
    for (std::size_t i = from; i < more.size() && first.size() < count; ++i) {
      first.push_back(more[i]);
    }
  };
  const std::vector<TableIndex> tenants = tenants_.First(count);
  for (const TableIndex tenant : tenants) add({of_tenant_[tenant]->top()}, 0);
  for (const TableIndex tenant : tenants) {
    if (first.size() >= count) break;
    add(of_tenant_[tenant]->First(count - first.size() + 1), 1);
  }
  return first;
}

void WaitingQueue::Push(TableIndex index) {
  const Request& request = (*requests_)[index];
  ++size_;
  tokens_ += request.waiting_tokens;
  rows_ += request.waiting_rows;
  Heap& heap = HeapOf(request);
  heap.Push(index);
  if (!OfTenant(request)) return;
  if (heap.size() == 1) tenants_.Push(request.tenant);
  if (request.waiting_tokens <= short_rows_) short_.Push(index);
}

void WaitingQueue::Remove(TableIndex index) {
  Request& request = (*requests_)[index];
  Heap& heap = HeapOf(request);
  if (!heap.Remove(index)) return;
  short_.Remove(index);
  --size_;
  tokens_ -= request.waiting_tokens;
  rows_ -= request.waiting_rows;
  request.waiting_tokens = request.waiting_rows = 0;
  if (OfTenant(request) && heap.empty()) tenants_.Remove(request.tenant);
}

void WaitingQueue::Charge(TableIndex tenant, std::uint64_t cost) {
  const bool waits = tenants_.Remove(tenant);
  fair_->Charge(tenant, cost);
  if (waits) tenants_.Push(tenant);
}

}  // namespace flotilla::scheduler
