// Mutated heads of GGUF files: all that stands before the data of the tensors.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/checkpoint.h"
#include "tests/fuzz/input_limits.h"
#include "tests/support/use_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  // Room for the data of each model in the corpus.
  constexpr size_t kDataBytes = 64 << 10;
  const flotilla::testing::InputLimits limits(size);
  std::vector<std::byte> file(size + kDataBytes);
  for (size_t i = 0; i < size; ++i) file[i] = static_cast<std::byte>(input[i]);
  const auto checkpoint = flotilla::model::ParseCheckpoint(file);
  if (checkpoint.ok()) flotilla::testing::UseCheckpoint(**checkpoint);
  return 0;
}
