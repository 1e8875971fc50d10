#include "router/check_conversation.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "common/types/text.h"
#include "router/errors.h"
#include "router/template_json.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

// The names of tools are as at OpenAI.
constexpr std::size_t kMaxNameBytes = 64;

bool IsToolName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), allowed);
}

absl::Status CheckRole(std::size_t index, std::string_view role) {
  for (std::string_view known : {"system", "developer", "user", "assistant", "tool"}) {
    if (role == known) return absl::OkStatus();
  }
  const std::string field = Cat("messages[", index, "].role");
  if (role == "function") {
    return WithField(
        InvalidArgument("'", field, "' is 'function', which is not supported; use 'tool'"), field,
        kUnsupportedField);
  }
  return InvalidField(
      field, Cat("'", field, "' must be 'system', 'developer', 'user', 'assistant' or 'tool'"));
}

absl::Status CheckCalls(std::size_t index, const ChatTurn& turn, const RequestLimits& limits) {
  if (turn.tool_calls.empty()) return absl::OkStatus();
  const std::string field = Cat("messages[", index, "].tool_calls");
  if (turn.role != "assistant") {
    return InvalidField(field, Cat("'", field, "' is for messages of the assistant"));
  }
  if (turn.tool_calls.size() > limits.max_tools) {
    return InvalidField(field, Cat("'", field, "' has ", turn.tool_calls.size(), " calls; at most ",
                                   limits.max_tools, " are allowed"));
  }
  for (std::size_t i = 0; i < turn.tool_calls.size(); ++i) {
    if (turn.tool_calls[i].name.empty()) {
      return InvalidField(field, Cat("'", field, "': call ", i, " has no name"));
    }
  }
  return absl::OkStatus();
}

// The texts of a message, which templates see.
std::vector<std::string_view> TextsOf(const ChatTurn& turn) {
  std::vector<std::string_view> texts{turn.content, turn.name, turn.reasoning_content,
                                      turn.tool_call_id};
  for (const ToolCall& call : turn.tool_calls) {
    texts.insert(texts.end(), {call.id, call.name, call.arguments});
  }
  return texts;
}

