// A conversation as a client gives it: messages, the tools that the model may call, and what else
// its chat template sees. Pure values; the frontends fill them, and CheckConversation
// (router/check_conversation.h) says whether they are in bounds.
//
// JSON that only templates look at stays text until a template is rendered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flotilla::router {

// A call of a tool, in a message of the assistant.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // what the model wrote: mostly the JSON text of an object
};

// One message. `content` is plain text: if a part of it looks like a special token, it stays
// text. Empty texts are absent members.
struct ChatTurn {
  std::string role;  // "system", "developer", "user", "assistant" or "tool"
  std::string content;
  std::string name = {};  // of who speaks, or of the tool that answers
  // Of the assistant.
  std::string reasoning_content = {};
  std::vector<ToolCall> tool_calls = {};
  std::string tool_call_id = {};  // of a tool: the call that it answers
};

// A function that the model may call.
struct Tool {
  std::string name;
  std::string description;
  std::string parameters;  // JSON Schema, an object; empty: absent
  bool strict = false;
};

enum class ToolChoice : std::uint8_t {
  kAuto,      // the model decides; without tools the same as kNone
  kNone,      // the tools are not shown to the model
  kRequired,  // the model calls some tool
  kNamed,     // the model calls Conversation::chosen_tool
};

struct Conversation {
  std::vector<ChatTurn> turns;
  std::vector<Tool> tools = {};
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string chosen_tool = {};
  bool parallel_tool_calls = true;  // false: the answer ends with its first call
  // What templates see of it: a JSON list of objects, and an object of variables. Empty: absent.
  std::string documents = {};
  std::string template_kwargs = {};
  std::string reasoning_effort = {};  // a variable, too; empty, "none": absent
  // The prompt ends with the beginning of an answer.
  bool add_generation_prompt = true;
  // The prompt ends within the last message, with which the answer goes on.
  bool continue_final_message = false;
  // How the thoughts of a model that marks them are answered.
  bool split_reasoning = true;    // apart from the content
  bool include_reasoning = true;  // false: not at all, if they are split off

  // Whether the model has to call a tool.
  bool must_call() const {
    return tool_choice == ToolChoice::kRequired || tool_choice == ToolChoice::kNamed;
  }
  // Whether the model is to know of tools.
  bool offers_tools() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
};

}  // namespace flotilla::router
