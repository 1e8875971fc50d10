#include "common/obs/log.h"

#include <spdlog/common.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"

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

bool NeedsQuotes(std::string_view value) {
  return value.empty() || std::any_of(value.begin(), value.end(), [](unsigned char c) {
           return c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f;
         });
}

std::string Format(std::string_view event, Logger::Fields fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    line.append(" ").append(field.key).append("=");
    if (NeedsQuotes(field.value)) {
      line.append("\"").append(absl::Utf8SafeCEscape(field.value)).append("\"");
    } else {
      line += field.value;
    }
  }
  return line;
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
  explicit Impl(LogLevel level, spdlog::sink_ptr sink) : out("flotilla", std::move(sink)) {
    out.set_level(ToSpdlog(level));
    out.set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
    out.flush_on(spdlog::level::debug);
  }
  spdlog::logger out;
};

Logger::Logger(LogLevel level)
    : impl_(std::make_unique<Impl>(level, std::make_shared<spdlog::sinks::stderr_sink_mt>())) {}

Logger::Logger(LogLevel level, std::unique_ptr<Sink> sink)
    : impl_(std::make_unique<Impl>(level, std::make_shared<ForwardingSink>(std::move(sink)))) {}

Logger::~Logger() = default;

bool Logger::Takes(LogLevel level) const { return impl_->out.should_log(ToSpdlog(level)); }

void Logger::Log(LogLevel level, std::string_view event, Fields fields) {
  if (!Takes(level)) return;
  impl_->out.log(ToSpdlog(level), spdlog::string_view_t(Format(event, fields)));
}

}  // namespace flotilla
