// Parses the bytes of a hostile body into a JSON document, in one pass. The time is linear in
// the bytes (but for the logarithm of an object's size), and the memory is bounded. Pure
// functions, which may be called on any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace flotilla::router {

using Json = nlohmann::json;

inline constexpr int kMaxJsonDepth = 64;

// The memory that a document may take besides its text, which is at most as long as the body.
// It needs a bound because a value of the cheapest kind has two bytes in the body and takes
// sixteen bytes of memory, and an empty object takes thirty times its bytes. This bound allows
// 1 Mi numbers, which are more than the token ids in a body of 4 MiB, or about 150,000 members
// of objects.
inline constexpr std::size_t kMaxJsonBytes = 16u << 20;

// A parsed document. Its destructor allocates nothing. The library's own destructor allocates
// memory in proportion to a list's elements, and ends the process if there is none.
class JsonDocument {
 public:
  JsonDocument() = default;
  JsonDocument(JsonDocument&& other) noexcept : root_(std::move(other.root_)) {}
  JsonDocument& operator=(JsonDocument&& other) noexcept {
    root_.swap(other.root_);
    return *this;
  }
  ~JsonDocument();

  const Json& root() const { return root_; }
  Json& root() { return root_; }

 private:
  Json root_;
};

// A bound on a list directly in the body's object. A longer list ends the parse.
struct ListBound {
  std::string_view name;
  std::size_t max_elements = 0;
  absl::Status too_long;  // the error then
};

// Parses a body that must be one JSON object: valid UTF-8, no key twice in an object, nested at
// most kMaxJsonDepth deep, and at most kMaxJsonBytes of memory. INVALID_ARGUMENT says what is
// wrong and, where that helps, at which byte, counted from 1. It quotes no text of the body but
// a bounded part of a key. `bound` may be null.
absl::StatusOr<JsonDocument> ParseJsonObject(std::string_view body,
                                             const ListBound* bound = nullptr);

}  // namespace flotilla::router