absl::Status CheckTurns(const Conversation& conversation, const RequestLimits& limits) {
  const std::vector<ChatTurn>& turns = conversation.turns;
  if (turns.empty()) return InvalidField("messages", "messages must not be empty");
  if (turns.size() > limits.max_messages) return TooManyMessages(limits);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (auto s = CheckRole(i, turns[i].role); !s.ok()) return s;
    if (auto s = CheckCalls(i, turns[i], limits); !s.ok()) return s;
    for (std::string_view text : TextsOf(turns[i])) {
      bytes += text.size();
      if (bytes > limits.max_prompt_bytes) {
        return InvalidField("messages", Cat("messages are more than ", limits.max_prompt_bytes,
                                            " bytes long in all"));
      }
      if (!IsValidUtf8(text)) {
        const std::string field = Cat("messages[", i, "].content");
        return InvalidField(field, Cat("'", field, "' is not valid UTF-8"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTools(const Conversation& conversation, const RequestLimits& limits) {
  const std::vector<Tool>& tools = conversation.tools;
  if (tools.size() > limits.max_tools) {
    return InvalidField("tools", Cat("tools has ", tools.size(), " entries; at most ",
                                     limits.max_tools, " are allowed"));
  }
  std::size_t bytes = 0;
  for (const Tool& tool : tools) {
    bytes += tool.name.size() + tool.description.size() + tool.parameters.size();
  }
  if (bytes > limits.max_tool_bytes) return TooManyToolBytes(bytes, limits);
  absl::flat_hash_set<std::string> names;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Tool& tool = tools[i];
    if (!IsToolName(tool.name)) {
      return InvalidField("tools", Cat("tools[", i, "] must have a name of 1 to ", kMaxNameBytes,
                                       " letters, digits, _ and -"));
    }
    if (!names.insert(tool.name).second) {
      return InvalidField("tools", Cat("tools has two functions of the name '", tool.name, "'"));
    }
    if (!IsValidUtf8(tool.description)) {
      return InvalidField("tools", Cat("tools[", i, "].description is not valid UTF-8"));
    }
    if (tool.parameters.empty()) continue;
    const auto parameters = ParseTemplateJson(tool.parameters);
    if (!parameters.has_value() || !parameters->is_object()) {
      return InvalidField("tools", Cat("tools[", i, "].parameters must be a JSON object, nested ",
                                       kMaxTemplateDepth, " deep at most, whose objects have ",
                                       kMaxTemplateMembers, " members at most"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckToolChoice(const Conversation& conversation) {
  const ToolChoice choice = conversation.tool_choice;
  if (choice == ToolChoice::kAuto || choice == ToolChoice::kNone) return absl::OkStatus();
  if (conversation.tools.empty()) {
    return InvalidField("tool_choice", "tool_choice needs tools to choose from");
  }
  const bool known =
      std::any_of(conversation.tools.begin(), conversation.tools.end(),
                  [&](const Tool& tool) { return tool.name == conversation.chosen_tool; });
  if (choice == ToolChoice::kNamed && !known) {
    return InvalidField("tool_choice", "tool_choice names a function that is not in tools");
  }
  return absl::OkStatus();
}

absl::Status CheckDocuments(std::string_view text, const RequestLimits& limits) {
  if (text.empty()) return absl::OkStatus();
  if (text.size() > limits.max_prompt_bytes) {
    return InvalidField("documents", Cat("documents is ", text.size(), " bytes long; at most ",
                                         limits.max_prompt_bytes, " are allowed"));
  }
  const auto documents = ParseTemplateJson(text);
  const bool objects = documents.has_value() && documents->is_array() &&
                       std::all_of(documents->begin(), documents->end(),
                                   [](const OrderedJson& d) { return d.is_object(); });
  if (!objects) return InvalidField("documents", "documents must be a list of objects");
  if (documents->size() > limits.max_messages) {
    return InvalidField("documents", Cat("documents has ", documents->size(), " entries; at most ",
                                         limits.max_messages, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status CheckKwargs(std::string_view text, const RequestLimits& limits) {
  constexpr std::string_view kField = "chat_template_kwargs";
  if (text.empty()) return absl::OkStatus();
  if (text.size() > limits.max_kwargs_bytes) {
    return InvalidField(kField, Cat(kField, " is ", text.size(), " bytes long; at most ",
                                    limits.max_kwargs_bytes, " are allowed"));
  }
  const auto kwargs = ParseTemplateJson(text);
  if (!kwargs.has_value() || !kwargs->is_object()) {
    return InvalidField(kField, Cat(kField, " must be an object"));
  }
  for (std::string_view name :
       {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "bos_token", "eos_token", "unk_token", "pad_token"}) {
    if (!kwargs->contains(std::string(name))) continue;
    return InvalidField(kField, Cat(kField, " may not set '", name, "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckEffort(const Conversation& conversation) {
  constexpr std::string_view kField = "reasoning_effort";
  const std::string& effort = conversation.reasoning_effort;
  if (effort.empty()) return absl::OkStatus();
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts)) {
    return InvalidField(kField, Cat(kField,
                                    " must be \"none\", \"minimal\", \"low\", \"medium\", "
                                    "\"high\" or \"xhigh\""));
  }
  const std::string& kwargs = conversation.template_kwargs;
  if (!kwargs.empty() && ParseTemplateJson(kwargs)->contains(std::string(kField))) {
    return InvalidField(kField,
                        Cat(kField, " and chat_template_kwargs may not both set '", kField, "'"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TooManyToolBytes(std::size_t bytes, const RequestLimits& limits) {
  return InvalidField("tools", Cat("tools are ", bytes, " bytes long in all; at most ",
                                   limits.max_tool_bytes, " are allowed"));
}

absl::Status CheckConversation(const Conversation& conversation, const RequestLimits& limits) {
  if (auto s = CheckTurns(conversation, limits); !s.ok()) return s;
  if (auto s = CheckTools(conversation, limits); !s.ok()) return s;
  if (auto s = CheckToolChoice(conversation); !s.ok()) return s;
  if (auto s = CheckDocuments(conversation.documents, limits); !s.ok()) return s;
  if (auto s = CheckKwargs(conversation.template_kwargs, limits); !s.ok()) return s;
  if (auto s = CheckEffort(conversation); !s.ok()) return s;
  if (!conversation.continue_final_message) return absl::OkStatus();
  if (conversation.add_generation_prompt) {
    return InvalidField("continue_final_message",
                        "continue_final_message and add_generation_prompt exclude each other");
  }
  if (conversation.turns.back().content.empty()) {
    return InvalidField("continue_final_message",
                        "continue_final_message needs a last message with content");
  }
  return absl::OkStatus();
}

}  // namespace flotilla::router
