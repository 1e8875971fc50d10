// Mutated safetensors files.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "model/huggingface/safetensors_file.h"
#include "tests/fuzz/input_limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const flotilla::testing::InputLimits limits(size);
  const auto file = flotilla::model::SafetensorsFile::Parse(std::as_bytes(std::span(input, size)));
  if (!file.ok()) return 0;
  // A tensor that lies outside the input is seen here.
  for (const flotilla::model::Tensor& tensor : file->tensors()) {
    if (!tensor.data.empty())
      static_cast<void>(*const_cast<const volatile std::byte*>(&tensor.data.back()));
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Changes the header alone and keeps the length in front of it true, in 15 of 16 cases.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  uint64_t length = 0;
  constexpr size_t kLengthBytes = sizeof length;
  if (size < kLengthBytes || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(&length, data, kLengthBytes);
  length = std::min<uint64_t>(length, size - kLengthBytes);
  uint8_t* const header = data + kLengthBytes;
  const std::vector<uint8_t> rest(header + length, data + size);
  length = LLVMFuzzerMutate(header, length, max_size - kLengthBytes - rest.size());
  std::memcpy(data, &length, kLengthBytes);
  std::ranges::copy(rest, header + length);
  return kLengthBytes + length + rest.size();
}
