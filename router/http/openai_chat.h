// Reads the conversation of a chat's body: messages, tools, and what else templates see.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "router/conversation.h"
#include "router/http/json_input.h"
#include "router/http/openai_request.h"

namespace flotilla::router {

// Reads the members of `body` that make a Conversation; the first error fails it. `text` is the
// body's text. The names of unknown inner members are appended to `ignored` if the options are
// permissive, and are an error otherwise.
Conversation ReadConversation(std::string_view text, const ParseOptions& options,
                              std::vector<std::string>* ignored, ObjectReader& body);

}  // namespace flotilla::router
