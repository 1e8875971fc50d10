// Tiny models with the logits that Hugging Face's transformers computed for them (tests/data/tiny):
// folders as Hugging Face writes them. Some have the same weights as a GGUF file, too.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/types/ids.h"
#include "model/checkpoint.h"

namespace flotilla::testing {

// All of them: folders of tests/data/tiny.
inline constexpr const char* kTinyCases[] = {
    "bloom_alibi",     "cohere",      "cohere2",      "falcon_gqa",  "falcon_mqa",
    "gemma",           "gemma2",      "gemma3_text",  "glm4",        "gpt2",
    "gpt_bigcode_mqa", "gpt_neox",    "gpt_oss",      "gptj",        "granite",
    "llama",           "llama3_rope", "llama_yarn",   "mistral_swa", "mixtral",
    "olmo2",           "opt",         "phi",          "phi3",        "qwen2",
    "qwen3",           "qwen3_moe",   "smollm3_nope", "stablelm",    "starcoder2"};

struct TinyCase {
  std::shared_ptr<const model::Checkpoint> file;
  std::shared_ptr<const model::Checkpoint> gguf;  // null: there is none
  std::vector<TokenId> ids;
  std::vector<std::size_t> positions;      // where there are logits
  std::vector<std::vector<float>> logits;  // of each of the positions
};

// If something is missing, the test fails and `file` is null.
inline TinyCase ReadTinyCase(const std::string& name) {
  const std::string folder = "tests/data/tiny/" + name;
  TinyCase result;
  auto file = model::OpenCheckpoint(folder);
  if (auto gguf = model::OpenCheckpoint(folder + "/model.gguf"); gguf.ok()) result.gguf = *gguf;
  std::ifstream text(folder + "/case.json");
  std::ifstream array(folder + "/logits.npy", std::ios::binary);
  if (!file.ok() || !text || !array) {
    ADD_FAILURE() << folder << " cannot be read: " << file.status();
    return result;
  }
  const nlohmann::json numbers = nlohmann::json::parse(text);
  result.ids = numbers["ids"].get<std::vector<TokenId>>();
  result.positions = numbers["positions"].get<std::vector<std::size_t>>();
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
