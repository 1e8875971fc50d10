// IndexedHeap: a binary heap of dense indices that knows where each index is, so
// that any index can be removed in O(log n).
//
//   IndexedHeap<Earlier> heap;            // Earlier{}(a, b): a leaves first
//   heap.Push(index); heap.top(); heap.Remove(index);
//
// Heaps of which each index is in one at most may share the table of places, so that many of them
// take no more memory than one.
//
// `Before` must be a strict total order on the indices in the heap and must not
// change while an index is inside. The same operations always give the same heap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace flotilla::scheduler {

// By index: its place in the heap that has it. Places of indices that are in no heap mean nothing.
using HeapPlaces = std::vector<std::uint32_t>;

template <class Before>
class IndexedHeap {
 public:
  explicit IndexedHeap(Before before,
                       std::shared_ptr<HeapPlaces> places = std::make_shared<HeapPlaces>())
      : before_(std::move(before)), at_(std::move(places)) {}
  IndexedHeap(IndexedHeap&&) = default;
  IndexedHeap& operator=(IndexedHeap&&) = default;

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // The index that leaves first. The heap must not be empty.
  std::uint32_t top() const { return heap_.front(); }
  bool Contains(std::uint32_t index) const {
    return index < at_->size() && (*at_)[index] < heap_.size() && heap_[(*at_)[index]] == index;
  }
  // The first `count` indices, or all if there are fewer, in the order in which they would
  // leave. O(count log count).
  std::vector<std::uint32_t> First(std::size_t count) const {
    std::vector<std::uint32_t> first;
    std::vector<std::size_t> next;  // a heap of the positions whose parents are all in `first`
    const auto later = [this](std::size_t a, std::size_t b) { return before_(heap_[b], heap_[a]); };
    if (!heap_.empty()) next.push_back(0);
    while (first.size() < count && !next.empty()) {
      std::pop_heap(next.begin(), next.end(), later);
      const std::size_t at = next.back();
      next.pop_back();
      first.push_back(heap_[at]);
      for (const std::size_t child : {2 * at + 1, 2 * at + 2}) {
        if (child >= heap_.size()) break;
        next.push_back(child);
        std::push_heap(next.begin(), next.end(), later);
      }
    }
    return first;
  }

  // `index` is not inside.
  void Push(std::uint32_t index) {
    if (index >= at_->size()) at_->resize(index + 1);
    heap_.push_back(index);
    Up(heap_.size() - 1);
  }

  // False when `index` is not inside.
  bool Remove(std::uint32_t index) {
    if (!Contains(index)) return false;
    const std::size_t hole = (*at_)[index];
    const std::uint32_t last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return true;
    heap_[hole] = last;
    Down(hole);
    Up((*at_)[last]);
    return true;
  }

 private:
  void Up(std::size_t i) {
    const std::uint32_t index = heap_[i];
    for (; i > 0 && before_(index, heap_[(i - 1) / 2]); i = (i - 1) / 2) {
      Place(i, heap_[(i - 1) / 2]);
    }
    Place(i, index);
  }

  void Down(std::size_t i) {
    const std::uint32_t index = heap_[i];
    while (true) {
      std::size_t child = 2 * i + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && before_(heap_[child + 1], heap_[child])) ++child;
      if (!before_(heap_[child], index)) break;
      Place(i, heap_[child]);
      i = child;
    }
    Place(i, index);
  }

  void Place(std::size_t i, std::uint32_t index) {
    heap_[i] = index;
    (*at_)[index] = static_cast<std::uint32_t>(i);
  }

  Before before_;
  std::vector<std::uint32_t> heap_;
  std::shared_ptr<HeapPlaces> at_;
};

}  // namespace flotilla::scheduler
