// Mutated chat templates.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/input_limits.h"
#include "tests/support/use_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const std::string source(reinterpret_cast<const char*>(input), size);
  const flotilla::testing::InputLimits limits(size);
  flotilla::testing::UseTemplate(source, {});  // with the bounds of a server
  return 0;
}
