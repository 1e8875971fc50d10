#include "common/obs/line_writer.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace flotilla {
namespace {

// A pipe, and a writer to it.
class LineWriterTest : public ::testing::Test {
 protected:
  LineWriterTest() { EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0); }
  ~LineWriterTest() override {
    writer_.reset();
    for (const int end : ends_) close(end);
  }

  void Start(std::size_t max_bytes, std::size_t max_lines, absl::Duration patience) {
    writer_ = std::make_unique<LineWriter>(LineWriterOptions{
        .fd = ends_[1],
        .max_bytes = max_bytes,
        .max_lines = max_lines,
        .patience = patience,
        .missing = [](std::uint64_t dropped) { return absl::StrCat("missing ", dropped, "\n"); }});
  }

  // Destroys the writer, and returns all lines that it has written.
  std::vector<std::string> ReadAll() {
    std::string all;
    std::thread reader([&] {
      std::array<char, 4096> some;
      for (ssize_t got; (got = read(ends_[0], some.data(), some.size())) > 0;) {
        all.append(some.data(), static_cast<std::size_t>(got));
      }
    });
    writer_.reset();
    close(ends_[1]);
    reader.join();
    ends_[1] = -1;
    EXPECT_TRUE(all.empty() || all.back() == '\n');
    return absl::StrSplit(all, '\n', absl::SkipEmpty());
  }

  std::array<int, 2> ends_{};
  std::unique_ptr<LineWriter> writer_;
};

TEST_F(LineWriterTest, LinesOfEachThreadComeInOrder) {
  Start(1 << 20, 1 << 16, absl::Seconds(60));
  constexpr int kThreads = 4, kLines = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kLines; ++i) {
        EXPECT_TRUE(writer_->Put(absl::StrCat(t, " ", i, "\n"), false));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = ReadAll();
  ASSERT_EQ(lines.size(), kThreads * kLines);
  std::array<int, kThreads> next{};
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    EXPECT_EQ(words[1], std::to_string(next[static_cast<std::size_t>(std::stoi(words[0]))]++));
  }
}

TEST_F(LineWriterTest, NobodyReadsSoLinesAreDroppedAndTold) {
  constexpr std::size_t kBytes = 64 << 10;
  Start(kBytes, 1 << 16, absl::Seconds(60));
  const std::string tail(90, 'x');
  int taken = 0, put = 0;
  // These are more lines than pipe and queue hold together.
  for (; put < 10'000; ++put) taken += writer_->Put(absl::StrCat(put, " ", tail, "\n"), false);
  EXPECT_EQ(writer_->dropped(), static_cast<std::uint64_t>(put - taken));
  EXPECT_GT(put - taken, 10'000 - 2'200);
  EXPECT_LT(put - taken, 10'000);
  // Some room is kept for important lines.
  EXPECT_TRUE(writer_->Put("important\n", true));

  const std::vector<std::string> lines = ReadAll();
  std::uint64_t missing = 0;
  int seen = 0, last = -1;
  bool important = false;
  for (const std::string& line : lines) {
    if (line.starts_with("missing ")) {
      missing += std::stoull(line.substr(8));
    } else if (line == "important") {
      important = true;
    } else {
      EXPECT_TRUE(line.ends_with(tail)) << line;
      EXPECT_GT(std::stoi(line), last);
      last = std::stoi(line);
      ++seen;
    }
  }
  EXPECT_TRUE(important);
  EXPECT_EQ(seen, taken);
  EXPECT_EQ(missing, static_cast<std::uint64_t>(put - taken));
}

TEST_F(LineWriterTest, LinesAreBoundedByTheirNumberToo) {
  Start(1 << 20, 64, absl::ZeroDuration());
  std::string filler(128 << 10, 'x');
  EXPECT_TRUE(writer_->Put(filler, true));  // the pipe is full for ever
  int taken = 0;
  for (int i = 0; i < 1000; ++i) taken += writer_->Put("\n", false);
  EXPECT_LE(taken, 64);
}

TEST_F(LineWriterTest, TheEndDoesNotWaitForAReaderThatStandsStill) {
  Start(1 << 20, 1 << 16, absl::Milliseconds(20));
  const std::string line(1000, 'x');  // without a line end
  while (writer_->Put(line, false)) {
  }
  const absl::Time began = absl::Now();
  writer_.reset();
  EXPECT_LT(absl::Now() - began, absl::Seconds(10));
}

TEST_F(LineWriterTest, AReaderThatIsGoneIsNoReaderThatStandsStill) {
  signal(SIGPIPE, SIG_IGN);
  close(ends_[0]);
  ends_[0] = -1;
  Start(4 << 10, 64, absl::Seconds(60));
  const absl::Time began = absl::Now();
  const std::string line(100, 'x');
  for (int i = 0; i < 10'000; ++i) writer_->Put(line, false);
  writer_.reset();
  EXPECT_LT(absl::Now() - began, absl::Seconds(30));
}

}  // namespace
}  // namespace flotilla
