// Checks that README's section "What runs" and docs/models.md agree with the tables of the code.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "model/ggml_type.h"
#include "model/huggingface/class_defaults.h"
#include "model/load_spec.h"
#include "model/tensor.h"
#include "model/text/pretokenizer.h"

namespace flotilla::model {
namespace {

using Names = std::set<std::string>;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The words in backquotes.
Names WordsOf(const std::string& text) {
  Names names;
  bool inside = false;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, '`'))) {
    if (inside) names.insert(part);
    inside = !inside;
  }
  return names;
}

// Returns the words in backquotes in the row that begins with `title` of the section's table.
Names RowOf(const std::string& title) {
  const std::string text = TextOf("README.md");
  const std::size_t section = text.find("\n## What runs\n");
  const std::size_t row = text.find("\n| " + title + " |", section);
  EXPECT_NE(section, std::string::npos) << "run the test from the source folder";
  EXPECT_NE(row, std::string::npos) << title;
  if (row == std::string::npos) return {};
  return WordsOf(text.substr(row + 1, text.find('\n', row + 1) - row - 1));
}

// The first word in backquotes in a cell; empty: there is none.
std::string WordOf(const std::string& cell) {
  const std::vector<std::string> parts = absl::StrSplit(cell, '`');
  return parts.size() < 3 ? "" : parts[1];
}

// The models in tests/data/tiny and tests/data/made: the name of the folder, and the model_type.
using Models = std::set<std::pair<std::string, std::string>>;
Models TestedModels() {
  Models models;
  for (const char* kind : {"tests/data/tiny", "tests/data/made"}) {
    for (const auto& folder : std::filesystem::directory_iterator(kind)) {
      std::ifstream file(folder.path() / "config.json");
      if (!file) continue;
      models.emplace(folder.path().filename(), nlohmann::json::parse(file).value("model_type", ""));
    }
  }
  return models;
}

// Each row of the table of architectures has a name that the code knows, in one of its two columns
// of names, and the code knows no other. Its last column names all tested models of that type.
TEST(WhatRunsTest, Architectures) {
  Models proved;
  const auto list = KnownArchitectures();
  const Names known(list.begin(), list.end());
  Names found;
  std::ifstream file("docs/models.md");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## Architectures";
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (!inside || cells.size() != 7 || WordOf(cells[5]).empty()) continue;
    const std::string hf = WordOf(cells[2]), llama_cpp = WordOf(cells[3]);
    const std::string name = known.contains(hf) ? hf : llama_cpp;
    EXPECT_TRUE(known.contains(name)) << line;
    found.insert(name);
    // What a folder may leave out (the third step of "How to add one").
    EXPECT_FALSE(ClassDefaults(hf).empty()) << hf << " has no row in class_defaults.cc";
    for (const std::string& folder : WordsOf(cells[5])) proved.emplace(folder, hf);
  }
  EXPECT_EQ(found, known);
  EXPECT_EQ(proved, TestedModels());
}

// Cases are configurations, ids and logits; their weights are made.
TEST(WhatRunsTest, FixturesAreSmall) {
  constexpr std::uintmax_t kKiB = 1024;
  for (const auto& folder : std::filesystem::directory_iterator("tests/data/made")) {
    if (!folder.is_directory()) continue;
    std::uintmax_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
      const bool names = file.path().filename() == "gguf.tsv";
      EXPECT_LE(file.file_size(), names ? 20 * kKiB : 40 * kKiB) << file.path();
      if (!names) bytes += file.file_size();
    }
    EXPECT_LE(bytes, 40 * kKiB) << folder.path();
  }
}

// Each model of tests/data/tiny has a second one in tests/data/made, with the widths that the page
// states.
TEST(WhatRunsTest, SecondModelsHaveTheWidthsThatArePromised) {
  const std::vector<std::vector<std::string>> keys = {
      {"num_attention_heads", "n_head"},
      {"hidden_size", "n_embd"},
      {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"},
      {"num_hidden_layers", "n_layer"}};
  std::size_t models = 0, grouped = 0;
  for (const auto& folder : std::filesystem::directory_iterator("tests/data/tiny")) {
    if (!folder.is_directory()) continue;
    const std::string name = folder.path().filename();
    const auto config = nlohmann::json::parse(TextOf("tests/data/made/" + name + "/config.json"));
    std::vector<int> widths;
    for (const auto& names : keys) {
      for (const std::string& key : names) {
        if (config.contains(key)) widths.push_back(config[key].get<int>());
      }
    }
    // BLOOM's FFN has no width in its configuration.
    const bool bloom = name == "bloom_alibi";
    EXPECT_EQ(widths, bloom ? std::vector({6, 96, 4}) : std::vector({6, 96, 224, 4})) << name;
    const auto first = nlohmann::json::parse(TextOf("tests/data/tiny/" + name + "/config.json"));
    for (const char* key : {"num_key_value_heads", "num_kv_heads"}) {
      if (!first.contains(key)) continue;
      // 4 heads share 1, 2 or 4 in the first model.
      const int heads = first[key].get<int>();
      EXPECT_EQ(config[key].get<int>(), heads == 2 ? 3 : heads == 4 ? 6 : 1) << name;
      ++grouped;
    }
    const auto greedy =
        nlohmann::json::parse(TextOf("tests/data/made/" + name + "/case.json"))["greedy"];
    EXPECT_EQ(greedy.size(), 32) << name;
    ++models;
  }
  EXPECT_EQ(models, 32);
  EXPECT_EQ(grouped, 27);
}

// The example of docs/models.md is what the file has.
TEST(WhatRunsTest, HowToAddAnArchitecture) {
  const std::string page = TextOf("docs/models.md");
  const std::string_view opening = "\n```cpp\n";
  const std::size_t begin = page.find(opening) + opening.size();
  const std::string example = page.substr(begin, page.find("```", begin) - begin);
  EXPECT_TRUE(example.starts_with("extern const Architecture kErnie45")) << example;
  EXPECT_NE(TextOf("model/architectures/ernie4_5.cc").find("\n" + example), std::string::npos)
      << example;
}

TEST(WhatRunsTest, WeightFormats) {
  Names decodable;
  for (std::uint32_t id = 0; id < 256; ++id) {
    const GgmlTypeInfo* type = FindGgmlType(id);
    if (type != nullptr && IsDecodable(type->type)) decodable.insert(std::string(type->name));
  }
  EXPECT_EQ(RowOf("weights"), decodable);
}

TEST(WhatRunsTest, Pretokenizers) {
  TokenizerBundle unknown;
  unknown.pretokenizer = "?";
  const std::string refusal(Pretokenizer::Create(unknown).status().message());
  const std::string list = refusal.substr(refusal.rfind(": ") + 2);
  Names known = absl::StrSplit(list, ", ");
  // The kinds of tokenizers (Tokenizer::Create), and one that GGUF files call by another name.
  known.insert({"bert", "gemma4", "gpt2", "llama", "t5"});
  EXPECT_EQ(RowOf("tokenizer"), known);
}

}  // namespace
}  // namespace flotilla::model
