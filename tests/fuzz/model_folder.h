// A Hugging Face folder below $TMPDIR, whose files a fuzzer writes. Files are fastest in memory,
// so scripts/test has $TMPDIR there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace flotilla::testing {

// Owns the folder and deletes it. A file that cannot be written ends the process.
class ModelFolder {
 public:
  ModelFolder();
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, std::string_view content) const;
  // Writes a safetensors file with this header and `data_bytes` zeros, which take no memory.
  void WriteTensors(const std::string& name, std::string_view header, std::size_t data_bytes) const;
  void Remove(const std::string& name) const;

  // Opens the folder and uses what is accepted of it.
  void Use() const;

 private:
  std::string path_;
};

}  // namespace flotilla::testing
