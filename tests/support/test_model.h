// Where tests find the real model file and the golden data.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

namespace flotilla::testing {

// The path in FLOTILLA_MODEL, or the cached file that scripts/test fetches.
inline std::string ModelPath() {
  if (const char* path = std::getenv("FLOTILLA_MODEL")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : std::string(home ? home : "") + "/.cache";
  return base + "/flotilla/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

// The lines of a JSON-lines file under tests/data.
inline std::vector<nlohmann::ordered_json> ReadJsonLines(const std::string& name) {
  std::ifstream file("tests/data/" + name);
  EXPECT_TRUE(file.is_open()) << "tests/data/" << name
                              << " cannot be read: run the test from the source folder";
  std::vector<nlohmann::ordered_json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::ordered_json::parse(line));
  }
  return lines;
}

}  // namespace flotilla::testing
