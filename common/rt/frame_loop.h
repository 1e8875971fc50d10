// FrameLoop: one thread that hears stream sockets on which messages come as frames
// (common/rt/frames.h). Who sends writes to the socket himself: no thread is woken for it.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/frames.h"
#include "common/rt/unique_fd.h"

namespace flotilla {

// One end of a connection. Any thread, also from the handler.
class FrameSocket {
 public:
  // Hears one thing at a time, on the loop's thread, and must not block. Outlives OnClosed.
  class Handler {
   public:
    virtual void OnFrame(const std::string& message) = 0;
    // Nothing more is heard. UNAVAILABLE: one side has closed it; INVALID_ARGUMENT: what
    // came is no frame. Once; the last call.
    virtual void OnClosed(const absl::Status& why) = 0;

   protected:
    ~Handler() = default;
  };

  // In order. What the socket does not take at once waits, without bound: the protocols
  // on top bound what they send by what the other end has asked for. Nothing happens once
  // it is closed.
  void Send(absl::string_view message) ABSL_LOCKS_EXCLUDED(mu_);

  // Closes both ways. What has come by now is heard, then OnClosed; what waits is dropped,
  // and what the socket has taken the other side still reads.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

  // Messages that were sent and not yet taken by the socket, in part or whole.
  std::size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class FrameLoop;
  FrameSocket(int epoll, UniqueFd fd, Handler* handler)
      : epoll_(epoll), handler_(handler), fd_(std::move(fd)) {}

  // Those of the loop's thread.
  absl::StatusOr<bool> Read();
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // Writes what waits, as far as the socket takes it.
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Shut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int epoll_;
  Handler* const handler_;
  FrameReader reader_;  // of the loop's thread
  mutable absl::Mutex mu_;
  UniqueFd fd_;  // only the loop's thread closes it, under mu_
  bool shut_ ABSL_GUARDED_BY(mu_) = false;
  bool full_ ABSL_GUARDED_BY(mu_) = false;  // the loop says when there is room
  std::deque<std::string> out_ ABSL_GUARDED_BY(mu_);
  std::size_t written_ ABSL_GUARDED_BY(mu_) = 0;  // bytes of the first
};

class FrameLoop {
 public:
  FrameLoop();
  // All its sockets have been closed. Not on its own thread.
  ~FrameLoop();
  FrameLoop(const FrameLoop&) = delete;
  FrameLoop& operator=(const FrameLoop&) = delete;

  // Hears `fd`, a connected socket that does not block. UNAVAILABLE: the system has no
  // room for one more, and it is closed.
  absl::StatusOr<std::shared_ptr<FrameSocket>> Add(UniqueFd fd, FrameSocket::Handler* handler)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop();
  void Hear(FrameSocket* socket);

  const UniqueFd epoll_;
  const UniqueFd stop_;  // an eventfd
  absl::Mutex mu_;
  absl::flat_hash_map<FrameSocket*, std::shared_ptr<FrameSocket>> sockets_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace flotilla
