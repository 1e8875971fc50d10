// Fields of vLLM's and llama.cpp's APIs that this server does not have. Their clients send
// them in every request, mostly with the value that means "as always". Such a value passes,
// and so does any value of what cannot change an answer; all others are refused by name.
#pragma once

#include <string_view>
#include <vector>

#include "router/http/json_input.h"

namespace flotilla {

struct ForeignField {
  std::string_view name;
  // The values that ask for what is done anyway, beside null; the first is named in errors.
  std::vector<Json> accepted;
  bool ignored = false;  // any value passes
};

// All of them but `n_predict` and `repeat_last_n`, whose accepted values depend on others.
const std::vector<ForeignField>& ForeignFields();

// Judges those of the body; `max_tokens` and the penalties have been read.
void CheckForeignFields(ObjectReader& body);

}  // namespace flotilla
