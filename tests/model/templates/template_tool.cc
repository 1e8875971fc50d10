// Renders chat templates for tests in Python. It reads a JSON object of a line and answers with
// one:
//   {"template": ..., "messages": [...], "generate": true, "tools": [...], "more": {...}}
//       {"text": the prompt}, or {"error": why it is refused}
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "model/chat_template.h"

namespace flotilla::model {
namespace {

using Json = nlohmann::ordered_json;

Json Answer(const Json& question) {
  const auto compiled = ChatTemplate::Compile(question["template"].get_ref<const std::string&>());
  if (!compiled.ok()) return {{"error", std::string(compiled.status().message())}};
  ChatTemplateOptions options{
      .add_generation_prompt = question["generate"],
      .bos_token = "<BOS>",
      .eos_token = "<EOS>",
      .unk_token = {},
      .pad_token = {},
      .tools = question.value("tools", Json()),
      .extra = question.value("more", Json::object()),
      .strftime_now = [](std::string_view format) { return "<now " + std::string(format) + ">"; }};
  const auto pieces = compiled->Render(question["messages"], options);
  if (!pieces.ok()) return {{"error", std::string(pieces.status().message())}};
  std::string text;
  for (const TextPiece& piece : *pieces) text += piece.text;
  return {{"text", text}};
}

}  // namespace
}  // namespace flotilla::model

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << flotilla::model::Answer(nlohmann::ordered_json::parse(line)).dump() << std::endl;
  }
}
