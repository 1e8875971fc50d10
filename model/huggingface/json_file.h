// The small JSON files of a Hugging Face folder: config.json, tokenizer.json and others.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace flotilla::model {

using Json = nlohmann::json;

// How large a file may be, and how deep objects and lists may nest in it.
struct JsonBounds {
  size_t bytes = 1 << 20;
  size_t depth = 16;
};

// Reads a whole file of at most `max_bytes`. Errors as MappedFile::Open; INVALID_ARGUMENT if it is
// longer.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes);

// Whether `text` has more digits in a row than any number that means something. The parser would
// keep several copies of them.
bool HasEndlessNumber(std::string_view text);

// Parses one JSON object, in which no key may appear twice. The object takes at most four times
// the text and 64 MiB. INVALID_ARGUMENT names `what`, the problem and, where that helps, the byte.
absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::string_view what,
                                     const JsonBounds& bounds);

}  // namespace flotilla::model
