// Tells ThreadSanitizer what absl::Mutex and absl::Notification order.
//
// Debian's Abseil is built without ThreadSanitizer, which therefore sees two
// threads and no lock between them. The linker (--wrap, tsan preset only) sends
// our calls here; each says "release" before the lock is given away and
// "acquire" once it is held, so a real race is still one. Inside a call reads
// are ignored: a waiter's condition may be evaluated by the thread that unlocks.
// The names are those of Debian 12's Abseil 20220623.
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

// Mutex::Lock, Unlock, Await, AwaitWithTimeout, AwaitWithDeadline.
#define LOCK _ZN4absl7debian35Mutex4LockEv
#define UNLOCK _ZN4absl7debian35Mutex6UnlockEv
#define AWAIT _ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE
#define AWAIT_TIMEOUT _ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE
#define AWAIT_DEADLINE _ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE
// Notification::Notify, WaitForNotification, WaitForNotificationWithTimeout.
#define NOTIFY _ZN4absl7debian312Notification6NotifyEv
#define WAIT _ZNK4absl7debian312Notification19WaitForNotificationEv
#define WAIT_TIMEOUT _ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define REAL(name) JOIN(__real_, name)
#define WRAP(name) JOIN(__wrap_, name)

void REAL(LOCK)(void* mutex);
void REAL(UNLOCK)(void* mutex);
void REAL(AWAIT)(void* mutex, const absl::Condition& condition);
bool REAL(AWAIT_TIMEOUT)(void* mutex, const absl::Condition& condition, absl::Duration timeout);
bool REAL(AWAIT_DEADLINE)(void* mutex, const absl::Condition& condition, absl::Time deadline);
void REAL(NOTIFY)(void* notification);
void REAL(WAIT)(void* notification);
bool REAL(WAIT_TIMEOUT)(void* notification, absl::Duration timeout);

namespace {

// Around a call that gives up, takes, or gives up and takes `address`.
class Ordered {
 public:
  explicit Ordered(void* address) : address_(address) {
    __tsan_release(address_);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~Ordered() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    __tsan_acquire(address_);
  }

 private:
  void* const address_;
};

// Around a call that only gives it up: afterwards it may be gone.
class Released {
 public:
  explicit Released(void* address) {
    __tsan_release(address);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~Released() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// Around a call that only takes it.
class Acquired {
 public:
  explicit Acquired(void* address) : address_(address) {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~Acquired() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    __tsan_acquire(address_);
  }

 private:
  void* const address_;
};

}  // namespace

void WRAP(LOCK)(void* mutex) {
  const Acquired order(mutex);
  REAL(LOCK)(mutex);
}
void WRAP(UNLOCK)(void* mutex) {
  const Released order(mutex);
  REAL(UNLOCK)(mutex);
}
void WRAP(AWAIT)(void* mutex, const absl::Condition& condition) {
  const Ordered order(mutex);
  REAL(AWAIT)(mutex, condition);
}
bool WRAP(AWAIT_TIMEOUT)(void* mutex, const absl::Condition& condition, absl::Duration timeout) {
  const Ordered order(mutex);
  return REAL(AWAIT_TIMEOUT)(mutex, condition, timeout);
}
bool WRAP(AWAIT_DEADLINE)(void* mutex, const absl::Condition& condition, absl::Time deadline) {
  const Ordered order(mutex);
  return REAL(AWAIT_DEADLINE)(mutex, condition, deadline);
}
void WRAP(NOTIFY)(void* notification) {
  const Released order(notification);
  REAL(NOTIFY)(notification);
}
void WRAP(WAIT)(void* notification) {
  const Acquired order(notification);
  REAL(WAIT)(notification);
}
bool WRAP(WAIT_TIMEOUT)(void* notification, absl::Duration timeout) {
  const Acquired order(notification);
  return REAL(WAIT_TIMEOUT)(notification, timeout);
}

}  // extern "C"
