// The small JSON files of a Hugging Face folder: config.json, tokenizer.json and others.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// The rules of "merges" in the object "model" of a tokenizer.json. As JSON values they would take
// ten times their text.
struct MergeList {
  // As many as tokens; the largest published tokenizer has 580,604.
  static constexpr size_t kMost = 1 << 20;
  std::vector<std::string> rules;  // "left right"
  std::optional<size_t> wrong;     // the first one that is neither a string nor two
};

// The value of a key. Null if there is none, if it is null, or if `object` is null or no object.
const Json* Member(const Json* object, std::string_view name);

// Frees what is in the value. The library's destructor would first list all elements.
void FreeJson(Json& value);

// Parses one JSON object, in which no key may appear twice. Object and text take at most four times
// the text and 64 MiB. If `merges` is not null, rules go there, and the object has an empty list in
// their place. INVALID_ARGUMENT names `what`, the problem and, where that helps, the byte.
absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::string_view what,
                                     const JsonBounds& bounds, MergeList* merges = nullptr);

}  // namespace flotilla::model
