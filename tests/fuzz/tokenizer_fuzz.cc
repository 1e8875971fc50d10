// Mutated tokenizer.json, and after a zero byte each: tokenizer_config.json,
// generation_config.json and chat_template.jinja. A file that does not begin is missing.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/model_folder.h"

namespace {

class Folder : public flotilla::testing::ModelFolder {
 public:
  Folder() {
    Write("config.json", R"({"model_type": "llama", "eos_token_id": 0})");
    WriteTensors("model.safetensors", "{}", 0);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  static const Folder folder;
  std::string_view rest(reinterpret_cast<const char*>(input), size);
  bool begins = true;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja"}) {
    const size_t end = rest.find('\0');
    if (begins) {
      folder.Write(name, rest.substr(0, end));
    } else {
      folder.Remove(name);
    }
    begins = end != std::string_view::npos;
    rest.remove_prefix(begins ? end + 1 : rest.size());
  }
  const flotilla::testing::InputLimits limits(size);
  folder.Use();
  return 0;
}
