// JSON whose objects keep the order of their members: the order of a schema's properties is the
// order in which an answer has them. Pure functions.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace flotilla::router {

using OrderedJson = nlohmann::ordered_json;

// Bounds of one document. A value of the cheapest kind has two bytes in a text, so as many values
// are in a text of twice that.
inline constexpr int kMaxOrderedDepth = 64;
inline constexpr std::size_t kMaxOrderedValues = 32'768;

// Parses valid UTF-8 with no key twice in an object. INVALID_ARGUMENT says what is wrong.
absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text);

// The object of those members of the object `text` whose names are in `names`; the rest is not
// kept, and does not count for the bounds.
absl::StatusOr<OrderedJson> ParseOrderedMembers(std::string_view text,
                                                const std::vector<std::string_view>& names);

// The member of an object; null if it has none or is not an object.
const OrderedJson* Find(const OrderedJson& object, std::string_view name);

}  // namespace flotilla::router
