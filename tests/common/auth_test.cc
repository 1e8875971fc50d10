// Tests how secrets are compared and how their files are read.
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "common/auth/random_token.h"
#include "common/auth/secret_digest.h"
#include "common/auth/watched_file.h"
#include "tests/support/log_lines.h"
#include "tests/support/manual_clock.h"
#include "tests/support/secret_files.h"

namespace flotilla {
namespace {

using testing::LogLines;
using testing::SecretFiles;

TEST(RandomTokenTest, TokensDiffer) {
  const auto one = RandomToken(), other = RandomToken();
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->size(), 64u);
  EXPECT_NE(*one, *other);
}

TEST(SecretDigestTest, EqualsOfEqualSecretsOnly) {
  EXPECT_EQ(SecretDigest::Of("a secret"), SecretDigest::Of("a secret"));
  EXPECT_FALSE(SecretDigest::Of("a secret") == SecretDigest::Of("a secreT"));
  EXPECT_FALSE(SecretDigest::Of("") == SecretDigest::Of(std::string_view("\0", 1)));
}

TEST(SecretDigestTest, HexIsThatOfSha256sum) {
  // printf abc | sha256sum
  const char* hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  ASSERT_TRUE(SecretDigest::FromHex(hex).has_value());
  EXPECT_EQ(*SecretDigest::FromHex(hex), SecretDigest::Of("abc"));
  std::string upper = hex;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(*SecretDigest::FromHex(upper), SecretDigest::Of("abc"));
  for (std::string wrong : {std::string(), std::string(63, 'a'), std::string(65, 'a'),
                            std::string(64, 'g'), std::string(64, '\0')}) {
    EXPECT_FALSE(SecretDigest::FromHex(wrong).has_value()) << wrong;
  }
}

TEST(BearerTokenTest, TakesTheSchemeInAnyCaseAndNothingElse) {
  EXPECT_EQ(BearerToken("Bearer key"), "key");
  EXPECT_EQ(BearerToken("bEARER  key "), "key");
  for (const char* other :
       {"", "Bearer", "Bearer ", "Bearer  ", "Basic key", "Bearerkey", "key", " Bearer key"}) {
    EXPECT_EQ(BearerToken(other), "") << other;
  }
}

class WatchedFileTest : public ::testing::Test {
 protected:
  using File = WatchedFile<std::string>;

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) {
    return File::Open({.path = path, .clock = &clock_, .log = &log_.logger()},
                      [this](std::string_view text) -> absl::StatusOr<std::string> {
                        ++parsed_;
                        if (text.starts_with("bad")) return absl::InvalidArgumentError("it is bad");
                        return std::string(text);
                      });
  }
  std::string LaterOf(File& file) {
    clock_.AdvanceNs(1'000'000'000);
    return *file.Get();
  }

  SecretFiles files_;
  LogLines log_;
  testing::ManualClock clock_;
  int parsed_ = 0;
};

TEST_F(WatchedFileTest, SaysWhatTheFileSaysOnceItIsTimeToLook) {
  const std::string path = files_.Write("f", "one");
  auto file = Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->Get(), "one");
  files_.Write("f", "two");
  EXPECT_EQ(*(*file)->Get(), "one");  // not yet time
  EXPECT_EQ(LaterOf(**file), "two");
  EXPECT_EQ(log_.Count("read again"), 1);
}

TEST_F(WatchedFileTest, WhatDoesNotChangeIsNotReadAgain) {
  auto file = Open(files_.Write("f", "one"));
  for (int i = 0; i < 5; ++i) LaterOf(**file);
  EXPECT_EQ(parsed_, 1);
  EXPECT_EQ(log_.lines().size(), 0u);
}

TEST_F(WatchedFileTest, AChangeInPlaceWithTheOldSizeAndTimeIsSeen) {
  const std::string path = files_.Write("f", "one");
  auto file = Open(path);
  LaterOf(**file);
  LaterOf(**file);
  files_.Write("f", "two");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LaterOf(**file), "two");
  struct stat before {};
  stat(path.c_str(), &before);
  std::ofstream(path) << "six";
  const timespec times[2] = {before.st_atim, before.st_mtim};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
  EXPECT_EQ(LaterOf(**file), "six");
}

TEST_F(WatchedFileTest, WhatIsWrongChangesNothingAndIsLoggedOnce) {
  auto file = Open(files_.Write("f", "good"));
  files_.Write("f", "bad");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LaterOf(**file), "good");
  EXPECT_EQ(log_.Count("it is bad"), 1);
  std::filesystem::remove(files_.Path("f"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LaterOf(**file), "good");
  EXPECT_EQ(log_.Count("cannot open"), 1);
  files_.Write("f", "better");
  EXPECT_EQ(LaterOf(**file), "better");
}

TEST_F(WatchedFileTest, OpensOnlyRegularFilesOfABoundedSize) {
  EXPECT_EQ(Open(files_.Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Open(files_.Write("bad", "bad")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Open(files_.Write("max", std::string(kMaxSecretFileBytes, 'x'))).ok());
  EXPECT_EQ(Open(files_.Write("more", std::string(kMaxSecretFileBytes + 1, 'x'))).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Open(files_.Path("")).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(mkfifo(files_.Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Open(files_.Path("pipe")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(WatchedFileTest, JudgesWhoMayReadAndWrite) {
  EXPECT_TRUE(Open(files_.Write("own", "x", 0640)).ok());
  EXPECT_EQ(log_.lines().size(), 0u);
  EXPECT_TRUE(Open(files_.Write("read", "x", 0644)).ok());
  EXPECT_EQ(log_.Count("can be read by everybody"), 1);
  EXPECT_EQ(Open(files_.Write("write", "x", 0662)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace flotilla
