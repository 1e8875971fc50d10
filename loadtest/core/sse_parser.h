// SseParser: server-sent events of a byte stream, one by one. Pure; one stream, one thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace flotilla::loadtest {

class SseParser {
 public:
  // The most bytes of a line. Longer ones are no stream of tokens.
  static constexpr std::size_t kMaxLineBytes = 1 << 20;

  // Reads on. `on_data` gets the data of each event, in order; every line "data:" is an event, as
  // all servers of this API write them. Other fields and comments have no effect. False: a line is
  // too long, or a line that is not empty has no colon, as no event has.
  bool Feed(absl::string_view bytes, absl::FunctionRef<void(absl::string_view)> on_data);

 private:
  bool TakeLine(absl::string_view line, absl::FunctionRef<void(absl::string_view)> on_data);

  std::string part_;  // of a line that has not ended
};

}  // namespace flotilla::loadtest
