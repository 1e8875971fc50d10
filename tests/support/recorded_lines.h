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

inline std::vector<std::string> ReadRecorded(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Returns whether `lines` may replace `recorded`. The first line of both is a version; other lines
// need another version. Nothing recorded may be replaced by anything.
inline bool MayReplace(const std::vector<std::string>& recorded,
                       const std::vector<std::string>& lines) {
  return recorded.empty() || recorded == lines || recorded.front() != lines.front();
}

// Expects that `lines` are those of the file at `path`.
inline void ExpectAsRecorded(const std::vector<std::string>& lines, const std::string& path) {
  if (std::getenv("FLOTILLA_RECORD") != nullptr) {
    std::ofstream file(path);
    for (const std::string& line : lines) file << line << "\n";
  }
  EXPECT_EQ(lines, ReadRecorded(path))
      << "other than before; where that is meant, record " << path << " with FLOTILLA_RECORD=1";
}

// The same for lines that belong to a version, which the file has as its first line. The file
// cannot be recorded anew as long as the version is the same.
inline void ExpectAsRecorded(const std::string& version, std::vector<std::string> lines,
                             const std::string& path) {
  lines.insert(lines.begin(), version);
  ASSERT_TRUE(std::getenv("FLOTILLA_RECORD") == nullptr || MayReplace(ReadRecorded(path), lines))
      << path << " has other lines of the same version: " << version;
  ExpectAsRecorded(lines, path);
}

}  // namespace flotilla::testing
