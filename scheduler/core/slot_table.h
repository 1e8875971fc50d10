// SlotTable: values in dense slots, numbered from 0 and reused after Erase.
//
// Iterates in slot order only. Pointers and references are stable until Erase.
// Owned by CoreState; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace flotilla {

// Index of a sequence or a request in its table.
using Slot = std::uint32_t;

template <class T>
class SlotTable {
 public:
  Slot Insert(T value) {
    Slot slot = static_cast<Slot>(slots_.size());
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot] = std::make_unique<T>(std::move(value));
    return slot;
  }

  void Erase(Slot slot) {
    slots_[slot].reset();
    free_.push_back(slot);
  }

  T& operator[](Slot slot) { return *slots_[slot]; }
  const T& operator[](Slot slot) const { return *slots_[slot]; }

  std::size_t size() const { return slots_.size() - free_.size(); }

  // The slots in use, ascending. O(slots).
  std::vector<Slot> Slots() const {
    std::vector<Slot> all;
    for (Slot slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot] != nullptr) all.push_back(slot);
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<T>> slots_;
  std::vector<Slot> free_;
};

}  // namespace flotilla
