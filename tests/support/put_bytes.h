// Appends values to bytes of a file, as the machine has them (little-endian).
#pragma once

#include <cstddef>
#include <vector>

namespace flotilla::testing {

inline void Append(std::vector<std::byte>& out, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

template <typename T>
void Put(std::vector<std::byte>& out, T value) {
  Append(out, &value, sizeof value);
}

}  // namespace flotilla::testing
