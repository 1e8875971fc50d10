// Chat templates with tools and thoughts for tests, and a tokenizer whose markers are control
// tokens.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/types/tokenizer_bundle.h"

namespace flotilla::testing {

// As Qwen 3's, with less text.
inline constexpr char kHermesTemplate[] =
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\n</tools> For each call return <tool_call>\n{...}\n</tool_call><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ "
    "m.content.split('</think>')[-1] }}"
    "{% for call in m.tool_calls %}<tool_call>\n{\"name\": \"{{ call.function.name }}\", "
    "\"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}";

// SmolLM2's tokenizer, but some of its control tokens, which text never has, are the markers.
inline TokenizerBundle WithMarkers(TokenizerBundle bundle) {
  constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
      {"<repo_name>", "<tool_call>"},
      {"<reponame>", "</tool_call>"},
      {"<file_sep>", "<think>"},
      {"<filename>", "</think>"}};
  for (const auto& [from, to] : kRenamed) {
    std::replace(bundle.tokens.begin(), bundle.tokens.end(), std::string(from), std::string(to));
  }
  return bundle;
}

}  // namespace flotilla::testing
