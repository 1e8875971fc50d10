// IndexedTable: values at dense indices, which start at 0 and are reused after Erase.
//
// Iteration is in index order only. Pointers and references are stable until Erase.
// CoreState owns the tables; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace flotilla::scheduler {

// Index of a sequence or a request in its table.
using TableIndex = std::uint32_t;

template <class T>
class IndexedTable {
 public:
  TableIndex Insert(T value) {
    TableIndex index = static_cast<TableIndex>(entries_.size());
    if (free_.empty()) {
      entries_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    entries_[index] = std::make_unique<T>(std::move(value));
    return index;
  }

  void Erase(TableIndex index) {
    entries_[index].reset();
    free_.push_back(index);
  }

  T& operator[](TableIndex index) { return *entries_[index]; }
  const T& operator[](TableIndex index) const { return *entries_[index]; }

  std::size_t size() const { return entries_.size() - free_.size(); }

  // The indices in use, ascending. O(indices).
  std::vector<TableIndex> Indices() const {
    std::vector<TableIndex> all;
    for (TableIndex index = 0; index < entries_.size(); ++index) {
      if (entries_[index] != nullptr) all.push_back(index);
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<T>> entries_;
  std::vector<TableIndex> free_;
};

}  // namespace flotilla::scheduler
