// FairShare: decides which tenant is next, by virtual token counters.
//
// Each tenant has a counter of the tokens that it was served, divided by its weight. Of
// the tenants that wait, the one with the smallest counter is next. The counter of a
// tenant that comes back is raised to the smallest counter of the present tenants, so that
// no tenant saves up turns (VTC: Sheng et al., "Fairness in Serving Large Language
// Models", OSDI 2024). When fair sharing is off there is only one tenant. CoreState owns
// this object; one thread. Each call takes O(log n) of n tenants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "scheduler/core/indexed_table.h"

namespace flotilla::scheduler {

class FairShare {
 public:
  // The cost of a prompt token and of an output token. Outputs cost more, as in the paper.
  static constexpr std::uint64_t kPromptCost = 1, kOutputCost = 2;

  // `weights` are at least 1, by tenant. Tenants that are not listed have weight 1.
  FairShare(bool on, const std::vector<std::pair<std::string, std::uint32_t>>& weights);

  // Records that a request of the tenant has come, and returns the tenant's index. The
  // index is valid until Leave was called as often as Join.
  TableIndex Join(absl::string_view tenant);
  void Leave(TableIndex tenant);
  // Records that the tenant was served tokens of this cost.
  void Charge(TableIndex tenant, std::uint64_t cost);
  // A strict total order. Only Charge and Join of the two tenants change it.
  bool Before(TableIndex a, TableIndex b) const;
  // The number of known tenants: those with requests, and some that had requests.
  std::size_t size() const { return tenants_.size(); }
  // A tenant's place among the others, or the place that it would have if it came now.
  struct Standing {
    std::optional<TableIndex> tenant;  // none: it is not known
    std::uint64_t weight = 1;
    std::uint64_t served = 0;  // cost / weight, in 1/1024
  };
  Standing StandingOf(absl::string_view tenant) const;
  Standing StandingOf(TableIndex tenant) const;
  // The requests of the tenant that have come and not left.
  std::uint32_t requests(TableIndex tenant) const { return tenants_[tenant].requests; }
  std::uint64_t requests() const { return requests_; }  // of all tenants

 private:
  struct Tenant {
    std::string name;
    std::uint64_t weight = 1;
    std::uint64_t served = 0;  // cost / weight, in 1/1024
    std::uint32_t requests = 0;
  };

  // Tenants by their counters.
  using Counters = absl::btree_set<std::pair<std::uint64_t, TableIndex>>;

  // The smallest counter of the tenants with requests.
  std::uint64_t Floor() const { return present_.empty() ? last_floor_ : present_.begin()->first; }
  void ForgetIdle(std::uint64_t floor);

  const bool on_;
  absl::flat_hash_map<std::string, std::uint64_t> weights_;
  IndexedTable<Tenant> tenants_;
  absl::flat_hash_map<std::string, TableIndex> by_name_;
  Counters present_, idle_;  // with requests and without
  std::uint64_t requests_ = 0;
  // The largest value that Floor had at any Leave. Floor gives it while no tenant is there.
  std::uint64_t last_floor_ = 0;
};

}  // namespace flotilla::scheduler
