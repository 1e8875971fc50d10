// Which model a client means. A model that nobody named is named after its file, whose name
// ends with how the weights are stored: `SmolLM2-135M-Instruct.Q4_1`. Clients may leave that
// away where it says nothing, so what is written for a model holds for each of its files.
// Pure.
#pragma once

#include <string_view>
#include <vector>

namespace flotilla {

// `id` without a last part that names a storage format, after a `.` or `-`: Q4_1, q8_0,
// Q4_K_M, IQ4_XS, F16, BF16, in small letters or capital ones. `id` itself where it has none,
// or is nothing else.
std::string_view WithoutFormat(std::string_view id);

// Of `ids`, the models that are served, the one called `name`, else the only one that is so
// called without its format. Empty: there is none, or there are several.
std::string_view ModelMeant(std::string_view name, const std::vector<std::string_view>& ids);

}  // namespace flotilla
