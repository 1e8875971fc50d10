// FLOTILLA_CORE_CHECK: checks an invariant of the core's own code, in release builds too.
// Cores log nothing, so a violation prints its place and ends the process. No input can
// cause a violation.
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
