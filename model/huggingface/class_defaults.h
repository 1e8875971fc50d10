// What a model of transformers has where its config.json is silent.
#pragma once

#include <string_view>

#include "model/huggingface/json_file.h"

namespace flotilla::model {

// The defaults of the configuration class of `model_type`, by the names of config.json; empty if
// the type is not known.
Json ClassDefaults(std::string_view model_type);

// The class of the text model in a configuration of several kinds of input, where `text_config` has
// no model_type; empty if the type is not known.
std::string_view DefaultTextType(std::string_view model_type);

// Whether the class takes null in place of a number, e.g. for no window.
bool MayBeNull(std::string_view name);

}  // namespace flotilla::model
