// Which values a schema takes, as far as it is easily seen. XGrammar writes "oneOf" as "anyOf",
// which is the same only if no value is valid for two of its options. Pure.
#pragma once

#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

// The types (JsonType) of the values that may be valid for `schema`, which lies in `root`. A
// number that is an integer has kIntegerType, and kNumberType is of all other numbers.
unsigned TypesOf(const OrderedJson& schema, const OrderedJson& root);

// The type of a value, kIntegerType for each whole number.
unsigned TypeOfValue(const OrderedJson& value);

// Whether no value is valid for both: they differ in type, in their values, or in the values of a
// property that both require.
bool Disjoint(const OrderedJson& a, const OrderedJson& b, const OrderedJson& root);

// Whether the values are the same in JSON Schema, where 1 equals 1.0 and members have no order.
bool SameValue(const OrderedJson& a, const OrderedJson& b);

}  // namespace flotilla::router
