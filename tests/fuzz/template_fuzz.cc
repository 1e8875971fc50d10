// Mutated chat templates.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/input_limits.h"
#include "tests/support/use_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const std::string source(reinterpret_cast<const char*>(input), size);
  const flotilla::testing::InputLimits limits(size);
  // A tenth of the steps that a server allows, since sanitizers make each ten times as slow.
  flotilla::testing::UseTemplate(source, {.max_steps = 200'000, .max_output_bytes = 1 << 20});
  return 0;
}
