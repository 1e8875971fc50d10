#include "tests/fuzz/model_folder.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "model/checkpoint.h"
#include "tests/support/use_checkpoint.h"

namespace flotilla::testing {

namespace fs = std::filesystem;

ModelFolder::ModelFolder() : path_(fs::temp_directory_path() / "flotilla-fuzz-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) {
    std::perror(path_.c_str());
    std::abort();
  }
}

ModelFolder::~ModelFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void ModelFolder::Write(const std::string& name, std::string_view content) const {
  const std::string path = path_ + "/" + name;
  if (std::ofstream(path, std::ios::binary) << content) return;
  std::perror(path.c_str());
  std::abort();
}

void ModelFolder::WriteTensors(const std::string& name, std::string_view header,
                               std::size_t data_bytes) const {
  const std::uint64_t size = header.size();
  std::string head(reinterpret_cast<const char*>(&size), sizeof size);
  head += header;
  Write(name, head);
  fs::resize_file(path_ + "/" + name, head.size() + data_bytes);
}

void ModelFolder::Remove(const std::string& name) const { fs::remove(path_ + "/" + name); }

void ModelFolder::Use() const {
  const auto checkpoint = model::OpenCheckpoint(path_);
  if (checkpoint.ok()) UseCheckpoint(**checkpoint);
}

}  // namespace flotilla::testing
