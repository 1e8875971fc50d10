// LogLines: a logger whose lines a test can read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/obs/log.h"

namespace flotilla::testing {

// The lines that a logger has written.
class LogLines {
 public:
  Logger& logger() { return logger_; }
  std::vector<std::string> lines() const {
    absl::MutexLock lock(&shared_->mu);
    return shared_->lines;
  }
  // The lines that contain `text`.
  std::vector<std::string> With(std::string_view text) const {
    std::vector<std::string> found = lines();
    std::erase_if(found,
                  [&](const std::string& line) { return line.find(text) == std::string::npos; });
    return found;
  }
  int Count(std::string_view text) const { return static_cast<int>(With(text).size()); }

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
