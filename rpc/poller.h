// Poller: the one thread on which a process receives gRPC.
//
// gRPC's callback API listens with two threads or more, and whichever sees a message
// first wakes another to listen in its place before it reads: each message costs several
// switches of threads, on cores that compute. Here one thread waits on one queue for
// everything, calls that come in and calls that were made, and does what has become due
// itself. So it must never block, and what it calls must not either.
#pragma once

#include <memory>
#include <thread>
#include <utility>

#include "grpcpp/grpcpp.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace flotilla::rpc {

// What learns of an operation on the queue.
class Tag {
 public:
  // The operation is over; on the poller's thread. `ok` as gRPC says it of the operation.
  virtual void Over(bool ok) = 0;

 protected:
  ~Tag() = default;
};

// What an operation is begun with, right when it is, and the tag that it is over for. In
// between the library carries it from one thread to another, which a thread sanitizer does
// not see unless it is told.
inline void* ToQueue(Tag* tag) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(tag);
#endif
  return tag;
}
inline Tag* FromQueue(void* begun) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(begun);
#endif
  return static_cast<Tag*>(begun);
}

// A tag that calls a method of what holds it.
template <class T, void (T::*kMethod)(bool)>
class MemberTag final : public Tag {
 public:
  explicit MemberTag(T* owner) : owner_(owner) {}
  void Over(bool ok) override { (owner_->*kMethod)(ok); }
  void* get() { return ToQueue(this); }

 private:
  T* const owner_;
};

class Poller {
 public:
  Poller();
  // Waits for what has begun: servers on it have stopped, streams have ended. Not on its
  // own thread.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  // What makes the server that listens on the queue: one, once. It knows the queue already.
  grpc::ServerBuilder& builder() { return builder_; }

 private:
  grpc::ServerBuilder builder_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
};

// `shared`, or where there is none a poller of one's own.
inline std::shared_ptr<Poller> SharedOrOwn(std::shared_ptr<Poller> shared) {
  return shared != nullptr ? std::move(shared) : std::make_shared<Poller>();
}

}  // namespace flotilla::rpc
