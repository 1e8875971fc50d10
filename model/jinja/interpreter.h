// Runs a template program once.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/value.h"

namespace flotilla::jinja {

struct RunOptions {
  size_t max_output_bytes;
  std::function<std::string(std::string_view format)> strftime_now;  // may be empty
};

// Returns the output of `program` with these variables, whose values are on `heap`.
// InvalidArgument if the program fails or raises, ResourceExhausted past a bound.
absl::StatusOr<Text> Run(const Template& program,
                         const std::vector<std::pair<std::string, Value>>& variables, Heap& heap,
                         const RunOptions& options);

}  // namespace flotilla::jinja
