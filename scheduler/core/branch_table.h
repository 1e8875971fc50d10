// BranchTable: every admitted and not ended branch, in dense slots.
//
// Finds a branch by slot or by request id; iterates in slot order only (never
// over the hash map). Pointers and references are stable until Erase.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/core/branch.h"

namespace flotilla {

class BranchTable {
 public:
  // A slot for a branch of a request that is not in the table.
  Slot Insert(Branch branch) {
    Slot slot = static_cast<Slot>(slots_.size());
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    by_request_.emplace(branch.request, slot);
    slots_[slot] = std::make_unique<Branch>(std::move(branch));
    return slot;
  }

  void Erase(Slot slot) {
    by_request_.erase(slots_[slot]->request);
    slots_[slot].reset();
    free_.push_back(slot);
  }

  Branch& operator[](Slot slot) { return *slots_[slot]; }
  const Branch& operator[](Slot slot) const { return *slots_[slot]; }

  std::optional<Slot> Find(const RequestId& request) const {
    const auto found = by_request_.find(request);
    if (found == by_request_.end()) return std::nullopt;
    return found->second;
  }

  std::size_t size() const { return by_request_.size(); }

  // The slots in use, ascending. O(slots).
  std::vector<Slot> Slots() const {
    std::vector<Slot> all;
    for (Slot slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot] != nullptr) all.push_back(slot);
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<Branch>> slots_;
  std::vector<Slot> free_;
  absl::flat_hash_map<RequestId, Slot> by_request_;
};

}  // namespace flotilla
