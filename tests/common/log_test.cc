#include "common/obs/log.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flotilla {
namespace {

using Lines = std::vector<std::pair<LogLevel, std::string>>;

class Recorder final : public Logger::Sink {
 public:
  explicit Recorder(Lines* lines) : lines_(lines) {}
  void Write(LogLevel level, std::string_view line) override {
    lines_->emplace_back(level, std::string(line));
  }

 private:
  Lines* const lines_;
};

TEST(LogTest, FieldsArePrintedInOrder) {
  Lines lines;
  Logger log(LogLevel::kInfo, std::make_unique<Recorder>(&lines));
  log.Info("listening", {{"http", "127.0.0.1:8080"}, {"streams", 12}, {"ratio", 0.5}});
  EXPECT_EQ(lines,
            (Lines{{LogLevel::kInfo, "listening http=127.0.0.1:8080 streams=12 ratio=0.5"}}));
}

TEST(LogTest, AValueCannotForgeALineOrAField) {
  Lines lines;
  Logger log(LogLevel::kInfo, std::make_unique<Recorder>(&lines));
  log.Warning("request",
              {{"id", "a\nb"}, {"name", "x y=\"z\""}, {"none", ""}, {"percent", "{}%s"}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].second, R"(request id="a\nb" name="x y=\"z\"" none="" percent={}%s)");
}

TEST(LogTest, LevelsBelowAreDropped) {
  Lines lines;
  Logger log(LogLevel::kWarning, std::make_unique<Recorder>(&lines));
  log.Debug("a");
  log.Info("b");
  log.Warning("c");
  log.Error("d", {{"status", absl::NotFoundError("gone")}});
  EXPECT_EQ(lines,
            (Lines{{LogLevel::kWarning, "c"}, {LogLevel::kError, "d status=\"NOT_FOUND: gone\""}}));
}

TEST(LogTest, LevelNames) {
  EXPECT_EQ(ParseLogLevel("warning").value(), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel("loud").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace flotilla
