// Mutated model.safetensors.index.json.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/model_folder.h"

namespace {

class Folder : public flotilla::testing::ModelFolder {
 public:
  Folder() {
    Write("config.json", R"({"model_type": "llama"})");
    WriteTensors("a.safetensors", R"({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
      "y": {"dtype": "F32", "shape": [], "data_offsets": [4, 8]}})",
                 8);
    WriteTensors("b.safetensors",
                 R"({"z": {"dtype": "F16", "shape": [2, 1], "data_offsets": [0, 4]}})", 4);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  static const Folder folder;
  folder.Write("model.safetensors.index.json", {reinterpret_cast<const char*>(input), size});
  const flotilla::testing::InputLimits limits(size);
  folder.Use();
  return 0;
}
