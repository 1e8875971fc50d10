// From the bytes of a hostile body to a JSON document: one pass, in time linear in the
// bytes (but for the logarithm of an object's size), and within a bound of memory.
// Pure functions: any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace flotilla {

using Json = nlohmann::json;

inline constexpr int kMaxJsonDepth = 64;

// What a document may take besides its text, which is as long as the body at most: the
// values of the cheapest kind, which are two bytes of the body, take sixteen of memory,
// and empty objects thirty times their bytes. So many bytes are 1 Mi numbers, more than
// the token ids that a body of 4 MiB holds, or about 150,000 members of objects.
inline constexpr std::size_t kMaxJsonBytes = 16u << 20;

// A document that was parsed. It is taken apart without any memory: the library's own
// destructor asks for as much as a list has elements, and ends the process if there is none.
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

// A list, directly in the body's object, that ends the parse when it is longer.
struct ListBound {
  std::string_view name;
  std::size_t max_elements = 0;
  absl::Status too_long;  // the error then
};

// Parses a body that must be one JSON object: valid UTF-8, no key twice in an object,
// nested kMaxJsonDepth deep at most, kMaxJsonBytes at most. INVALID_ARGUMENT saying what is
// wrong, with the byte, counted from 1, where that helps; the body's text is not repeated,
// but for a bounded part of a key. `bound` may be null.
absl::StatusOr<JsonDocument> ParseJsonObject(std::string_view body,
                                             const ListBound* bound = nullptr);

}  // namespace flotilla
