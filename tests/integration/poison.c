/* Preloaded into a worker group's ranks: one that reads a plan with the poison in it dies
   in the middle of the step. The poison is eight times the token 31337 in a row. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>

static const char kPoison[] =
    "\xe9\xf4\x01\xe9\xf4\x01\xe9\xf4\x01\xe9\xf4\x01\xe9\xf4\x01\xe9\xf4\x01\xe9\xf4\x01\xe9\xf4"
    "\x01";

static void Die(int number) {
  (void)number;
  abort();
}

static void Look(const void* bytes, ssize_t count) {
  if (count <= 0) return;
  if (memmem(bytes, (size_t)count, kPoison, sizeof(kPoison) - 1) == NULL) return;
  /* Of processor time: it has begun the step by then, however busy the machine is. */
  const struct itimerval soon = {.it_value = {.tv_usec = 5000}};
  signal(SIGVTALRM, Die);
  setitimer(ITIMER_VIRTUAL, &soon, NULL);
}

/* A rank takes what its socket holds, which may be several plans: it would then die in the
   step of the first. It gets one frame at a time (common/rt/frames.cc). */
static ssize_t OneFrame(int file, void* bytes, size_t size) {
  unsigned char head[4];
  const ssize_t peeked = recv(file, head, sizeof(head), MSG_PEEK | MSG_WAITALL);
  if (peeked != sizeof(head)) return peeked > 0 ? 0 : peeked;
  const size_t frame =
      sizeof(head) + (head[0] | head[1] << 8 | head[2] << 16) + ((size_t)head[3] << 24);
  if (frame > size) abort();
  return recv(file, bytes, frame, MSG_WAITALL);
}

ssize_t recv(int file, void* bytes, size_t size, int flags) {
  static ssize_t (*next)(int, void*, size_t, int);
  if (next == NULL) next = (ssize_t(*)(int, void*, size_t, int))dlsym(RTLD_NEXT, "recv");
  /* mpirun sets the variable for ranks alone; frames are read into 64 KiB. */
  if (flags != 0 || size != 65536 || getenv("OMPI_COMM_WORLD_RANK") == NULL) {
    return next(file, bytes, size, flags);
  }
  const ssize_t count = OneFrame(file, bytes, size);
  Look(bytes, count);
  return count;
}
