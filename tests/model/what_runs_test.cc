// Checks that README's section "What runs" and docs/models.md agree with the tables of the code.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "model/ggml_type.h"
#include "model/load_spec.h"
#include "model/tensor.h"
#include "model/text/pretokenizer.h"

namespace flotilla::model {
namespace {

using Names = std::set<std::string>;

// Returns the words in backquotes in the row that begins with `title` of the section's table.
Names RowOf(const std::string& title) {
  std::ifstream file("README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t section = text.find("\n## What runs\n");
  const std::size_t row = text.find("\n| " + title + " |", section);
  EXPECT_NE(section, std::string::npos) << "run the test from the source folder";
  EXPECT_NE(row, std::string::npos) << title;
  if (row == std::string::npos) return {};
  const std::string line = text.substr(row + 1, text.find('\n', row + 1) - row - 1);
  Names names;
  bool inside = false;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(line, '`'))) {
    if (inside) names.insert(part);
    inside = !inside;
  }
  return names;
}

// The word in backquotes in a cell; empty: there is none.
std::string WordOf(const std::string& cell) {
  const std::vector<std::string> parts = absl::StrSplit(cell, '`');
  return parts.size() < 3 ? "" : parts[1];
}

// Each row of the table of architectures has a name that the code knows, in one of its two columns
// of names, and the code knows no other.
TEST(WhatRunsTest, Architectures) {
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
  }
  EXPECT_EQ(found, known);
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
  known.insert({"bert", "gpt2", "llama", "t5"});  // the kinds of tokenizers (Tokenizer::Create)
  EXPECT_EQ(RowOf("tokenizer"), known);
}

}  // namespace
}  // namespace flotilla::model
