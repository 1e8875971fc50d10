#include "common/rt/write_to_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "common/rt/unique_fd.h"

namespace flotilla {
namespace {

// A signal ends the system's call when the pipe is full, with a part of the text written.
TEST(WriteToFile, WritesTheRestOfWhatTheSystemTookInPart) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const int room = fcntl(writer.get(), F_GETPIPE_SZ);
  ASSERT_GT(room, 0);
  struct sigaction interrupt {};
  interrupt.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &interrupt, &before), 0);  // without SA_RESTART

  std::string text(static_cast<std::size_t>(room) * 3, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 / 7);
  bool good = false;
  std::thread thread([&] {
    good = WriteToFile(writer.get(), text);
    writer.Reset();
  });
  int waiting = 0;
  while (waiting < room) {
    if (ioctl(reader.get(), FIONREAD, &waiting) != 0) break;
    std::this_thread::yield();
  }
  pthread_kill(thread.native_handle(), SIGUSR1);
  std::string got;
  char piece[4096];
  for (ssize_t n = 0; (n = read(reader.get(), piece, sizeof piece)) > 0;) {
    got.append(piece, static_cast<std::size_t>(n));
  }
  thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_TRUE(good);
  EXPECT_EQ(got, text);
}

TEST(WriteToFile, ErrnoSaysWhyNot) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.ok());
  EXPECT_FALSE(WriteToFile(full.get(), "text"));
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_TRUE(WriteToFile(full.get(), ""));
}

}  // namespace
}  // namespace flotilla
