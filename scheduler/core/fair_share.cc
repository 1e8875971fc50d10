#include "scheduler/core/fair_share.h"

#include <algorithm>

namespace flotilla::scheduler {
namespace {

// Counters of idle tenants are kept up to this number of tenants. So a tenant that was served too
// much does not start again with a low counter.
constexpr std::size_t kMaxKnown = 8192;
// The most that are forgotten when a tenant comes, which bounds the work.
constexpr std::size_t kMostForgotten = 16;

}  // namespace

FairShare::FairShare(bool on, const std::vector<std::pair<std::string, std::uint32_t>>& weights)
    : on_(on) {
  for (const auto& [name, weight] : weights) weights_[name] = std::max(weight, 1u);
}

// Counters at or below the floor would be raised to it anyway.
void FairShare::ForgetIdle(std::uint64_t floor) {
  for (std::size_t i = 0; i < kMostForgotten && !idle_.empty(); ++i) {
    const auto [served, index] = *idle_.begin();
    if (served > floor && tenants_.size() <= kMaxKnown) return;
    by_name_.erase(tenants_[index].name);
    tenants_.Erase(index);
    idle_.erase(idle_.begin());
  }
}

TableIndex FairShare::Join(absl::string_view name) {
  const std::string key(on_ ? name : absl::string_view());
  ++requests_;
  const auto found = by_name_.find(key);
  if (found != by_name_.end() && tenants_[found->second].requests > 0) {
    ++tenants_[found->second].requests;
    return found->second;
  }
  const std::uint64_t floor = Floor();
  TableIndex index;
  if (found != by_name_.end()) {
    index = found->second;
    idle_.erase({tenants_[index].served, index});
  } else {
    ForgetIdle(floor);
    const auto weight = weights_.find(key);
    index = tenants_.Insert({.name = key, .weight = weight == weights_.end() ? 1 : weight->second});
    by_name_.emplace(key, index);
  }
  Tenant& tenant = tenants_[index];
  tenant.served = std::max(tenant.served, floor);
  tenant.requests = 1;
  present_.emplace(tenant.served, index);
  return index;
}

FairShare::Standing FairShare::StandingOf(TableIndex index) const {
  const Tenant& tenant = tenants_[index];
  return {.tenant = index,
          .weight = tenant.weight,
          .served = tenant.requests > 0 ? tenant.served : std::max(tenant.served, Floor())};
}

FairShare::Standing FairShare::StandingOf(absl::string_view name) const {
  const std::string key(on_ ? name : absl::string_view());
  const auto found = by_name_.find(key);
  if (found != by_name_.end()) return StandingOf(found->second);
  const auto weight = weights_.find(key);
  return {.tenant = {}, .weight = weight == weights_.end() ? 1 : weight->second, .served = Floor()};
}

void FairShare::Leave(TableIndex index) {
  Tenant& tenant = tenants_[index];
  last_floor_ = std::max(last_floor_, Floor());
  --requests_;
  if (--tenant.requests > 0) return;
  present_.erase({tenant.served, index});
  idle_.emplace(tenant.served, index);
}

void FairShare::Charge(TableIndex index, std::uint64_t cost) {
  Tenant& tenant = tenants_[index];
  Counters& counters = tenant.requests > 0 ? present_ : idle_;
  counters.erase({tenant.served, index});
  tenant.served += cost * 1024 / tenant.weight;
  counters.emplace(tenant.served, index);
}

bool FairShare::Before(TableIndex a, TableIndex b) const {
  const std::uint64_t x = tenants_[a].served, y = tenants_[b].served;
  return x != y ? x < y : a < b;
}

}  // namespace flotilla::scheduler
