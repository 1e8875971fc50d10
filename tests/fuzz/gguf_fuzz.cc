// Mutated heads of GGUF files: all that stands before the data of the tensors. A mark separates the
// heads of a model's parts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/gguf/gguf_checkpoint.h"
#include "tests/fuzz/input_limits.h"
#include "tests/support/use_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  // Room for the data of each model in the corpus.
  constexpr size_t kDataBytes = 1 << 20;
  constexpr std::string_view kMark = "<next part>";
  constexpr size_t kMaxParts = 4;
  const flotilla::testing::InputLimits limits(size);
  std::vector<std::vector<std::byte>> files;
  std::string_view rest(reinterpret_cast<const char*>(input), size);
  for (bool more = true; more && files.size() < kMaxParts;) {
    const size_t end = rest.find(kMark);
    more = end != std::string_view::npos;
    const std::string_view head = rest.substr(0, end);
    std::vector<std::byte>& file = files.emplace_back(head.size() + kDataBytes);
    std::ranges::transform(head, file.begin(), [](char c) { return static_cast<std::byte>(c); });
    rest.remove_prefix(more ? end + kMark.size() : rest.size());
  }
  const std::vector<std::span<const std::byte>> parts(files.begin(), files.end());
  const auto checkpoint = flotilla::model::ParseGguf(parts);
  if (checkpoint.ok()) flotilla::testing::UseCheckpoint(**checkpoint);
  return 0;
}
