#include "simulator/run_record.h"

#include <algorithm>

namespace flotilla::simulator {

void RunRecord::AddToken(std::uint32_t index, std::int64_t now_ns) {
  RequestRecord& request = requests[index];
  ++request.output_tokens;
  tokens.Count(now_ns, 1);
  if (request.first_token_ns == 0) {
    request.first_token_ns = now_ns;
  } else {
    // Microseconds in 32 bits: an hour at most, which is no gap but an outage.
    const std::int64_t gap_us = (now_ns - request.last_token_ns + 500) / 1000;
    gaps_us.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(gap_us, UINT32_MAX)));
  }
  request.last_token_ns = now_ns;
}

}  // namespace flotilla::simulator
