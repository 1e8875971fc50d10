// From a schema of arguments to one that XGrammar keeps where it writes their outermost object in
// XML (a structural tag with the style of a model). Pure.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

// Of the name of an argument. Readers take more for no name.
inline constexpr std::size_t kMaxXmlNameBytes = 512;

// `schema` is one that NormalSchema wrote (json_schema.h). What is valid for the result is valid
// for it: the result has only objects, and none has others than named arguments if some are named,
// because their names could hold the tags around them. An argument that is a text has no '<' if it
// has a length or a pattern, which XGrammar writes without regard to tags.
//
// `room` is how many bytes the result may have, of which it takes what it has: what a reference
// means is copied, so the result may be much larger than `schema`. INVALID_ARGUMENT says why no
// object is left, or which name or value no tag can hold.
absl::StatusOr<OrderedJson> XmlSchema(OrderedJson schema, std::size_t& room);

}  // namespace flotilla::router
