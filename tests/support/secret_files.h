// A folder of small files that tests change, and a log that they can read.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/obs/log.h"

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

// The lines that a logger has written.
class LogLines {
 public:
  Logger& logger() { return logger_; }
  std::vector<std::string> lines() const {
    absl::MutexLock lock(&shared_->mu);
    return shared_->lines;
  }
  // The number of lines that contain `text`.
  int Count(std::string_view text) const {
    int count = 0;
    for (const std::string& line : lines()) count += line.find(text) != std::string::npos;
    return count;
  }

 private:
  struct Shared {
    absl::Mutex mu;
    std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  };
  class Sink final : public Logger::Sink {
   public:
    explicit Sink(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    void Write(LogLevel, std::string_view line) override {
      absl::MutexLock lock(&shared_->mu);
      shared_->lines.emplace_back(line);
    }

   private:
    const std::shared_ptr<Shared> shared_;
  };

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Logger logger_{LogLevel::kDebug, std::make_unique<Sink>(shared_)};
};

}  // namespace flotilla::testing
