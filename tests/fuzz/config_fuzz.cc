// Mutated config.json, beside the weights that the cases in tests/data/made list.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/types/text.h"
#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/model_folder.h"

namespace {

// A model whose weights are zeros.
struct Case {
  std::string type;  // quoted
  flotilla::testing::ModelFolder folder;
};

std::unique_ptr<const Case> MakeCase(const std::filesystem::path& made) {
  std::ifstream config(made / "config.json"), list(made / "tensors.tsv");
  auto result = std::make_unique<Case>();
  for (std::string line; std::getline(config, line);) {
    // E.g.:  "model_type": "llama",
    const size_t key = line.find("\"model_type\": ");
    if (key != std::string::npos) result->type = line.substr(key + 14, line.rfind('"') - key - 13);
  }
  std::string header = "{";
  size_t end = 0;
  for (std::string name, axes; std::getline(list, name, '\t') && std::getline(list, axes);) {
    size_t bytes = 2;
    std::istringstream shape(axes);
    for (std::string axis; std::getline(shape, axis, ',');) bytes *= std::stoul(axis);
    header +=
        flotilla::Cat(end == 0 ? "" : ", ", "\"", name, "\": {\"dtype\": \"BF16\", \"shape\": [",
                      axes, "], \"data_offsets\": [", end, ", ", end + bytes, "]}");
    end += bytes;
  }
  result->folder.WriteTensors("model.safetensors", header + "}", end);
  return result;
}

std::vector<std::unique_ptr<const Case>> MakeCases() {
  std::vector<std::unique_ptr<const Case>> cases;
  for (const auto& made : std::filesystem::directory_iterator("tests/data/made")) {
    cases.push_back(MakeCase(made.path()));
  }
  // Equal inputs are used in equal order.
  std::ranges::sort(cases, {}, [](const auto& each) { return each->type; });
  return cases;
}

}  // namespace

// Uses the weights of the models whose type the input names, or else those of some model.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  static const auto cases = MakeCases();
  const std::string_view config(reinterpret_cast<const char*>(input), size);
  const auto use = [&](const Case& with) {
    with.folder.Write("config.json", config);
    const flotilla::testing::InputLimits limits(size);
    with.folder.Use();
  };
  bool used = false;
  for (const auto& each : cases) {
    if (config.find(each->type) == std::string_view::npos) continue;
    use(*each);
    used = true;
  }
  if (!used) use(*cases.front());
  return 0;
}
