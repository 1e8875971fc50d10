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

TEST(LogTest, AValueCannotTurnHideOrCommandWhatStandsThere) {
  Lines lines;
  Logger log(LogLevel::kInfo, std::make_unique<Recorder>(&lines));
  log.Info("over", {{"id",
                     "a\xc2\x9b\x31m\xe2\x80\xae"
                     "b\xe2\x81\xa6"
                     "c\xe2\x80\xa8"
                     "d\xe2\x80\x8b"
                     "e\xef\xbb\xbf"},
                    {"bytes", "\x1b[2J\xff\xc0\xaf\xed\xa0\x80"},
                    {"name", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].second, R"(over id="a\u{9b}1m\u{202e}b\u{2066}c\u{2028}d\u{200b}e\u{feff}" )"
                             R"(bytes="\x1b[2J\xff\xc0\xaf\xed\xa0\x80" )"
                             "name=\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80");
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
