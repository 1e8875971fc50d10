// Tiny models with the logits that Hugging Face's transformers computed for them: folders as
// Hugging Face writes them (tests/data/tiny), and folders whose weights are made of a seed
// (tests/data/made).
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/types/ids.h"
#include "model/checkpoint.h"
#include "tests/support/made_weights.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::testing {

// The folders of tests/data/`kind`, which is "tiny" (those with weights) or "made" (those whose
// weights are made), by name. They are read from the root of the project.
inline std::vector<std::string> CaseNames(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/" + kind)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// All of them, for ReadTinyCase.
inline std::vector<std::string> AllTinyCases() {
  std::vector<std::string> paths;
  for (const char* kind : {"tiny", "made"}) {
    for (const std::string& name : CaseNames(kind)) paths.push_back(absl::StrCat(kind, "/", name));
  }
  return paths;
}
// The name of a test of the case.
inline std::string TinyCaseName(const ::testing::TestParamInfo<std::string>& info) {
  return absl::StrReplaceAll(info.param, {{"/", "_"}});
}

struct TinyCase {
  std::shared_ptr<const model::Checkpoint> file;
  std::vector<TokenId> ids;
  std::vector<std::size_t> positions;      // where there are logits
  std::vector<std::vector<float>> logits;  // of each of the positions
  // The tokens that follow the first `prompt` ids greedily; none: nobody knows.
  std::size_t prompt = 0;
  std::vector<TokenId> greedy;
  std::uint32_t served = 0;  // the positions that the model is served for; 0: its own
};

// The folder with the weights of tests/data/`path`: itself, or `made`, in which they are made. If
// something is missing, the test fails.
inline std::string TinyCaseFolder(const std::string& path, const std::string& made) {
  const std::string folder = "tests/data/" + path;
  if (std::filesystem::exists(folder + "/model.safetensors")) return folder;
  std::ifstream text(folder + "/case.json");
  const nlohmann::json numbers = text ? nlohmann::json::parse(text) : nlohmann::json::object();
  if (!WriteMadeFolder(folder, numbers.value("seed", 0ull), numbers.value("tokens", 0ull), made)) {
    ADD_FAILURE() << folder << " has no weights";
  }
  return made;
}

// Reads tests/data/`path`, e.g. "tiny/llama". If something is missing, the test fails and `file` is
// null.
inline TinyCase ReadTinyCase(const std::string& path) {
  const std::string folder = "tests/data/" + path;
  TinyCase result;
  std::ifstream text(folder + "/case.json");
  nlohmann::json numbers;
  if (text) numbers = nlohmann::json::parse(text);
  const ScratchDirectory made;
  auto file = model::OpenCheckpoint(TinyCaseFolder(path, made.path()));
  std::ifstream array(folder + "/logits.npy", std::ios::binary);
  if (!file.ok() || numbers.is_null() || !array) {
    ADD_FAILURE() << folder << " cannot be read: " << file.status();
    return result;
  }
  result.ids = numbers["ids"].get<std::vector<TokenId>>();
  result.positions = numbers["positions"].get<std::vector<std::size_t>>();
  result.prompt = numbers.value("prompt", std::size_t{0});
  result.served = numbers.value("served", 0u);
  if (numbers.contains("greedy")) result.greedy = numbers["greedy"].get<std::vector<TokenId>>();
  // The array is the end of the file: fp32, a row for each position.
  const std::string bytes{std::istreambuf_iterator<char>(array), {}};
  const std::size_t header =
      10 + static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  const std::size_t row_bytes = (bytes.size() - header) / result.positions.size();
  for (std::size_t i = 0; i < result.positions.size(); ++i) {
    std::vector<float>& row = result.logits.emplace_back(row_bytes / sizeof(float));
    std::memcpy(row.data(), bytes.data() + header + i * row_bytes, row_bytes);
  }
  result.file = *std::move(file);
  return result;
}

}  // namespace flotilla::testing
