// A folder of small files that tests change.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace flotilla::testing {

class SecretFiles {
 public:
  SecretFiles() {
    std::string name = std::filesystem::temp_directory_path() / "flotilla-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~SecretFiles() { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }
  // Renames a new file over the old one and returns the path.
  std::string Write(const std::string& name, std::string_view text, mode_t mode = 0600) const {
    const std::string draft = Path(name + ".new");
    std::ofstream(draft, std::ios::binary) << text;
    chmod(draft.c_str(), mode);
    std::filesystem::rename(draft, Path(name));
    return Path(name);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace flotilla::testing
