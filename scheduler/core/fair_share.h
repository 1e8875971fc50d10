// FairShare: which tenant's turn it is, by virtual token counters.
//
// Each tenant has a counter of the tokens it was served, divided by its weight;
// the one that waits with the smallest is next. A tenant that was away is lifted
// to the smallest counter of those that are there, so that nobody saves up turns
// (VTC: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).
// Off, it knows one tenant only. Owned by CoreState; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "scheduler/core/indexed_table.h"

namespace flotilla {

class FairShare {
 public:
  // What a token of prompt and one of output cost. Outputs cost more, as in the paper.
  static constexpr std::uint64_t kPromptCost = 1, kOutputCost = 2;

  // `weights` by tenant, at least 1; others have 1.
  FairShare(bool on, const std::vector<std::pair<std::string, std::uint32_t>>& weights);

  // A request of the tenant has come. Its index is valid until as many have left.
  TableIndex Join(absl::string_view tenant);
  void Leave(TableIndex tenant);
  // The tenant was served tokens of so much cost.
  void Charge(TableIndex tenant, std::uint64_t cost);
  // A strict total order; changes by Charge and Join of the two tenants only.
  bool Before(TableIndex a, TableIndex b) const;
  // Tenants that are known: those that are there, and some that were.
  std::size_t size() const { return tenants_.size(); }
  // Requests of the tenant that have come and not left.
  std::uint32_t requests(TableIndex tenant) const { return tenants_[tenant].requests; }
  std::uint64_t requests() const;  // of all. O(tenants)

 private:
  struct Tenant {
    std::string name;
    std::uint64_t weight = 1;
    std::uint64_t served = 0;  // cost / weight, in 1/1024
    std::uint32_t requests = 0;
  };

  std::uint64_t Floor() const;
  void ForgetIdle(std::uint64_t floor);

  const bool on_;
  absl::flat_hash_map<std::string, std::uint64_t> weights_;
  IndexedTable<Tenant> tenants_;
  absl::flat_hash_map<std::string, TableIndex> by_name_;
  // The counters of the tenants that were there last.
  std::uint64_t last_floor_ = 0;
};

}  // namespace flotilla
