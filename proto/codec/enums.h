// Tables that map the enums of the wire to the enums of the domain and back. Only
// proto/codec uses them; pure.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/codec/columns.h"

namespace flotilla::codec::enums {

// One value on both sides; FindWire and FindDomain go either way.
template <class Wire, class Domain>
struct EnumPair {
  Wire wire;
  Domain domain;
};

// Every domain value is in its table.
template <class Wire, class Domain, std::size_t N>
Wire FindWire(const EnumPair<Wire, Domain> (&pairs)[N], Domain domain) {
  for (const auto& pair : pairs) {
    if (pair.domain == domain) return pair.wire;
  }
  return pairs[0].wire;
}

// The enums of the wire are open: any number may come.
template <class Wire, class Domain, std::size_t N>
absl::Status FindDomain(absl::string_view field, const EnumPair<Wire, Domain> (&pairs)[N],
                        Wire wire, Domain& domain) {
  for (const auto& pair : pairs) {
    if (pair.wire != wire) continue;
    domain = pair.domain;
    return absl::OkStatus();
  }
  return columns::Wrong(field, absl::StrCat(static_cast<int>(wire)));
}

}  // namespace flotilla::codec::enums
