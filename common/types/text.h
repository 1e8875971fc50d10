// A small bridge between std::string_view, which this project uses, and absl::string_view,
// which is another type if Abseil was built as C++14 (as Debian's is). It offers
// concatenation, error statuses from parts, and hashing of map keys.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <string_view>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace flotilla {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// absl::StrCat that also takes std::string_view.
template <typename... Parts>
std::string Cat(const Parts&... parts) {
  const auto part = [](const auto& value) -> decltype(auto) {
    if constexpr (std::same_as<std::decay_t<decltype(value)>, std::string_view>) {
      return ToAbsl(value);
    } else {
      return (value);
    }
  };
  return absl::StrCat(part(parts)...);
}

// A status whose message is Cat(parts...).
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(Cat(parts...));
}
template <typename... Parts>
absl::Status Unimplemented(const Parts&... parts) {
  return absl::UnimplementedError(Cat(parts...));
}
template <typename... Parts>
absl::Status ResourceExhausted(const Parts&... parts) {
  return absl::ResourceExhaustedError(Cat(parts...));
}

// Hash and equality of text keys; look-ups take any string type. Seeded per
// process, so hostile keys cannot be made to collide.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const {
    return absl::Hash<absl::string_view>{}(ToAbsl(text));
  }
};
using TextEqual = std::equal_to<>;

}  // namespace flotilla
