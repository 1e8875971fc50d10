#include "tests/support/made_weights.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/support/hf_folder.h"
#include "tests/support/random.h"

namespace flotilla::testing {
namespace {

std::uint64_t Fnv1a(std::string_view name) {
  std::uint64_t value = 0xcbf29ce484222325ull;
  for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return value;
}

}  // namespace

std::string MadeWeights(std::string_view name, const std::vector<std::uint64_t>& shape,
                        std::uint64_t seed) {
  std::uint64_t count = 1;
  for (const std::uint64_t axis : shape) count *= axis;
  const bool matrix = shape.size() > 1;
  const float scale = matrix ? std::sqrt(3.0f / static_cast<float>(shape.back())) : 0.1f;
  const float middle = !matrix && name.ends_with(".weight") ? 1.0f : 0.0f;
  const std::uint64_t start = MixBits(Fnv1a(name) ^ seed);
  std::string data;
  data.reserve(count * 2);
  for (std::uint64_t i = 0; i < count; ++i) {
    const float part = scale * UnitOf(MixBits(start + i * kRandomStep));
    const std::uint16_t bits = ToBf16(matrix ? part : middle + part);
    data.push_back(static_cast<char>(bits & 0xff));
    data.push_back(static_cast<char>(bits >> 8));
  }
  return data;
}

bool WriteMadeFolder(const std::string& case_folder, std::uint64_t seed, std::uint64_t tokens,
                     const std::string& folder) {
  std::ifstream list(case_folder + "/tensors.tsv");
  if (!list) return false;
  std::vector<HfTensor> tensors;
  for (std::string line; std::getline(list, line);) {
    const std::size_t tab = line.find('\t');
    HfTensor& tensor = tensors.emplace_back();
    tensor.name = line.substr(0, tab);
    tensor.dtype = "BF16";
    std::istringstream axes(line.substr(tab + 1));
    for (std::string axis; std::getline(axes, axis, ',');) {
      tensor.shape.push_back(std::stoull(axis));
    }
    tensor.data = MadeWeights(tensor.name, tensor.shape, seed);
  }
  WriteFile(folder + "/model.safetensors", Safetensors(tensors));
  if (tokens > 0) {
    TokenizerBundle bundle;
    for (std::uint64_t id = 0; id < tokens; ++id) bundle.tokens.push_back(absl::StrCat("t", id));
    bundle.kinds.assign(tokens, TokenKind::kNormal);
    bundle.eos = 0;
    WriteFile(folder + "/tokenizer.json", TokenizerJson(bundle).dump());
    WriteFile(folder + "/tokenizer_config.json", TokenizerConfigJson(bundle).dump());
  }
  std::error_code error;
  std::filesystem::copy_file(case_folder + "/config.json", folder + "/config.json", error);
  return !error;
}

}  // namespace flotilla::testing
