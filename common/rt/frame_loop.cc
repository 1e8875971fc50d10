#include "common/rt/frame_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

bool Watch(int epoll, int operation, int fd, std::uint32_t events, void* of) {
  epoll_event event{.events = events, .data = {.ptr = of}};
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace

void FrameSocket::Send(absl::string_view message) {
  std::string frame = Frame(message);
  absl::MutexLock lock(&mu_);
  if (shut_) return;
  out_.push_back(std::move(frame));
  if (!full_) Write();
}

void FrameSocket::Shutdown() {
  absl::MutexLock lock(&mu_);
  Shut();
}

std::size_t FrameSocket::waiting() const {
  absl::MutexLock lock(&mu_);
  return out_.size();
}

void FrameSocket::Write() {
  while (!out_.empty()) {
    const std::string& frame = out_.front();
    const ssize_t put = send(fd_.get(), frame.data() + written_, frame.size() - written_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      full_ = Watch(epoll_, EPOLL_CTL_MOD, fd_.get(), EPOLLIN | EPOLLOUT, this);
      if (!full_) Shut();
      return;
    }
    if (put < 0) return Shut();  // the other side is gone
    written_ += static_cast<std::size_t>(put);
    if (written_ < frame.size()) continue;
    out_.pop_front();
    written_ = 0;
  }
}

void FrameSocket::Shut() {
  if (std::exchange(shut_, true)) return;
  out_.clear();
  shutdown(fd_.get(), SHUT_RDWR);
}

absl::StatusOr<bool> FrameSocket::Read() { return reader_.ReadFrom(fd_.get()); }

void FrameSocket::Flush() {
  absl::MutexLock lock(&mu_);
  if (!std::exchange(full_, false)) return;
  // Only while something waits: a Unix socket says so each time that the other end reads.
  Watch(epoll_, EPOLL_CTL_MOD, fd_.get(), EPOLLIN, this);
  if (!shut_) Write();
}

void FrameSocket::Close() {
  absl::MutexLock lock(&mu_);
  Shut();
  fd_.Reset();
}

FrameLoop::FrameLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!Watch(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), EPOLLIN, nullptr)) return;
  thread_ = std::thread([this] { Loop(); });
}

FrameLoop::~FrameLoop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

absl::StatusOr<std::shared_ptr<FrameSocket>> FrameLoop::Add(UniqueFd fd,
                                                            FrameSocket::Handler* handler) {
  if (!thread_.joinable()) return absl::UnavailableError("no file descriptors were left");
  const int number = fd.get();
  const std::shared_ptr<FrameSocket> socket(new FrameSocket(epoll_.get(), std::move(fd), handler));
  absl::MutexLock lock(&mu_);
  sockets_.emplace(socket.get(), socket);
  if (Watch(epoll_.get(), EPOLL_CTL_ADD, number, EPOLLIN, socket.get())) return socket;
  sockets_.erase(socket.get());
  return Failed("epoll_ctl");
}

void FrameLoop::Loop() {
  std::array<epoll_event, 16> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      auto* const socket = static_cast<FrameSocket*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (socket == nullptr) return;  // stop_
      const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
      if ((what & EPOLLOUT) != 0) socket->Flush();
      if ((what & ~std::uint32_t{EPOLLOUT}) != 0) Hear(socket);
    }
  }
}

void FrameLoop::Hear(FrameSocket* socket) {
  const absl::StatusOr<bool> read = socket->Read();
  if (read.ok()) {
    while (auto message = socket->reader_.Next()) socket->handler_->OnFrame(*message);
    return;
  }
  std::shared_ptr<FrameSocket> last;  // until it has said so
  {
    absl::MutexLock lock(&mu_);
    last = std::move(sockets_.extract(socket).mapped());
  }
  last->Close();  // no longer watched then
  last->handler_->OnClosed(read.status());
}

}  // namespace flotilla
