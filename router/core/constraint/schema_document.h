// The schema of a client: where its parts are, and what its local references mean. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

// A place in the schema, for errors. Places are on the stack of the walk, so that none is written
// out unless an error needs it.
struct Place {
  const Place* parent = nullptr;
  std::string_view name;  // a key, or of the first place the whole pointer
  std::size_t index = kNoIndex;

  static constexpr std::size_t kNoIndex = static_cast<std::size_t>(-1);
  static Place At(const Place& parent, std::string_view name) { return {&parent, name}; }
  static Place At(const Place& parent, std::size_t index) { return {&parent, {}, index}; }
  // As a JSON pointer. Long names are cut.
  std::string Pointer() const;
};

// A client's text as errors show it: valid UTF-8, and bounded.
std::string ShownName(std::string_view text);

// The schema that a local reference ("#", or "#/" and a JSON pointer, with escapes) means; it lies
// in `root`. INVALID_ARGUMENT for any other. Adds to `names` how many members the objects and lists
// on the way have, if it is not null.
absl::StatusOr<const OrderedJson*> Resolve(const OrderedJson& root, std::string_view reference,
                                           std::size_t* names = nullptr);

}  // namespace flotilla::router
