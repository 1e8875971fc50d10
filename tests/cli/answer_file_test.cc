// The files of `flotilla run`: lines are read whole, and an output goes on where it was torn.
#include "router/files/answer_file.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run_input.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/files/line_reader.h"
#include "tests/router/failing_disk.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::cli {
namespace {

using router::AnswerFile;
using router::LineReader;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AnswerFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  std::string Content() const {
    std::stringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  // The lines that Recover reports.
  std::vector<std::string> Recover(AnswerFile& file, bool torn) {
    std::vector<std::string> lines;
    const auto cut = file.Recover([&](std::string_view line) {
      lines.emplace_back(line);
      return absl::OkStatus();
    });
    EXPECT_TRUE(cut.ok()) << cut.status();
    EXPECT_EQ(*cut, torn ? AnswerFile::Recovered::kTorn : AnswerFile::Recovered::kWhole);
    return lines;
  }

  const testing::ScratchDirectory folder_;
  const std::string path_ = folder_.path() + "/out";
  router::Disk disk_;
};

TEST_F(AnswerFileTest, LinesAreReadWithTheirPlaces) {
  const std::string large(700'000, 'x');
  const UniqueFd fd(open(Write("a\n\n" + large + "\nend").c_str(), O_RDONLY));
  LineReader lines(fd.get(), large.size());
  std::vector<std::string> texts;
  std::vector<std::uint64_t> begins;
  while (true) {
    const auto line = lines.Next();
    ASSERT_TRUE(line.ok()) << line.status();
    if (!line->has_value()) break;
    texts.emplace_back((*line)->text);
    begins.push_back((*line)->begin);
    EXPECT_EQ((*line)->number, texts.size());
    EXPECT_EQ((*line)->whole, texts.size() < 4);
  }
  EXPECT_THAT(texts, ElementsAre("a", "", large, "end"));
  EXPECT_THAT(begins, ElementsAre(0, 2, 3, 3 + large.size() + 1));
}

TEST_F(AnswerFileTest, ALineThatIsTooLongIsRefusedWithoutItsEnd) {
  const UniqueFd fd(open(Write("ok\n" + std::string(1'000'000, 'x')).c_str(), O_RDONLY));
  LineReader lines(fd.get(), 1000);
  ASSERT_TRUE(lines.Next().ok());
  const auto line = lines.Next();
  EXPECT_TRUE(absl::IsResourceExhausted(line.status()));
  EXPECT_THAT(std::string(line.status().message()), HasSubstr("line 2 is longer than 1000 bytes"));
}

TEST_F(AnswerFileTest, AFileGoesOnWhereItWasTorn) {
  for (std::size_t kept = 0; kept <= 8; ++kept) {
    Write(std::string("one\ntwo\n").substr(0, kept));
    const std::size_t whole = kept / 4;
    auto file = AnswerFile::Open(path_, &disk_);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(Recover(*file, kept % 4 != 0).size(), whole) << kept;
    ASSERT_TRUE(file->Append("new\n").ok() && file->Sync().ok());
    EXPECT_EQ(Content(), std::string("one\ntwo\n").substr(0, 4 * whole) + "new\n") << kept;
  }
}

TEST_F(AnswerFileTest, ALongFileIsReadInSlices) {
  Write("one\ntwo\nthree\nfo");
  auto file = AnswerFile::Open(path_, &disk_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> lines;
  const auto slice = [&](std::size_t bytes) {
    lines.clear();
    return *file->Recover(
        [&](std::string_view line) {
          lines.emplace_back(line);
          return absl::OkStatus();
        },
        bytes);
  };
  EXPECT_EQ(slice(5), AnswerFile::Recovered::kMore);
  EXPECT_THAT(lines, ElementsAre("one", "two"));
  EXPECT_EQ(slice(1), AnswerFile::Recovered::kMore);
  EXPECT_THAT(lines, ElementsAre("three"));
  EXPECT_EQ(slice(1), AnswerFile::Recovered::kTorn);
  EXPECT_THAT(lines, IsEmpty());
  EXPECT_EQ(Content(), "one\ntwo\nthree\n");
}

TEST_F(AnswerFileTest, AnErrorNamesTheLineAndNothingIsCutOff) {
  Write("one\ntwo\nthr");
  auto file = AnswerFile::Open(path_, &disk_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto torn = file->Recover([](std::string_view line) {
    return line == "two" ? absl::InvalidArgumentError("not that") : absl::OkStatus();
  });
  EXPECT_EQ(std::string(torn.status().message()), path_ + " line 2: not that");
  EXPECT_EQ(Content(), "one\ntwo\nthr");
}

TEST_F(AnswerFileTest, WhatDoesNotFitLeavesNoHalfLine) {
  auto file = AnswerFile::Open(path_, &disk_);
  ASSERT_TRUE(file.ok() && file->Append("one\n").ok());
  // A file that may not grow stands in for a full disk.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = file->Append("two, which is long\n");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
  EXPECT_EQ(Content(), "one\n");
}

TEST_F(AnswerFileTest, WhatASyncHasLostIsWrittenAgain) {
  router::FailingDisk disk;
  {
    auto file = AnswerFile::Open(path_, &disk);
    ASSERT_TRUE(file.ok() && file->Append("one\n").ok() && file->Sync().ok());
    disk.fails = [this](std::string_view path) { return path == path_; };
    ASSERT_TRUE(file->Append("two\n").ok());
    EXPECT_TRUE(absl::IsUnavailable(file->Sync()));
    disk.fails = nullptr;
    EXPECT_TRUE(absl::IsUnavailable(file->Sync()));  // the disk would say that all is well
  }
  EXPECT_EQ(disk.Lost(folder_.path()), 4u);
  auto file = AnswerFile::Open(path_, &disk);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(Recover(*file, false), ElementsAre("one", "two"));
  ASSERT_TRUE(file->Append("three\n").ok() && file->Sync().ok());
  EXPECT_EQ(disk.Lost(folder_.path()), 0u);
  EXPECT_EQ(Content(), "one\ntwo\nthree\n");
}

TEST_F(AnswerFileTest, WhatThisProcessHasSyncedIsNotWrittenAgain) {
  Write("zero\n");  // by another process
  router::FailingDisk disk;
  std::uint64_t kept = 0;
  const auto reopen = [&](std::size_t lines, std::size_t written_again) {
    disk.written_again = 0;
    auto file = AnswerFile::Open(path_, &disk, kept);
    EXPECT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(Recover(*file, false).size(), lines);
    EXPECT_EQ(disk.written_again, written_again);
    return file;
  };
  {
    auto file = reopen(1, 5);
    EXPECT_EQ(file->kept(), 0u);
    ASSERT_TRUE(file->Append("one\n").ok() && file->Sync().ok());
    kept = file->kept();
    EXPECT_EQ(kept, 9u);
    ASSERT_TRUE(file->Append("two\n").ok());
    EXPECT_EQ(file->kept(), kept);
  }
  {
    auto file = reopen(3, 4);
    ASSERT_TRUE(file->Sync().ok());
    EXPECT_EQ(file->kept(), 13u);
    ASSERT_TRUE(file->Append("three\n").ok());
    disk.fails = [this](std::string_view path) { return path == path_; };
    EXPECT_FALSE(file->Sync().ok());
    disk.fails = nullptr;
    kept = file->kept();
    EXPECT_EQ(kept, 0u);
  }
  reopen(4, 19)->Sync().IgnoreError();
  EXPECT_EQ(disk.Lost(folder_.path()), 0u);
  kept = 19;
  Write("zero\none\nt");  // the end is gone
  auto file = AnswerFile::Open(path_, &disk, kept);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Recover(*file, true).size(), 2u);
  EXPECT_EQ(file->kept(), 9u);
}

TEST_F(AnswerFileTest, ALongFileIsSyncedWhileItIsRead) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string((1 << 20) - 1, 'x') + '\n';
  Write(text);
  router::FailingDisk disk;
  int syncs = 0;
  disk.fails = [&](std::string_view path) {
    if (path == path_) ++syncs;
    return false;
  };
  auto file = AnswerFile::Open(path_, &disk);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Recover(*file, false).size(), 20u);
  EXPECT_EQ(syncs, 2);  // after 8 and 16 MiB
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(Content(), text);
}

TEST_F(AnswerFileTest, ADamagedLineIsCutOffWithAllThatFollowIt) {
  Write("one\nt?o\nthree\n");
  auto file = AnswerFile::Open(path_, &disk_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto cut = file->Recover([](std::string_view line) {
    return line == "one" ? absl::OkStatus() : absl::DataLossError("damaged");
  });
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(*cut, AnswerFile::Recovered::kDamaged);
  ASSERT_TRUE(file->Append("two\n").ok());
  EXPECT_EQ(Content(), "one\ntwo\n");
}

TEST_F(AnswerFileTest, OneProcessWritesAtATime) {
  {
    const auto first = AnswerFile::Open(path_, &disk_);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_THAT(std::string(AnswerFile::Open(path_, &disk_).status().message()),
                HasSubstr("another flotilla run writes to " + path_));
  }
  EXPECT_TRUE(AnswerFile::Open(path_, &disk_).ok());
}

TEST_F(AnswerFileTest, WhatCannotBeOpenedOrWrittenIsNamed) {
  EXPECT_EQ(std::string(AnswerFile::Open("/no/such", &disk_).status().message()),
            "cannot open /no/such: No such file or directory");
  EXPECT_EQ(std::string(OpenInput("/no/such").status().message()),
            "cannot open /no/such: No such file or directory");
  auto full = AnswerFile::Open("/dev/full", &disk_);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_THAT(Recover(*full, false), IsEmpty());
  EXPECT_EQ(std::string(full->Append("x\n").message()),
            "cannot write to /dev/full: No space left on device");
}

}  // namespace
}  // namespace flotilla::cli
