// Chat templates: a list of messages becomes the prompt text of a model.
//
// A template is a program in a sandboxed subset of Jinja that came with the
// model file. It is compiled once and rendered by any number of threads at
// once. It sees only the data it is given, and every cost it can run up (its
// size, nesting, steps, memory, output) is bounded. Text that came from the
// caller's messages stays marked through all operations, so that the tokenizer
// recognises special tokens only in what the template itself wrote.
//
// The language is that of the transformers library (trim_blocks, lstrip_blocks,
// an immutable sandbox, undefined prints as nothing):
//   statements   for (filtered, unpacking, recursive, else, break, continue), if,
//                set (also of a namespace's attribute, and as a block), macro,
//                call, with, filter, print, raw, generation (its markers are ignored)
//   expressions  all operators (% also formats), inline if, slices, literals, and
//                arguments behind * and **
//   globals      namespace, range, dict, joiner, cycler, raise_exception, strftime_now
// and the filters, tests and methods that are rows in model/jinja. docs/models.md
// lists what is missing. All that is missing is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "model/text/text_piece.h"

namespace flotilla::jinja {
struct Template;
}

namespace flotilla::model {

struct ChatTemplateOptions {
  bool add_generation_prompt = true;
  std::string bos_token;  // texts of the special tokens, from the template's side
  std::string eos_token;
  std::string unk_token;  // of this and the next: empty, the variable is undefined
  std::string pad_token;
  nlohmann::ordered_json tools;  // null: the variable is undefined
  nlohmann::ordered_json extra;  // object: further variables, e.g. enable_thinking
  // What strftime_now(format) returns. If it is not set, the call is refused.
  std::function<std::string(std::string_view format)> strftime_now;

  // Bounds of one rendering. A step is one node of the program evaluated, or 64 bytes of text or 4
  // list elements made or read. The rendering may take max_steps, and 24 more for each that its
  // input takes to be read (10 for a message, and one for 64 bytes), but kMostSteps at most. A
  // message takes 100 steps in most templates.
  static constexpr uint64_t kMostSteps = 2'000'000;
  uint64_t max_steps = 250'000;
  size_t max_output_bytes = 16 << 20;
};

class ChatTemplate {
 public:
  // Longest template; the largest published one seen has 17 KB.
  static constexpr size_t kMaxSourceBytes = 64 << 10;

  // InvalidArgument, with the line, for a template that is too long, too
  // deeply nested, or not in the subset.
  static absl::StatusOr<ChatTemplate> Compile(std::string_view source);

  // Renders `messages`, a JSON list of objects. InvalidArgument if the template
  // raises an exception (its message is the status's) or does something
  // impossible; ResourceExhausted past a bound. Pieces are never empty, and
  // neighbours differ in special_allowed.
  absl::StatusOr<std::vector<TextPiece>> Render(const nlohmann::ordered_json& messages,
                                                const ChatTemplateOptions& options = {}) const;

  // The text that it was compiled from. It lives as long as this object or a copy of it.
  std::string_view source() const { return *source_; }

 private:
  ChatTemplate(std::shared_ptr<const jinja::Template> program, std::string_view source)
      : program_(std::move(program)), source_(std::make_shared<const std::string>(source)) {}

  // Shared by copies of this object, which may be on several threads.
  std::shared_ptr<const jinja::Template> program_;
  std::shared_ptr<const std::string> source_;
};

}  // namespace flotilla::model
