#include "router/http/openai_chat.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "common/types/text.h"
#include "router/check_conversation.h"
#include "router/template_json.h"

namespace flotilla::router {
namespace {

// Which unknown members may be ignored, and where their names are recorded.
struct Ignoring {
  bool permissive = false;
  std::vector<std::string>* names = nullptr;
};

// Ends the reading of an inner object. False: it failed, and so did `outer`.
bool Close(ObjectReader& inner, Ignoring ignoring, ObjectReader& outer) {
  absl::Status status = inner.Finish(ignoring.permissive, ignoring.names);
  if (!status.ok()) outer.Fail(std::move(status));
  return outer.ok();
}

// The text of a message's content: a string, or text parts one per line. `path` is the
// message's.
std::string Content(const Json* value, std::string_view path, Ignoring ignoring,
                    ObjectReader& message) {
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value == nullptr || !value->is_array() || value->empty()) {
    message.FailField("content", "must be a string or a list of text parts");
    return {};
  }
  std::string text;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& part = (*value)[i];
    if (!part.is_object()) {
      message.FailField("content", "must hold objects");
      return {};
    }
    ObjectReader reader(part, Cat(path, ".content[", i, "]."));
    reader.UnsupportedUnless("type", {"text"});
    const auto piece = reader.String("text");
    if (!piece) reader.FailField("text", "is missing");
    if (!Close(reader, ignoring, message)) return {};
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

// Reads the object `function` of a call or a tool, whose type must be "function".
const Json* Function(ObjectReader& reader) {
  reader.UnsupportedUnless("type", {"function"});
  const Json* function = reader.Value("function");
  if (function == nullptr || !function->is_object()) {
    reader.FailField("function", "must be an object");
    return nullptr;
  }
  return function;
}

std::vector<ToolCall> ToolCalls(const Json& list, std::string_view path, Ignoring ignoring,
                                ObjectReader& message) {
  std::vector<ToolCall> calls;
  if (!list.is_array()) message.FailField("tool_calls", "must be a list");
  for (std::size_t i = 0; message.ok() && i < list.size(); ++i) {
    const std::string own = Cat(path, ".tool_calls[", i, "]");
    if (!list[i].is_object()) {
      message.FailField("tool_calls", "must hold objects");
      break;
    }
    ObjectReader reader(list[i], own + ".");
    ToolCall call{.id = reader.String("id").value_or(""), .name = {}, .arguments = {}};
    reader.Ignored({"index"});
    if (const Json* function = Function(reader)) {
      ObjectReader inner(*function, own + ".function.");
      const auto name = inner.String("name");
      if (!name) inner.FailField("name", "is missing");
      call.name = name.value_or("");
      const Json* arguments = inner.Value("arguments");
      // Some clients send what the text says.
      if (arguments != nullptr && arguments->is_object()) {
        call.arguments = arguments->dump();
      } else {
        call.arguments = inner.String("arguments").value_or("");
      }
      Close(inner, ignoring, reader);
    }
    if (Close(reader, ignoring, message)) calls.push_back(std::move(call));
  }
  return calls;
}

std::optional<ChatTurn> Message(const Json& value, std::size_t index, Ignoring ignoring,
                                ObjectReader& body) {
  const std::string path = Cat("messages[", index, "]");
  if (!value.is_object()) {
    body.FailField(path, "must be an object");
    return std::nullopt;
  }
  ObjectReader reader(value, path + ".");
  ChatTurn turn;
  turn.role = reader.String("role").value_or("");
  turn.name = reader.String("name").value_or("");
  if (const Json* calls = reader.Value("tool_calls")) {
    turn.tool_calls = ToolCalls(*calls, path, ignoring, reader);
  }
  if (turn.role == "assistant") {
    turn.reasoning_content = reader.String("reasoning_content").value_or("");
  }
  if (turn.role == "tool") turn.tool_call_id = reader.String("tool_call_id").value_or("");
  reader.UnsupportedUnless("function_call", {});
  // The content may be absent beside calls.
  if (const Json* content = reader.Value("content");
      content != nullptr || turn.tool_calls.empty()) {
    turn.content = Content(content, path, ignoring, reader);
  }
  reader.UnsupportedUnless("refusal", {});
  reader.UnsupportedUnless("audio", {});
  if (!Close(reader, ignoring, body)) return std::nullopt;
  return turn;
}

std::vector<ChatTurn> Messages(Ignoring ignoring, ObjectReader& body) {
  std::vector<ChatTurn> turns;
  const Json* value = body.Value("messages");
  if (value == nullptr || !value->is_array()) {
    body.FailField("messages", value == nullptr ? "is missing" : "must be a list");
    return turns;
  }
  for (std::size_t i = 0; i < value->size() && body.ok(); ++i) {
    if (auto turn = Message((*value)[i], i, ignoring, body)) turns.push_back(*std::move(turn));
  }
  return turns;
}

// `list` has been read already, but for the order of the members of parameters, which `text` has.
std::vector<Tool> Tools(const Json& list, std::string_view text, Ignoring ignoring,
                        ObjectReader& body) {
  std::vector<Tool> tools;
  if (!list.is_array()) body.FailField("tools", "must be a list");
  const auto ordered = ParseTemplateJson(text);
  if (!ordered.has_value()) {
    body.FailField("tools", Cat("has an object with more than ", kMaxTemplateMembers, " members"));
  }
  for (std::size_t i = 0; body.ok() && i < list.size(); ++i) {
    const std::string path = Cat("tools[", i, "]");
    if (!list[i].is_object()) {
      body.FailField(path, "must be an object");
      break;
    }
    ObjectReader reader(list[i], path + ".");
    Tool tool;
    if (const Json* function = Function(reader)) {
      ObjectReader inner(*function, path + ".function.");
      const auto name = inner.String("name");
      if (!name) inner.FailField("name", "is missing");
      tool.name = name.value_or("");
      tool.description = inner.String("description").value_or("");
      tool.strict = inner.Bool("strict").value_or(false);
      if (inner.Value("parameters") != nullptr) {
        tool.parameters = ordered->at(i).at("function").at("parameters").dump();
      }
      Close(inner, ignoring, reader);
    }
    if (Close(reader, ignoring, body)) tools.push_back(std::move(tool));
  }
  return tools;
}

void ReadToolChoice(Ignoring ignoring, ObjectReader& body, Conversation& conversation) {
  const Json* value = body.Value("tool_choice");
  if (value == nullptr || *value == "auto") return;
  if (*value == "none") {
    conversation.tool_choice = ToolChoice::kNone;
  } else if (*value == "required") {
    conversation.tool_choice = ToolChoice::kRequired;
  } else if (value->is_object()) {
    conversation.tool_choice = ToolChoice::kNamed;
    ObjectReader reader(*value, "tool_choice.");
    if (const Json* function = Function(reader)) {
      ObjectReader inner(*function, "tool_choice.function.");
      conversation.chosen_tool = inner.String("name").value_or("");
      Close(inner, ignoring, reader);
    }
    Close(reader, ignoring, body);
  } else {
    body.FailField("tool_choice",
                   "must be 'none', 'auto', 'required' or an object that names a "
                   "function");
  }
}

// As llama.cpp: whether thoughts are told apart.
void ReadReasoningFormat(ObjectReader& body, Conversation& conversation) {
  const Json* value = body.Value("reasoning_format");
  if (value == nullptr || *value == "auto" || *value == "deepseek") return;
  if (*value != "none") {
    return body.Unsupported("reasoning_format",
                            "is not supported, except as \"auto\", \"deepseek\" and \"none\"");
  }
  conversation.split_reasoning = false;
}

}  // namespace

Conversation ReadConversation(std::string_view text, const ParseOptions& options,
                              std::vector<std::string>* ignored, ObjectReader& body) {
  const Ignoring ignoring{options.permissive, ignored};
  Conversation conversation;
  conversation.turns = Messages(ignoring, body);
  if (const Json* tools = body.Value("tools"); tools != nullptr && body.ok()) {
    const std::string_view own = MemberText(text, "tools");
    if (own.size() > options.limits.max_tool_bytes) {
      body.Fail(TooManyToolBytes(own.size(), options.limits));
    } else {
      conversation.tools = Tools(*tools, own, ignoring, body);
    }
  }
  ReadToolChoice(ignoring, body, conversation);
  conversation.parallel_tool_calls = body.Bool("parallel_tool_calls").value_or(true);
  if (body.Value("documents") != nullptr) conversation.documents = MemberText(text, "documents");
  if (body.Value("chat_template_kwargs") != nullptr) {
    conversation.template_kwargs = MemberText(text, "chat_template_kwargs");
  }
  conversation.reasoning_effort = body.String("reasoning_effort").value_or("");
  conversation.continue_final_message = body.Bool("continue_final_message").value_or(false);
  conversation.add_generation_prompt =
      body.Bool("add_generation_prompt").value_or(!conversation.continue_final_message);
  conversation.include_reasoning = body.Bool("include_reasoning").value_or(true);
  ReadReasoningFormat(body, conversation);
  return conversation;
}

}  // namespace flotilla::router
