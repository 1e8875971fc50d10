#include "router/grpc/chat_codec.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "router/errors.h"
#include "router/generate_request.h"

namespace flotilla::router {
namespace {

// One more than the Validator allows. An element has two bytes in a message, and a hundred here.
constexpr int kMaxRead = static_cast<int>(RequestLimits().max_tools) + 1;

ChatTurn ReadMessage(const v1::ChatMessage& message) {
  ChatTurn turn{.role = message.role(),
                .content = message.content(),
                .name = message.name(),
                .reasoning_content = message.reasoning_content(),
                .tool_calls = {},
                .tool_call_id = message.tool_call_id()};
  for (int i = 0; i < std::min(message.tool_calls_size(), kMaxRead); ++i) {
    const v1::ToolCall& call = message.tool_calls(i);
    turn.tool_calls.push_back({call.id(), call.name(), call.arguments()});
  }
  return turn;
}

absl::Status ReadToolChoice(const v1::Chat& chat, Conversation& conversation) {
  constexpr std::pair<std::string_view, ToolChoice> kChoices[] = {
      {"", ToolChoice::kAuto},
      {"auto", ToolChoice::kAuto},
      {"none", ToolChoice::kNone},
      {"required", ToolChoice::kRequired},
      {"function", ToolChoice::kNamed}};
  for (const auto& [name, choice] : kChoices) {
    if (chat.tool_choice() != name) continue;
    conversation.tool_choice = choice;
    conversation.chosen_tool = chat.tool_choice_name();
    return absl::OkStatus();
  }
  return InvalidField("tool_choice",
                      "tool_choice must be 'none', 'auto', 'required' or 'function'");
}

}  // namespace

absl::StatusOr<Conversation> FromProto(const v1::Chat& chat) {
  constexpr RequestLimits kLimits;
  if (static_cast<std::size_t>(chat.messages_size()) > kLimits.max_messages) {
    return TooManyMessages(kLimits);
  }
  Conversation conversation;
  conversation.turns.reserve(static_cast<std::size_t>(chat.messages_size()));
  for (const v1::ChatMessage& message : chat.messages()) {
    conversation.turns.push_back(ReadMessage(message));
  }
  for (int i = 0; i < std::min(chat.tools_size(), kMaxRead); ++i) {
    const v1::Tool& tool = chat.tools(i);
    conversation.tools.push_back(
        {tool.name(), tool.description(), tool.parameters(), tool.strict()});
  }
  if (auto s = ReadToolChoice(chat, conversation); !s.ok()) return s;
  if (chat.has_parallel_tool_calls()) conversation.parallel_tool_calls = chat.parallel_tool_calls();
  conversation.documents = chat.documents();
  conversation.template_kwargs = chat.chat_template_kwargs();
  conversation.reasoning_effort = chat.reasoning_effort();
  conversation.continue_final_message = chat.continue_final_message();
  conversation.add_generation_prompt = chat.has_add_generation_prompt()
                                           ? chat.add_generation_prompt()
                                           : !chat.continue_final_message();
  if (chat.has_split_reasoning()) conversation.split_reasoning = chat.split_reasoning();
  if (chat.has_include_reasoning()) conversation.include_reasoning = chat.include_reasoning();
  return conversation;
}

bool IsChatField(std::string_view field) {
  constexpr std::string_view kFields[] = {"messages",
                                          "tools",
                                          "tool_choice",
                                          "documents",
                                          "chat_template_kwargs",
                                          "reasoning_effort",
                                          "continue_final_message"};
  return std::any_of(std::begin(kFields), std::end(kFields), [field](std::string_view own) {
    return field == own || (field.starts_with(own) && field[own.size()] == '[');
  });
}

}  // namespace flotilla::router
