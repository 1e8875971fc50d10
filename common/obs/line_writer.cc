#include "common/obs/line_writer.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

namespace flotilla {
namespace {

// A pipe takes a write of this size whole or not at all (PIPE_BUF). If several processes share a
// pipe, lines up to this size stay whole.
constexpr std::size_t kPieceBytes = 4096;
constexpr std::size_t kReserve = 8;  // 1 / kReserve of the room is for important lines
// The time between two signals to a thread that is blocked in a write.
constexpr absl::Duration kKnock = absl::Milliseconds(5);
// This signal ends a system call of the thread that gets it. By default it is ignored.
constexpr int kKnockSignal = SIGURG;

void Ignore(int) {}

}  // namespace

LineWriter::LineWriter(LineWriterOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "log");
}

LineWriter::~LineWriter() {
  bool ended = false;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    ended = mu_.AwaitWithTimeout(absl::Condition(&ended_), options_.patience);
  }
  if (!ended) {
    abandoned_ = true;
    struct sigaction knock {};
    knock.sa_handler = Ignore;  // without SA_RESTART: the write returns
    sigaction(kKnockSignal, &knock, nullptr);
    do {
      pthread_kill(thread_.native_handle(), kKnockSignal);
      absl::MutexLock lock(&mu_);
      ended = mu_.AwaitWithTimeout(absl::Condition(&ended_), kKnock);
    } while (!ended);
  }
  thread_.join();
}

bool LineWriter::Put(std::string line, bool important) {
  absl::MutexLock lock(&mu_);
  const auto room = [&](std::size_t all) { return important ? all : all - all / kReserve; };
  if (lines_.size() + 1 > room(options_.max_lines) ||
      bytes_ + line.size() > room(options_.max_bytes)) {
    ++dropped_;
    ++unreported_;
    return false;
  }
  if (unreported_ > 0) ReportDropped();
  Push(std::move(line));
  return true;
}

void LineWriter::Push(std::string line) {
  bytes_ += line.size();
  lines_.push_back(std::move(line));
}

void LineWriter::ReportDropped() { Push(options_.missing(std::exchange(unreported_, 0))); }

bool LineWriter::HasWork() const { return !lines_.empty() || unreported_ > 0 || stopping_; }

void LineWriter::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return HasWork(); };
  mu_.Lock();
  while (!abandoned_) {
    mu_.Await(absl::Condition(&has_work));
    if (lines_.empty() && unreported_ > 0) ReportDropped();
    if (lines_.empty()) break;  // the writer is stopping
    // A piece has whole lines, as many as fit.
    std::string piece = std::move(lines_.front());
    lines_.pop_front();
    while (!lines_.empty() && piece.size() + lines_.front().size() <= kPieceBytes) {
      piece += lines_.front();
      lines_.pop_front();
    }
    mu_.Unlock();
    Write(piece);
    mu_.Lock();
    bytes_ -= piece.size();  // a piece counts until the reader has it
  }
  ended_ = true;
  mu_.Unlock();
}

void LineWriter::Write(const std::string& text) {
  for (std::size_t done = 0; done < text.size() && !abandoned_;) {
    const ssize_t put =
        write(options_.fd, text.data() + done, std::min(text.size() - done, kPieceBytes));
    if (put >= 0) {
      done += static_cast<std::size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {  // another process set O_NONBLOCK
      pollfd room{.fd = options_.fd, .events = POLLOUT, .revents = 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return;  // the text can never be read
    }
  }
}

}  // namespace flotilla
