// AnswerEvent: what one event of a streamed answer says, of /v1/completions or
// /v1/chat/completions. It is read without a tree of the JSON text. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace flotilla::loadtest {

struct AnswerEvent {
  std::string text;        // that the event adds, reasoning included
  bool finished = false;   // a finish_reason is set
  bool failed = false;     // the event has an error
  std::string error_code;  // its code or else its type; "" if it has none
  // The server's own counts.
  std::optional<std::uint64_t> completion_tokens, prompt_tokens, cached_tokens;
};

// None: the text is not JSON, or nests deeper than 32 levels.
std::optional<AnswerEvent> ReadAnswerEvent(absl::string_view json);

}  // namespace flotilla::loadtest
