// PromptText: prompts of common English words. Most tokenizers have a token for each of the words
// with the space before it, so that a prompt has about as many tokens as words. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "loadtest/core/load_plan.h"

namespace flotilla::loadtest {

// The message of request `index`. Equal plans give equal texts; two requests have different words
// but where their groups or blocks say that they begin alike.
std::string PromptText(const LoadPlan& plan, std::size_t index);

}  // namespace flotilla::loadtest
