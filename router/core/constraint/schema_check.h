// Checks of a schema as it is written for XGrammar (json_schema.h), once it is whole. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

struct UnendingSchema {
  std::optional<std::size_t> definition;  // its number in "$defs"; no value: the whole schema
  bool without_value = false;             // it is its own option, in front of any value
};

// The definitions that come back to themselves in each of their values, so that no value is finite,
// and those that come back before any character.
std::vector<UnendingSchema> FindUnending(const OrderedJson& written);

// XGrammar takes two schemas for one if they differ only in what is named "title", "description"
// and the like, even if that is a property or a member of a value. Such schemas get a keyword of
// their own, "x-number", which XGrammar compares and has no other use for.
void TellApart(OrderedJson& written);

// Takes from `room` the bytes that the text of a value has at least. False: there are not as many.
bool TakeRoom(const OrderedJson& value, std::size_t& room);

// Whether a double holds each number that is no 64-bit integer, which XGrammar reads as one.
bool HasOnlyExactNumbers(const OrderedJson& value);

}  // namespace flotilla::router
