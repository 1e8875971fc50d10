// Lines that a change must leave as they were: hashes of plans or answers, recorded in
// tests/data.
//
//   FLOTILLA_RECORD=1   writes the file anew, for a change that means to change them
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::testing {

// Expects that `lines` are those of the file at `path`.
inline void ExpectAsRecorded(const std::vector<std::string>& lines, const std::string& path) {
  if (std::getenv("FLOTILLA_RECORD") != nullptr) {
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
  }
  std::vector<std::string> recorded;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) recorded.push_back(line);
  EXPECT_EQ(lines, recorded) << "other than before; where that is meant, record " << path
                             << " with FLOTILLA_RECORD=1";
}

}  // namespace flotilla::testing
