// RequestBody: the JSON of requests to /v1/completions or /v1/chat/completions. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace flotilla::loadtest {

// What all requests of a test have in common.
struct RequestShape {
  std::string model;
  bool chat = true;  // false: /v1/completions
  double temperature = 0;
  // Answers have the planned length even if the model wants to end before. It is a field that
  // flotilla, vLLM and llama.cpp know.
  bool ignore_eos = true;
  std::string extra;  // a JSON object whose fields are added, or ""
};

// INVALID_ARGUMENT: `shape.extra` is not a JSON object.
absl::Status CheckShape(const RequestShape& shape);

// `said` is what was said so far, by the user first and then in turns. A completion continues all
// of it as one text.
std::string RequestBody(const RequestShape& shape, const std::vector<std::string>& said,
                        std::uint32_t max_tokens);

}  // namespace flotilla::loadtest
