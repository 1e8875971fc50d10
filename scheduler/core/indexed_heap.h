// IndexedHeap: a binary heap of dense slots that knows where each slot is, so
// that any of them can leave in O(log n).
//
//   IndexedHeap<Earlier> heap;            // Earlier{}(a, b): a leaves first
//   heap.Push(slot); heap.top(); heap.Remove(slot);
//
// `Before` must be a strict total order on the slots in the heap and must not
// change while a slot is inside. Order of equal operations is deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace flotilla {

template <class Before>
class IndexedHeap {
 public:
  explicit IndexedHeap(Before before) : before_(std::move(before)) {}

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // The slot that leaves first. Not empty.
  std::uint32_t top() const { return heap_.front(); }
  bool Contains(std::uint32_t slot) const { return slot < at_.size() && at_[slot] != kOut; }
  // Every slot inside, in heap order.
  const std::vector<std::uint32_t>& slots() const { return heap_; }

  // The first `count` slots in the order in which they would leave, or all there
  // are. O(count^2): for a few.
  std::vector<std::uint32_t> First(std::size_t count) const {
    std::vector<std::uint32_t> first;
    std::vector<std::size_t> next;  // positions whose parents are all in `first`
    if (!heap_.empty()) next.push_back(0);
    while (first.size() < count && !next.empty()) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < next.size(); ++i) {
        if (before_(heap_[next[i]], heap_[next[best]])) best = i;
      }
      const std::size_t at = next[best];
      next.erase(next.begin() + static_cast<std::ptrdiff_t>(best));
      first.push_back(heap_[at]);
      for (const std::size_t child : {2 * at + 1, 2 * at + 2}) {
        if (child < heap_.size()) next.push_back(child);
      }
    }
    return first;
  }

  // `slot` is not inside.
  void Push(std::uint32_t slot) {
    if (slot >= at_.size()) at_.resize(slot + 1, kOut);
    heap_.push_back(slot);
    Up(heap_.size() - 1);
  }

  // False when `slot` is not inside.
  bool Remove(std::uint32_t slot) {
    if (!Contains(slot)) return false;
    const std::size_t hole = at_[slot];
    at_[slot] = kOut;
    const std::uint32_t last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return true;
    heap_[hole] = last;
    Down(hole);
    Up(at_[last]);
    return true;
  }

 private:
  static constexpr std::size_t kOut = ~std::size_t{0};

  void Up(std::size_t i) {
    const std::uint32_t slot = heap_[i];
    for (; i > 0 && before_(slot, heap_[(i - 1) / 2]); i = (i - 1) / 2) {
      Place(i, heap_[(i - 1) / 2]);
    }
    Place(i, slot);
  }

  void Down(std::size_t i) {
    const std::uint32_t slot = heap_[i];
    while (true) {
      std::size_t child = 2 * i + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && before_(heap_[child + 1], heap_[child])) ++child;
      if (!before_(heap_[child], slot)) break;
      Place(i, heap_[child]);
      i = child;
    }
    Place(i, slot);
  }

  void Place(std::size_t i, std::uint32_t slot) {
    heap_[i] = slot;
    at_[slot] = i;
  }

  Before before_;
  std::vector<std::uint32_t> heap_;
  std::vector<std::size_t> at_;  // by slot: position in heap_, or kOut
};

}  // namespace flotilla
