// The fields of a body that hold an answer to a form, by OpenAI's, vLLM's, llama.cpp's and
// SGLang's names. Pure.
#pragma once

#include <string_view>

#include "common/types/parameters.h"
#include "router/http/json_input.h"

namespace flotilla::router {

// Reads the constraint of the body `reader` reads, whose text is `body`, and the name of its field;
// leaves both as they are if there is none. Errors of `reader` name the field, and of a schema the
// place and the keyword. Members of these fields that are not known are refused, whatever the
// server permits.
void ReadConstraint(std::string_view body, ObjectReader& reader, RequestParameters& parameters);

}  // namespace flotilla::router
