// Converts conversations between the public proto and the router's values. Pure.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "flotilla/v1/inference.pb.h"
#include "router/conversation.h"

namespace flotilla::router {

// INVALID_ARGUMENT for more messages than a request may have, and for an unknown tool_choice. Other
// bounds are CheckConversation's.
absl::StatusOr<Conversation> FromProto(const v1::Chat& chat);

// Whether errors about `field`, or about what is in it, are about a field of Chat.
bool IsChatField(std::string_view field);

}  // namespace flotilla::router
