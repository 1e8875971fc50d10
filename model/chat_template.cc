#include "model/chat_template.h"

#include <algorithm>
#include <utility>

#include "common/types/text.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/lexer.h"
#include "model/jinja/parser.h"
#include "model/text/utf8.h"

namespace flotilla::model {

absl::StatusOr<ChatTemplate> ChatTemplate::Compile(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return InvalidArgument("the template has ", source.size(), " bytes; at most ", kMaxSourceBytes,
                           " are accepted");
  }
  auto tokens = jinja::Tokenize(source);
  if (!tokens.ok()) return tokens.status();
  auto program = jinja::Parse(*std::move(tokens));
  if (!program.ok()) return program.status();
  return ChatTemplate(*std::move(program), source);
}

absl::StatusOr<std::vector<TextPiece>> ChatTemplate::Render(
    const nlohmann::ordered_json& messages, const ChatTemplateOptions& options) const {
  constexpr uint64_t kMost = ChatTemplateOptions::kMostSteps, kStepsPerRead = 24;
  jinja::Heap heap(kMost);
  std::vector<std::pair<std::string, jinja::Value>> variables;
  if (options.extra.is_object()) {
    for (const auto& [name, value] : options.extra.items()) {
      variables.emplace_back(name, jinja::FromJson(heap, value));
    }
  }
  variables.emplace_back("messages", jinja::FromJson(heap, messages));
  if (!options.tools.is_null()) {
    variables.emplace_back("tools", jinja::FromJson(heap, options.tools));
  }
  variables.emplace_back("add_generation_prompt", jinja::Value(options.add_generation_prompt));
  variables.emplace_back("bos_token", heap.NewText(options.bos_token));
  variables.emplace_back("eos_token", heap.NewText(options.eos_token));
  if (!options.unk_token.empty()) {
    variables.emplace_back("unk_token", heap.NewText(options.unk_token));
  }
  if (!options.pad_token.empty()) {
    variables.emplace_back("pad_token", heap.NewText(options.pad_token));
  }
  if (!heap.ok()) return heap.status();
  const uint64_t read = kMost - heap.steps_left();
  heap.set_steps_left(std::min(heap.steps_left(), options.max_steps + kStepsPerRead * read));

  const auto text = jinja::Run(
      *program_, variables, heap,
      {.max_output_bytes = options.max_output_bytes, .strftime_now = options.strftime_now});
  if (!text.ok()) return text.status();
  std::vector<TextPiece> pieces;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text->runs()) {
    pieces.push_back({text->bytes().substr(begin, run.end - begin), !run.user});
    begin = run.end;
  }
  return pieces;
}

}  // namespace flotilla::model
