#include "scheduler/core/fair_share.h"

#include <algorithm>

namespace flotilla::scheduler {
namespace {

// Counters of idle tenants are kept up to this number of tenants. So a tenant that was served too
// much does not start again with a low counter.
constexpr std::size_t kMaxKnown = 8192;

}  // namespace

FairShare::FairShare(bool on, const std::vector<std::pair<std::string, std::uint32_t>>& weights)
    : on_(on) {
  for (const auto& [name, weight] : weights) weights_[name] = std::max(weight, 1u);
}

// The smallest counter of the tenants with requests.
std::uint64_t FairShare::Floor() const {
  bool any = false;
  std::uint64_t floor = 0;
  for (const TableIndex index : tenants_.Indices()) {
    const Tenant& tenant = tenants_[index];
    if (tenant.requests == 0) continue;
    floor = any ? std::min(floor, tenant.served) : tenant.served;
    any = true;
  }
  return any ? floor : last_floor_;
}

std::uint64_t FairShare::requests() const {
  std::uint64_t all = 0;
  for (const TableIndex index : tenants_.Indices()) all += tenants_[index].requests;
  return all;
}

// Counters at or below the floor would be raised to it anyway.
void FairShare::ForgetIdle(std::uint64_t floor) {
  for (const TableIndex index : tenants_.Indices()) {
    const Tenant& tenant = tenants_[index];
    if (tenant.requests > 0 || (tenant.served > floor && tenants_.size() <= kMaxKnown)) continue;
    by_name_.erase(tenant.name);
    tenants_.Erase(index);
  }
}

TableIndex FairShare::Join(absl::string_view name) {
  const std::string key(on_ ? name : absl::string_view());
  const auto found = by_name_.find(key);
  if (found != by_name_.end() && tenants_[found->second].requests > 0) {
    ++tenants_[found->second].requests;
    return found->second;
  }
  const std::uint64_t floor = Floor();
  TableIndex index;
  if (found != by_name_.end()) {
    index = found->second;
  } else {
    ForgetIdle(floor);
    const auto weight = weights_.find(key);
    index = tenants_.Insert({.name = key, .weight = weight == weights_.end() ? 1 : weight->second});
    by_name_.emplace(key, index);
  }
  Tenant& tenant = tenants_[index];
  tenant.served = std::max(tenant.served, floor);
  tenant.requests = 1;
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
  last_floor_ = std::max(last_floor_, std::min(tenant.served, Floor()));
  --tenant.requests;
}

void FairShare::Charge(TableIndex index, std::uint64_t cost) {
  Tenant& tenant = tenants_[index];
  tenant.served += cost * 1024 / tenant.weight;
}

bool FairShare::Before(TableIndex a, TableIndex b) const {
  const std::uint64_t x = tenants_[a].served, y = tenants_[b].served;
  return x != y ? x < y : a < b;
}

}  // namespace flotilla::scheduler
