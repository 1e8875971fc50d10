/* Preloaded into the processes of a fleet: SIGRTMIN makes one exit with code 3, as one does
   that gives up by itself, without a word to anybody. */
#include <signal.h>
#include <unistd.h>

static void Exit(int number) {
  (void)number;
  _exit(3);
}

__attribute__((constructor)) static void Install(void) { signal(SIGRTMIN, Exit); }
