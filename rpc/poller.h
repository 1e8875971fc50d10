// Poller: the one thread on which a process receives gRPC.
//
// gRPC's callback API listens with two threads or more. The thread that sees a message first
// wakes another one to listen in its place before it reads, so each message costs several
// thread switches, on cores that compute. Here one thread waits on one queue for all calls,
// incoming and outgoing, and runs the handlers itself. So it must never block, and neither
// must the handlers.
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

// Receives the end of an operation on the queue.
class Tag {
 public:
  // The operation is over. Called on the poller's thread. `ok` is gRPC's result of the operation.
  virtual void Over(bool ok) = 0;

 protected:
  ~Tag() = default;
};

// ToQueue makes the pointer that an operation is begun with, and is called right when it begins.
// FromQueue returns the tag of an operation that is over. In between, gRPC carries the pointer
// from one thread to another, which the thread sanitizer sees only if it is told.
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

// A tag that calls a method of its owner.
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
  // Waits for the operations that have begun. Servers on it have stopped and streams have ended
  // before. Not called on its own thread.
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  // Builds the server that listens on the queue: only one, once. It knows the queue already.
  grpc::ServerBuilder& builder() { return builder_; }

 private:
  grpc::ServerBuilder builder_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::thread thread_;
};

// `shared`, or a new poller if `shared` is null.
inline std::shared_ptr<Poller> SharedOrOwn(std::shared_ptr<Poller> shared) {
  return shared != nullptr ? std::move(shared) : std::make_shared<Poller>();
}

}  // namespace flotilla::rpc
