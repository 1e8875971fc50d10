// The functions that every template may call by name.
#pragma once

#include <string_view>

#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/value.h"

namespace flotilla::jinja {

// A function of that name; undefined if there is none.
Value FindGlobal(Heap& heap, std::string_view name);

// Calls a function that FindGlobal returned.
Value CallGlobal(Heap& heap, const RunOptions& options, std::string_view name, const Args& args);

}  // namespace flotilla::jinja
