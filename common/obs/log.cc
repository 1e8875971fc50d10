#include "common/obs/log.h"

#include <spdlog/common.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/obs/line_writer.h"
#include "common/obs/printable.h"

namespace flotilla {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

LogLevel FromSpdlog(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return LogLevel::kError;
  if (level == spdlog::level::warn) return LogLevel::kWarning;
  return level == spdlog::level::info ? LogLevel::kInfo : LogLevel::kDebug;
}

// Hands finished lines to a Logger::Sink; base_sink holds the lock.
class ForwardingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ForwardingSink(std::unique_ptr<Logger::Sink> target) : target_(std::move(target)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    target_->Write(FromSpdlog(message.level),
                   std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  const std::unique_ptr<Logger::Sink> target_;
};

// Formats lines, and hands them to the thread that writes.
class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(LineWriter* writer) : writer_(writer) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_->Put(std::string(line.data(), line.size()), message.level >= spdlog::level::warn);
  }
  void flush_() override {}

  LineWriter* const writer_;
};

bool NeedsQuotes(std::string_view value) {
  const auto parts_fields = [](char c) { return c == ' ' || c == '"' || c == '=' || c == '\\'; };
  return value.empty() || std::any_of(value.begin(), value.end(), parts_fields) ||
         !IsPrintable(value);
}

std::string Format(std::string_view event, Logger::Fields fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    line.append(" ").append(field.key).append("=");
    if (NeedsQuotes(field.value)) {
      line.append("\"").append(Printable(field.value, /*quoted=*/true)).append("\"");
    } else {
      line += field.value;
    }
  }
  return line;
}

// The log line that takes the place of dropped lines.
std::string LinesAreMissing(std::uint64_t count) {
  return absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()),
                      " warning log lines dropped lines=", count, "\n");
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError("log level '" + std::string(name) +
                                    "' is none of debug, info, warning, error");
}

struct Logger::Impl {
  Impl(LogLevel level, std::unique_ptr<LineWriter> lines, spdlog::sink_ptr sink)
      : writer(std::move(lines)), out("flotilla", std::move(sink)) {
    out.set_level(ToSpdlog(level));
    out.set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  }

  const std::unique_ptr<LineWriter> writer;  // null: there is a Sink
  spdlog::logger out;
};

Logger::Logger(LogLevel level) {
  auto writer = std::make_unique<LineWriter>(LineWriterOptions{.missing = LinesAreMissing});
  auto sink = std::make_shared<QueueSink>(writer.get());
  impl_ = std::make_unique<Impl>(level, std::move(writer), std::move(sink));
}

Logger::Logger(LogLevel level, std::unique_ptr<Sink> sink)
    : impl_(std::make_unique<Impl>(level, nullptr,
                                   std::make_shared<ForwardingSink>(std::move(sink)))) {}

Logger::~Logger() = default;

bool Logger::Takes(LogLevel level) const { return impl_->out.should_log(ToSpdlog(level)); }

void Logger::Log(LogLevel level, std::string_view event, Fields fields) {
  if (!Takes(level)) return;
  impl_->out.log(ToSpdlog(level), spdlog::string_view_t(Format(event, fields)));
}

void Logger::Print(std::string text) {
  if (impl_->writer != nullptr) impl_->writer->Put(std::move(text), /*important=*/true);
}

std::uint64_t Logger::dropped_lines() const {
  return impl_->writer == nullptr ? 0 : impl_->writer->dropped();
}

}  // namespace flotilla
