#include "tests/support/use_checkpoint.h"

#include "model/content_hash.h"
#include "model/load_spec.h"
#include "model/stop_tokens.h"
#include "model/text/tokenizer.h"

namespace flotilla::testing {

using Json = nlohmann::ordered_json;

bool UseTemplate(const std::string& source, const model::ChatTemplateOptions& options) {
  const auto compiled = model::ChatTemplate::Compile(source);
  if (!compiled.ok()) return false;
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const auto pieces = compiled->Render(Json::array({user}), options);
  const Json function = {{"name", "f"}, {"arguments", {{"x", 1.5}, {"y", {true, nullptr}}}}};
  const Json calls = Json::array({{{"type", "function"}, {"function", function}}});
  const Json parts = Json::array({{{"type", "text"}, {"text", "\u00e9 <|im_end|>"}}});
  model::ChatTemplateOptions with_tools = options;
  with_tools.bos_token = "<s>";
  with_tools.eos_token = "</s>";
  with_tools.tools = calls;
  with_tools.strftime_now = [](std::string_view) { return "26 Jul 2026"; };
  static_cast<void>(compiled->Render(
      Json::array({{{"role", "system"}, {"content", "Be brief."}},
                   {{"role", "user"}, {"content", parts}},
                   {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}},
                   {{"role", "tool"}, {"name", "f"}, {"content", "7"}},
                   user}),
      with_tools));
  return pieces.ok();
}

bool UseTokenizer(const absl::StatusOr<TokenizerBundle>& bundle) {
  if (!bundle.ok()) return false;
  model::TokenizerHash(*bundle);
  model::StopTokens(*bundle);
  const auto tokenizer = model::Tokenizer::Create(*bundle);
  if (tokenizer.ok()) {
    const auto ids =
        tokenizer->Encode("hello world 12 \u00e9", {.parse_special = true, .add_special = true});
    if (ids.ok()) tokenizer->Decode(*ids);
  }
  if (!bundle->chat_template.has_value()) return false;
  return UseTemplate(*bundle->chat_template, {.max_steps = 10'000, .max_output_bytes = 1 << 16}) &&
         tokenizer.ok();
}

bool UseCheckpoint(const model::Checkpoint& checkpoint) {
  checkpoint.Metadata();
  checkpoint.MetadataHash();
  const bool tokenizer = UseTokenizer(checkpoint.ReadTokenizer());
  return model::LoadSpec(checkpoint).ok() && tokenizer;
}

}  // namespace flotilla::testing
