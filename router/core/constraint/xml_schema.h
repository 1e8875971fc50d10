// From a schema of arguments to one that XGrammar keeps where it writes their outermost object in
// XML (a structural tag with the style of a model). Pure.
#pragma once

#include "absl/status/statusor.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

// `schema` is one that NormalSchema wrote (json_schema.h). What is valid for the result is valid
// for it: the result has only objects, and none has others than named arguments if some are named,
// because their names could hold the tags around them. INVALID_ARGUMENT says why no object is left,
// or which name no tag can hold.
absl::StatusOr<OrderedJson> XmlSchema(OrderedJson schema);

}  // namespace flotilla::router
