// Says whether a conversation that a client sent is in bounds and makes sense by itself. Pure.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "router/conversation.h"
#include "router/generate_request.h"

namespace flotilla::router {

// INVALID_ARGUMENT, which names the field: messages, tools, tool_choice, documents,
// chat_template_kwargs, continue_final_message, or what is in one of them.
absl::Status CheckConversation(const Conversation& conversation, const RequestLimits& limits);

// The error for tools that are longer in all than RequestLimits::max_tool_bytes. It is for
// frontends that notice this before they have read all of them.
absl::Status TooManyToolBytes(std::size_t bytes, const RequestLimits& limits);

}  // namespace flotilla::router
