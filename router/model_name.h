// Finds the model that a client means. A model without a configured name is named after its
// file, whose name ends with the storage format of the weights: `SmolLM2-135M-Instruct.Q4_1`.
// Clients may omit the format where the name is unambiguous without it, so a client that is
// written for a model works with each of its files. Pure functions.
#pragma once

#include <string_view>
#include <vector>

namespace flotilla::router {

// Returns `id` without the storage format at its end. The format follows a `.` or `-`: Q4_1, q8_0,
// Q4_K_M, IQ4_XS, F16, BF16, in lower or upper case. Returns `id` itself if it has no format, or
// nothing in front of it.
std::string_view WithoutFormat(std::string_view id);

// Returns the model called `name` among `ids`, the models that are served. If there is none, it
// returns the only model that has this name without its format. Empty: no model fits, or several
// do.
std::string_view ModelMeant(std::string_view name, const std::vector<std::string_view>& ids);

}  // namespace flotilla::router
