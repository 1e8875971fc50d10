// What `flotilla run` tells people of a batch: how far it is, and what came of it. Pure functions.
#pragma once

#include <string>

#include "router/batch/batch_core.h"

namespace flotilla::router {

// "120/1000 answered (12 %), 30.5 requests/s, 122 tokens/s, 29 s left". The rates are those of the
// last `seconds`, in which `before` became `now`. Without a rate nothing is said of the time left.
std::string ProgressText(const BatchCounts& before, const BatchCounts& now, double seconds);

// "1000 of 1000 requests are answered: 998 with 200, 2 with 400; 5120 prompt tokens, 4000
// completion tokens\nthis run: 880 requests in 29.1 s, 30.2 requests/s, 121 completion tokens/s\n"
std::string SummaryText(const BatchCounts& before, const BatchCounts& now, double seconds);

// Whether every line is answered with status 200.
bool AllSucceeded(const BatchCounts& counts);

}  // namespace flotilla::router
