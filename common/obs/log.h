// Logger: structured lines on standard error, one event a line.
//
//   log.Info("listening", {{"http", address}, {"streams", 12}});
//   2026-01-31T12:00:00.123Z info listening http=127.0.0.1:8080 streams=12
//
// Built by main and handed to shells by pointer; cores never log. All methods
// may be called from any thread, and none waits for the reader of standard error: lines go
// through a bounded queue to a thread that writes them (line_writer.h). A value never breaks
// its line: values are quoted and escaped where necessary (printable.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace flotilla {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error"; INVALID_ARGUMENT otherwise.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);

// One key=value of a line.
struct LogField {
  LogField(std::string_view name, std::string_view text) : key(name), value(text) {}
  LogField(std::string_view name, const absl::Status& status)
      : key(name), value(status.ToString()) {}
  template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>)
      LogField(std::string_view name, Number number)
      : key(name), value(absl::StrCat(number)) {}

  std::string_view key;
  std::string value;
};

class Logger {
 public:
  using Fields = std::initializer_list<LogField>;

  // Receives every line at or above `level`, without its end of line, from one
  // thread at a time.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void Write(LogLevel level, std::string_view line) = 0;
  };

  // Writes to standard error.
  explicit Logger(LogLevel level);
  Logger(LogLevel level, std::unique_ptr<Sink> sink);
  // Writes what is queued, but gives up if the reader takes nothing for a second.
  ~Logger();

  void Debug(std::string_view event, Fields fields = {}) { Log(LogLevel::kDebug, event, fields); }
  void Info(std::string_view event, Fields fields = {}) { Log(LogLevel::kInfo, event, fields); }
  void Warning(std::string_view event, Fields fields = {}) {
    Log(LogLevel::kWarning, event, fields);
  }
  void Error(std::string_view event, Fields fields = {}) { Log(LogLevel::kError, event, fields); }

  void Log(LogLevel level, std::string_view event, Fields fields);

  // Whether lines of this level are written. Ask before you make fields that are expensive.
  bool Takes(LogLevel level) const;

  // Writes text for people, in order with the log's lines. The text has its line ends. A Sink does
  // not receive it.
  void Print(std::string text);

  // The number of lines that were dropped because the queue was full.
  std::uint64_t dropped_lines() const;

 private:
  struct Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace flotilla
