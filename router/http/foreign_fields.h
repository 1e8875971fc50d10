// Fields of vLLM's and llama.cpp's APIs that this server does not have. Their clients send
// them in every request, mostly with the value that asks for the default. Such a value passes,
// and so does any value of a field that cannot change an answer. All others are refused, and
// the error names the field.
#pragma once

#include <string_view>
#include <vector>

#include "router/http/json_input.h"

namespace flotilla::router {

struct ForeignField {
  std::string_view name;
  // The values, besides null, that ask for what this server does anyway. Errors name the first.
  std::vector<Json> accepted;
  bool ignored = false;  // any value passes
};

// All foreign fields but `n_predict` and `repeat_last_n`, whose accepted values depend on other
// fields.
const std::vector<ForeignField>& ForeignFields();

// Checks the foreign fields of the body. `max_tokens` and the penalties have been read before.
void CheckForeignFields(ObjectReader& body);

}  // namespace flotilla::router
