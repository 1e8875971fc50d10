// FLOTILLA_CORE_CHECK: an invariant of the core's own code, on in release too.
// Cores log nothing, so a violation names its place and ends the process; input
// never reaches one.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FLOTILLA_CORE_CHECK(condition)                                                   \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
